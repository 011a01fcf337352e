-- Views for people. CREATE OR REPLACE VIEW lets a view only grow: add new columns at its end.

-- The newest migration of this ledger, and the oldest version of epochline that may work on it.
CREATE OR REPLACE VIEW epochline.versions AS
SELECT version_num AS revision, oldest_version FROM epochline.alembic_version;

CREATE OR REPLACE VIEW epochline.pipelines AS
SELECT pipeline, generation, last_epoch_id, cluster_id, created_at, paused_at, paused_by, paused_reason, dropped_at,
       dropped_by, dropped_reason, paused_command
FROM epochline.pipeline;

CREATE OR REPLACE VIEW epochline.epochs AS
SELECT pipeline, generation, epoch_id, state, attempt, kind, dag_id, run_id, planned_at, pre_committed_at,
       committed_at, aborted_at, records_read, records_passed, records_quarantined, rows_written, approval, error,
       records_skipped, record_limit, note, declaration_hash, lease_until, settings, interval_start, interval_end,
       aborts, watermark, records_too_late, undone_by, replays, error_class, error_command, judged_attempt, outside,
       measured, decided_by, decided_at, decided_reason
FROM epochline.epoch;

-- The planned ranges of every epoch, with their counts. last_stable is where the log ended at the plan.
CREATE OR REPLACE VIEW epochline.offsets AS
SELECT r.pipeline, e.generation, r.epoch_id, r.topic, r.topic_id, r.partition, r.start_offset, r.until_offset,
       e.state, r.records_read, r.records_passed, r.records_skipped, r.records_quarantined, r.first_offset,
       r.last_offset, r.leader_epoch, r.newest_event_time, r.oldest_timestamp, r.newest_timestamp, r.source_digest,
       r.last_stable
FROM epochline.planned_range r JOIN epochline.epoch e USING (pipeline, epoch_id);

-- The end of each chain of the current generation. Each chain is found by its origin, and its end by the index on
-- until_offset, so that the length of a chain costs nothing.
CREATE OR REPLACE VIEW epochline.heads AS
SELECT c.pipeline, c.generation, c.topic, c.topic_id, c.partition, o.until_offset AS origin_offset,
       c.until_offset AS next_offset, c.epoch_id, c.committed_at
FROM epochline.pipeline p
JOIN epochline.committed_range o ON (o.pipeline, o.generation) = (p.pipeline, p.generation) AND o.start_offset IS NULL
CROSS JOIN LATERAL (
    SELECT * FROM epochline.committed_range c
    WHERE (c.pipeline, c.generation, c.topic_id, c.partition) = (o.pipeline, o.generation, o.topic_id, o.partition)
    ORDER BY c.until_offset DESC LIMIT 1) c;

-- Where each log began and ended when Kafka was last asked: last_stable is the end for a read_committed consumer.
-- unread_since is a time before which no unread record was written; NULL if nothing is unread or nothing is known.
-- unread is the number of offsets between head and end. by_age and by_size tell why Kafka deletes records
-- of the log; compacted that it deletes none but older ones of the same key.
-- seconds_to_loss is the least time until Kafka may delete an unread record because of its age; NULL if Kafka deletes
-- none by age, or unread_since or the retention is not known.
CREATE OR REPLACE VIEW epochline.log_ends AS
SELECT l.pipeline, l.topic, l.topic_id, l.partition, l.log_start, l.last_stable, l.observed_at, h.next_offset,
       l.cleanup_policy, l.retention_ms, l.retention_bytes, u.unread_since,
       CASE WHEN l.cleanup_policy LIKE '%delete%' AND l.retention_ms >= 0 THEN
           extract(epoch FROM u.unread_since - clock_timestamp())::double precision + l.retention_ms / 1000.0
       END::double precision AS seconds_to_loss,
       greatest(0, l.last_stable - coalesce(h.next_offset, l.log_start)) AS unread,
       l.cleanup_policy LIKE '%delete%' AND l.retention_ms >= 0 AS by_age,
       l.cleanup_policy LIKE '%delete%' AND l.retention_bytes >= 0 AS by_size,
       l.cleanup_policy NOT LIKE '%delete%' AS compacted
FROM epochline.log_end l
JOIN epochline.pipeline p USING (pipeline)
LEFT JOIN LATERAL (
    SELECT c.until_offset AS next_offset, c.epoch_id FROM epochline.committed_range c
    WHERE (c.pipeline, c.generation, c.topic_id, c.partition) = (l.pipeline, p.generation, l.topic_id, l.partition)
    ORDER BY c.until_offset DESC LIMIT 1) h ON true
LEFT JOIN epochline.planned_range r
    ON (r.pipeline, r.epoch_id, r.topic_id, r.partition) = (l.pipeline, h.epoch_id, l.topic_id, l.partition)
-- Kafka keeps order by offset, so an unread record came after the newest committed one.
CROSS JOIN LATERAL (
    SELECT CASE WHEN l.last_stable > coalesce(h.next_offset, l.log_start)
           THEN greatest(l.caught_up_at,
                         CASE WHEN r.newest_timestamp < l.observed_at THEN r.newest_timestamp
                              WHEN r.newest_timestamp IS NOT NULL THEN l.observed_at END) END AS unread_since) u;

-- Every range of every chain. Ranges of an earlier generation are superseded: kept, but no longer read.
CREATE OR REPLACE VIEW epochline.committed_ranges AS
SELECT c.pipeline, c.generation, c.topic, c.topic_id, c.partition, c.start_offset, c.until_offset, c.epoch_id,
       c.chosen_by, c.leader_epoch, c.committed_at, c.generation < p.generation AS superseded
FROM epochline.committed_range c JOIN epochline.pipeline p USING (pipeline);

CREATE OR REPLACE VIEW epochline.attempts AS
SELECT a.pipeline, a.epoch_id, a.attempt,
       CASE WHEN a.failed_at IS NOT NULL AND (a.fenced_at IS NOT NULL OR a.sealed_at IS NULL) THEN 'FAILED'
            WHEN a.fenced_at IS NOT NULL THEN 'FENCED'
            WHEN a.ended_at IS NOT NULL THEN 'COMMITTED'
            WHEN a.sealed_at IS NOT NULL THEN 'SEALED'
            ELSE 'RUNNING' END AS state,
       a.run_id, a.host, a.started_at, a.ended_at,
       coalesce(a.rows_staged, (SELECT sum(p.rows) FROM epochline.part p WHERE p.attempt_id = a.attempt_id), 0)::bigint
           AS rows_staged,
       (SELECT count(*) FROM epochline.fenced_write f WHERE f.attempt_id = a.attempt_id) AS fenced_writes,
       a.error, a.error_class, a.error_command, a.failed_at, a.parts_deleted_at
FROM epochline.attempt a;

-- Writes that were refused, because their attempt was no longer live. One row per database session.
CREATE OR REPLACE VIEW epochline.fenced_writes AS
SELECT a.pipeline, a.epoch_id, a.attempt, f.host, f.refused_at
FROM epochline.fenced_write f JOIN epochline.attempt a USING (attempt_id);

CREATE OR REPLACE VIEW epochline.quarantine AS
SELECT pipeline, epoch_id, topic, partition, "offset", key, value, reason, quarantined_at, generation,
       record_timestamp, headers, requeued_by, requeued_at, erased_at
FROM epochline.quarantined_record;

-- Rows that a target refused although each value fits its column, and that belong to no single record: a transform or a
-- sum made them. Only an inspector sees reason and row, because they contain values.
CREATE OR REPLACE VIEW epochline.refused_rows AS
SELECT pipeline, epoch_id, attempt, sink, refused_at, reason, "row" FROM epochline.refused_row WHERE topic IS NULL;

-- Whether each sink shows each committed epoch.
CREATE OR REPLACE VIEW epochline.receipts AS
SELECT r.pipeline, e.generation, r.epoch_id, r.sink,
       CASE WHEN r.shown_at IS NOT NULL THEN 'SHOWN' WHEN r.tried_at IS NOT NULL THEN 'OPEN' ELSE 'DUE' END AS state,
       r.rows, r.due_at, r.tried_at, r.shown_at, r.seconds, a.token, e.undone_by,
       r.inserted, r.updated, r.deleted, r.superseded, r.unchanged, r.announced_by, r.acknowledged_at
FROM epochline.receipt r
JOIN epochline.epoch e USING (pipeline, epoch_id)
JOIN epochline.attempt a USING (attempt_id);

CREATE OR REPLACE VIEW epochline.state AS
SELECT v.pipeline, v.state, v.epoch_id, v.keys, v.digest, v.written_at FROM epochline.state_version v;

-- The size of each state table on disk, with its indexes.
CREATE OR REPLACE VIEW epochline.state_sizes AS
SELECT schema_name, table_name, keys, pg_total_relation_size(relation) AS bytes FROM epochline.state_table;

-- The rows that each attempt staged for each sink, counted twice (INV-9): by the parts that the job's tasks wrote, and by
-- the manifest that its driver wrote. Attempts whose parts were deleted for their age are left out.
CREATE OR REPLACE VIEW epochline.staged_rows AS
SELECT a.pipeline, a.epoch_id, a.attempt, m.sink, m.parts, m.rows, p.parts AS parts_found, p.rows AS rows_found
FROM epochline.attempt a
JOIN epochline.manifest m USING (attempt_id)
CROSS JOIN LATERAL (
    SELECT count(*) AS parts, coalesce(sum(p.rows), 0)::bigint AS rows FROM epochline.part p
    WHERE (p.attempt_id, p.sink, p.write_id) = (m.attempt_id, m.sink, m.write_id)) p
WHERE a.parts_deleted_at IS NULL;

-- The newest event time of each partition that has a head. A watermark that a record carried counts as a record that is
-- newer by the declared out_of_orderness. read_at is the time at which the last epoch that read a
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
--   wait     from the end of the run's interval to the begin of the plan; NULL without an interval
--   plan     from there until the epoch is written; NULL for an operator's epoch, and before migration 0006
--   start    from the plan to the begin of the attempt, earlier attempts included
--   stage    from there to the end mark of the Spark job
--   seal     from there to the seal
--   commit   from there to the commit
--   publish  from there until every sink shows the epoch
--   whole    from the plan until every sink shows the epoch
-- interval_kept says whether that was within the interval of the pipeline's schedule; NULL where the schedule is
-- no interval.
-- since_previous is the time between the plan of the scheduled epoch before and this plan, which the schedule keeps at
-- the interval or above; NULL for the first epoch. An epoch that started sooner was not started by the schedule, or
-- would have waited longer than a plan may.
-- Two more columns tell how old records were at the commit, by Kafka's timestamps; NULL before the commit, for an epoch
-- without a range, and for one that was sealed before the ledger kept timestamps:
--   longest_latency   of the record with the oldest timestamp: nothing in the epoch waited longer
--   shortest_latency  of the record with the newest timestamp: how far the target was behind at that moment
CREATE OR REPLACE VIEW epochline.phases AS
SELECT e.pipeline, e.generation, e.epoch_id, e.kind, a.attempt, e.records_read,
       extract(epoch FROM e.planned_at - e.interval_end)::double precision - coalesce(e.plan_seconds, 0) AS wait_seconds,
       extract(epoch FROM a.started_at - e.planned_at)::double precision AS start_seconds,
       extract(epoch FROM a.job_ended_at - a.started_at)::double precision AS stage_seconds,
       extract(epoch FROM a.sealed_at - a.job_ended_at)::double precision AS seal_seconds,
       extract(epoch FROM e.committed_at - a.sealed_at)::double precision AS commit_seconds,
       extract(epoch FROM s.shown_at - e.committed_at)::double precision AS publish_seconds,
       extract(epoch FROM s.shown_at - e.planned_at)::double precision AS whole_seconds,
       i.seconds AS interval_seconds,
       extract(epoch FROM s.shown_at - e.planned_at) <= i.seconds AS interval_kept, e.record_limit,
       extract(epoch FROM e.committed_at - t.oldest)::double precision AS longest_latency_seconds,
       extract(epoch FROM e.committed_at - t.newest)::double precision AS shortest_latency_seconds,
       e.plan_seconds,
       extract(epoch FROM e.planned_at - b.planned_at)::double precision AS since_previous_seconds
FROM epochline.epoch e
LEFT JOIN LATERAL (
    SELECT b.planned_at FROM epochline.epoch b
    WHERE b.pipeline = e.pipeline AND b.epoch_id < e.epoch_id AND b.kind IN ('regular', 'idle')
    ORDER BY b.epoch_id DESC LIMIT 1) b ON true
-- A schedule may also be a cron expression, which is no number of seconds.
CROSS JOIN LATERAL (
    SELECT CASE jsonb_typeof(e.settings #> '{interval,value}')
           WHEN 'number' THEN (e.settings #>> '{interval,value}')::double precision END AS seconds) i
LEFT JOIN LATERAL (
    SELECT * FROM epochline.attempt a WHERE (a.pipeline, a.epoch_id) = (e.pipeline, e.epoch_id)
    ORDER BY a.attempt DESC LIMIT 1) a ON true
LEFT JOIN LATERAL (
    -- A table shows its rows once the transaction that wrote the receipt has ended.
    SELECT CASE WHEN bool_and(r.shown_at IS NOT NULL) THEN greatest(max(r.shown_at), e.committed_at) END AS shown_at
    FROM epochline.receipt r WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) s ON true
CROSS JOIN LATERAL (
    SELECT min(r.oldest_timestamp) AS oldest, max(r.newest_timestamp) AS newest
    FROM epochline.planned_range r WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) t;

-- Where each pipeline stands by the ledger alone: what operators decided, the unfinished epoch, the last commit, the
-- failed attempts and the aborts since then or since the last resume, and plans that failed. An attempt that a later one
-- of its epoch replaced without a word of its own has failed too: its process was lost. A replay is left out: an operator
-- who only looks at one aborts it. `epochline.protocol.standing` is the rule that makes one state of a row. A pipeline
-- whose first plan failed has a row too.
CREATE OR REPLACE VIEW epochline.standings AS
SELECT coalesce(p.pipeline, x.pipeline) AS pipeline, p.paused_at, p.paused_by, p.paused_reason, p.paused_command,
       p.dropped_at, p.dropped_by, p.dropped_reason, coalesce(p.last_epoch_id, 0) AS last_epoch_id, p.cluster_id,
       u.epoch_id, u.state, u.attempt, u.approval, u.planned_at, u.lease_until < clock_timestamp() AS lease_expired,
       c.epoch_id AS committed_epoch, c.committed_at, c.records_read AS committed_read,
       c.records_quarantined AS committed_quarantined,
       coalesce((c.settings #>> '{quarantining_above,value}')::float8, 0.1) AS quarantining_above,
       CASE jsonb_typeof(c.settings #> '{interval,value}')
           WHEN 'number' THEN (c.settings #>> '{interval,value}')::float8 END AS interval_seconds,
       f.failures, f.failing_since, f.failed_epoch, f.failed_attempt, f.failure, f.failure_class, f.failure_command,
       b.aborts, a.epoch_id AS aborted_epoch, a.aborted_at, a.error AS aborted_error, a.error_class AS aborted_class,
       a.error_command AS aborted_command,
       x.runs AS plan_failures, x.first_failed_at AS plan_failing_since, x.error AS plan_error,
       x.error_class AS plan_class, x.error_command AS plan_command, x.dag_id AS plan_dag_id, x.run_id AS plan_run_id,
       d.due,
       u.settings #>> '{restart,value,kind}' = 'endless' AND u.settings #>> '{restart,from}' <> 'default' AS endless,
       extract(epoch FROM clock_timestamp() - p.last_plan_at)::float8 AS seconds_since_plan, p.last_plan_at, u.outside
FROM epochline.pipeline p FULL JOIN epochline.plan_failure x ON x.pipeline = p.pipeline
LEFT JOIN LATERAL (
    SELECT * FROM epochline.epoch e
    WHERE e.pipeline = p.pipeline AND e.state IN ('PLANNED', 'PRE_COMMITTED') LIMIT 1) u ON true
LEFT JOIN LATERAL (
    SELECT * FROM epochline.epoch e WHERE e.pipeline = p.pipeline AND e.state = 'COMMITTED'
    ORDER BY e.epoch_id DESC LIMIT 1) c ON true
LEFT JOIN LATERAL (
    SELECT * FROM epochline.epoch e WHERE e.pipeline = p.pipeline AND e.state = 'ABORTED' AND e.kind <> 'replay'
    ORDER BY e.epoch_id DESC LIMIT 1) a ON true
CROSS JOIN LATERAL (
    SELECT max(acted_at) AS resumed_at FROM epochline.action WHERE pipeline = p.pipeline AND action = 'resume') r
CROSS JOIN LATERAL (
    SELECT coalesce(sum(e.aborts), 0)::bigint AS aborts FROM epochline.epoch e
    WHERE e.pipeline = p.pipeline AND e.epoch_id > coalesce(c.epoch_id, 0) AND e.kind <> 'replay'
      AND e.aborted_at > coalesce(r.resumed_at, '-infinity')) b
CROSS JOIN LATERAL (
    SELECT count(*) AS failures, min(t.at) AS failing_since,
           (array_agg(t.epoch_id ORDER BY t.at DESC))[1] AS failed_epoch,
           (array_agg(t.attempt ORDER BY t.at DESC))[1] AS failed_attempt,
           (array_agg(t.error ORDER BY t.at DESC))[1] AS failure,
           (array_agg(t.error_class ORDER BY t.at DESC))[1] AS failure_class,
           (array_agg(t.error_command ORDER BY t.at DESC))[1] AS failure_command
    FROM (SELECT t.*, coalesce(t.failed_at, t.fenced_at) AS at
          FROM epochline.attempt t JOIN epochline.epoch e USING (pipeline, epoch_id)
          WHERE t.pipeline = p.pipeline AND t.epoch_id > coalesce(c.epoch_id, 0) AND e.kind <> 'replay'
            AND (t.failed_at IS NOT NULL OR (t.fenced_at IS NOT NULL AND t.sealed_at IS NULL AND t.attempt < e.attempt))
         ) t
    WHERE t.at > coalesce(r.resumed_at, '-infinity')) f
CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(d.sink, d.epochs) AS due
    FROM (SELECT r.sink, count(*) AS epochs FROM epochline.receipt r
          WHERE r.pipeline = p.pipeline AND r.shown_at IS NULL GROUP BY r.sink) d) d;

-- What each declaration says of its tables. A view of whole declarations would show what authors put into options.
CREATE OR REPLACE VIEW epochline.declared_tables AS
SELECT d.hash AS declaration_hash, s.sink ->> 'table' AS declared, s.sink ->> 'mode' AS mode,
       d.body ->> 'transform' IS NOT NULL AS transformed,
       d.body ? 'state' OR d.body ? 'windows' AS keeps_state,
       coalesce((s.sink ->> 'keep_unavailable')::boolean, false) AS keep_unavailable
FROM epochline.declaration d CROSS JOIN LATERAL jsonb_array_elements(d.body -> 'sinks') s (sink)
WHERE s.sink ? 'table';

-- The connection of each Kafka that a declaration reads, by input; '' for the only source.
CREATE OR REPLACE VIEW epochline.declared_kafka AS
SELECT d.hash AS declaration_hash, i.input, i.source ->> 'connection' AS connection
FROM epochline.declaration d CROSS JOIN LATERAL (
    SELECT '' AS input, d.body -> 'source' AS source
    UNION ALL SELECT n.key, n.value -> 'source' FROM jsonb_each(d.body #> '{source,inputs}') n) i
WHERE i.source ? 'topics';
