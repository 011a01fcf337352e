-- Views for people. CREATE OR REPLACE VIEW lets a view only grow: add new columns at its end.

CREATE OR REPLACE VIEW epochline.pipelines AS
SELECT pipeline, generation, last_epoch_id, cluster_id, created_at, paused_at, paused_by, paused_reason, dropped_at,
       dropped_by, dropped_reason
FROM epochline.pipeline;

CREATE OR REPLACE VIEW epochline.epochs AS
SELECT pipeline, generation, epoch_id, state, attempt, kind, dag_id, run_id, planned_at, pre_committed_at,
       committed_at, aborted_at, records_read, records_passed, records_quarantined, rows_written, approval, error,
       records_skipped, record_limit, note, declaration_hash, lease_until, settings, interval_start, interval_end,
       aborts, watermark, records_too_late, undone_by, replays
FROM epochline.epoch;

-- The planned ranges of every epoch, with their counts.
CREATE OR REPLACE VIEW epochline.offsets AS
SELECT r.pipeline, e.generation, r.epoch_id, r.topic, r.topic_id, r.partition, r.start_offset, r.until_offset,
       e.state, r.records_read, r.records_passed, r.records_skipped, r.records_quarantined, r.first_offset,
       r.last_offset, r.leader_epoch, r.newest_event_time, r.oldest_timestamp, r.newest_timestamp
FROM epochline.planned_range r JOIN epochline.epoch e USING (pipeline, epoch_id);

-- The end of each chain of the current generation.
CREATE OR REPLACE VIEW epochline.heads AS
SELECT c.pipeline, c.generation, c.topic, c.topic_id, c.partition, o.until_offset AS origin_offset,
       c.until_offset AS next_offset, c.epoch_id, c.committed_at
FROM (SELECT DISTINCT ON (pipeline, generation, topic_id, partition) *
      FROM epochline.committed_range
      ORDER BY pipeline, generation, topic_id, partition, until_offset DESC) c
JOIN epochline.committed_range o USING (pipeline, generation, topic_id, partition)
JOIN epochline.pipeline p ON p.pipeline = c.pipeline AND p.generation = c.generation
WHERE o.start_offset IS NULL;

-- Every range of every chain. Ranges of an earlier generation are superseded: kept, but no longer read.
CREATE OR REPLACE VIEW epochline.committed_ranges AS
SELECT c.pipeline, c.generation, c.topic, c.topic_id, c.partition, c.start_offset, c.until_offset, c.epoch_id,
       c.chosen_by, c.leader_epoch, c.committed_at, c.generation < p.generation AS superseded
FROM epochline.committed_range c JOIN epochline.pipeline p USING (pipeline);

CREATE OR REPLACE VIEW epochline.attempts AS
SELECT a.pipeline, a.epoch_id, a.attempt,
       CASE WHEN a.fenced_at IS NOT NULL THEN 'FENCED'
            WHEN a.ended_at IS NOT NULL THEN 'COMMITTED'
            WHEN a.sealed_at IS NOT NULL THEN 'SEALED'
            ELSE 'RUNNING' END AS state,
       a.run_id, a.host, a.started_at, a.ended_at,
       coalesce(a.rows_staged, (SELECT sum(p.rows) FROM epochline.part p WHERE p.attempt_id = a.attempt_id), 0)::bigint
           AS rows_staged,
       (SELECT count(*) FROM epochline.fenced_write f WHERE f.attempt_id = a.attempt_id) AS fenced_writes,
       a.error
FROM epochline.attempt a;

CREATE OR REPLACE VIEW epochline.quarantine AS
SELECT pipeline, epoch_id, topic, partition, "offset", key, value, reason, quarantined_at, generation,
       record_timestamp, headers, requeued_by, requeued_at
FROM epochline.quarantined_record;

-- Whether each sink shows each committed epoch.
CREATE OR REPLACE VIEW epochline.receipts AS
SELECT r.pipeline, e.generation, r.epoch_id, r.sink,
       CASE WHEN r.shown_at IS NOT NULL THEN 'SHOWN' WHEN r.tried_at IS NOT NULL THEN 'OPEN' ELSE 'DUE' END AS state,
       r.rows, r.due_at, r.tried_at, r.shown_at, r.seconds, a.token, e.undone_by,
       r.inserted, r.updated, r.deleted, r.superseded, r.unchanged
FROM epochline.receipt r
JOIN epochline.epoch e USING (pipeline, epoch_id)
JOIN epochline.attempt a USING (attempt_id);

CREATE OR REPLACE VIEW epochline.state AS
SELECT v.pipeline, v.state, v.epoch_id, v.keys, v.digest, v.written_at FROM epochline.state_version v;

-- The newest event time of each partition that has a head. read_at is the time at which the last epoch that read a
-- record of the partition was planned. Without such an epoch, the savepoint that wrote the origin gives both.
CREATE OR REPLACE VIEW epochline.event_times AS
SELECT h.pipeline, h.topic, h.topic_id, h.partition,
       coalesce(t.newest_event_time, o.newest_event_time) AS newest_event_time,
       coalesce(t.planned_at, o.read_at) AS read_at
FROM epochline.heads h
JOIN epochline.committed_range o
    ON (o.pipeline, o.generation, o.topic_id, o.partition) = (h.pipeline, h.generation, h.topic_id, h.partition)
   AND o.start_offset IS NULL
LEFT JOIN LATERAL (
    SELECT r.newest_event_time, e.planned_at
    FROM epochline.planned_range r JOIN epochline.epoch e USING (pipeline, epoch_id)
    WHERE r.pipeline = h.pipeline AND r.topic_id = h.topic_id AND r.partition = h.partition
      AND r.newest_event_time IS NOT NULL AND e.state = 'COMMITTED' AND e.undone_by IS NULL
    ORDER BY r.epoch_id DESC LIMIT 1) t ON true;

CREATE OR REPLACE VIEW epochline.savepoints AS
SELECT s.pipeline, s.name, s.epoch_id, s.generation, s.watermark, s.made_by, s.reason, s.made_at, s.imported_at,
       (SELECT sum(t.keys) FROM epochline.savepoint_state t
        WHERE (t.pipeline, t.name) = (s.pipeline, s.name))::bigint AS keys
FROM epochline.savepoint s;

CREATE OR REPLACE VIEW epochline.actions AS
SELECT action_id, pipeline, action, epoch_id, actor, reason, before, after, acted_at FROM epochline.action;

-- The seconds of each phase of an epoch; NULL where the phase has not ended. The attempt is the last one.
--   wait     from the end of the run's interval to the plan; NULL without an interval
--   start    from the plan to the begin of the attempt, earlier attempts included
--   stage    from there to the end mark of the Spark job
--   seal     from there to the seal
--   commit   from there to the commit
--   publish  from there until every sink shows the epoch
--   whole    from the plan until every sink shows the epoch
-- interval_kept says whether that was within the interval of the pipeline's schedule (K8); NULL where the schedule is
-- no interval.
-- Two more columns tell how old records were at the commit, by Kafka's timestamps; NULL before the commit, for an epoch
-- without a range, and for one that was sealed before the ledger kept timestamps:
--   longest_latency   of the record with the oldest timestamp: nothing in the epoch waited longer
--   shortest_latency  of the record with the newest timestamp: how far the target was behind at that moment
CREATE OR REPLACE VIEW epochline.phases AS
SELECT e.pipeline, e.generation, e.epoch_id, e.kind, a.attempt, e.records_read,
       extract(epoch FROM e.planned_at - e.interval_end)::double precision AS wait_seconds,
       extract(epoch FROM a.started_at - e.planned_at)::double precision AS start_seconds,
       extract(epoch FROM a.job_ended_at - a.started_at)::double precision AS stage_seconds,
       extract(epoch FROM a.sealed_at - a.job_ended_at)::double precision AS seal_seconds,
       extract(epoch FROM e.committed_at - a.sealed_at)::double precision AS commit_seconds,
       extract(epoch FROM s.shown_at - e.committed_at)::double precision AS publish_seconds,
       extract(epoch FROM s.shown_at - e.planned_at)::double precision AS whole_seconds,
       i.seconds AS interval_seconds,
       extract(epoch FROM s.shown_at - e.planned_at) <= i.seconds AS interval_kept, e.record_limit,
       extract(epoch FROM e.committed_at - t.oldest)::double precision AS longest_latency_seconds,
       extract(epoch FROM e.committed_at - t.newest)::double precision AS shortest_latency_seconds
FROM epochline.epoch e
-- A schedule may also be a cron expression, which is no number of seconds.
CROSS JOIN LATERAL (
    SELECT CASE jsonb_typeof(e.settings #> '{interval,value}')
           WHEN 'number' THEN (e.settings #>> '{interval,value}')::double precision END AS seconds) i
LEFT JOIN LATERAL (
    SELECT * FROM epochline.attempt a WHERE (a.pipeline, a.epoch_id) = (e.pipeline, e.epoch_id)
    ORDER BY a.attempt DESC LIMIT 1) a ON true
LEFT JOIN LATERAL (
    SELECT CASE WHEN bool_and(r.shown_at IS NOT NULL) THEN max(r.shown_at) END AS shown_at
    FROM epochline.receipt r WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) s ON true
CROSS JOIN LATERAL (
    SELECT min(r.oldest_timestamp) AS oldest, max(r.newest_timestamp) AS newest
    FROM epochline.planned_range r WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) t;
