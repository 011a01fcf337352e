-- What the pages in Airflow's user interface read. Every statement reads views alone. A reader's login may run all of
-- them but four, which read bytes or reasons of quarantined records and need the role epochline_inspector.

-- name: page_pipelines
-- Every pipeline where it stands, with its lag. The lag counts up to where the logs ended when Kafka was last asked.
-- seconds_to_loss is the least time until Kafka may delete an unread record because of its age.
SELECT s.*, extract(epoch FROM clock_timestamp() - s.committed_at)::float8 AS seconds_since_commit,
       l.lag, l.observed_at, l.partitions, l.data_lost,
       CASE WHEN l.lag > 0 THEN extract(epoch FROM clock_timestamp() - t.newest)::float8 END AS lag_seconds,
       w.watermark, l.seconds_to_loss, l.retention_unknown, l.by_age, l.by_size,
       l.compacted, v.savepoints, v.newest_savepoint, v.savepoint_made_at
FROM epochline.standings s
LEFT JOIN epochline.epochs w ON (w.pipeline, w.epoch_id) = (s.pipeline, s.committed_epoch)
CROSS JOIN LATERAL (
    SELECT sum(l.unread)::bigint AS lag, min(l.observed_at) AS observed_at, count(*) AS partitions,
           coalesce(bool_or(l.next_offset < l.log_start), false) AS data_lost, min(l.seconds_to_loss) AS seconds_to_loss,
           bool_or(l.cleanup_policy IS NULL) FILTER (WHERE l.unread > 0) AS retention_unknown,
           bool_or(l.by_age) FILTER (WHERE l.unread > 0) AS by_age,
           bool_or(l.by_size) FILTER (WHERE l.unread > 0) AS by_size,
           bool_or(l.compacted) FILTER (WHERE l.unread > 0) AS compacted
    FROM epochline.log_ends l WHERE l.pipeline = s.pipeline) l
CROSS JOIN LATERAL (
    SELECT count(*) AS savepoints, (array_agg(v.name ORDER BY v.made_at DESC))[1] AS newest_savepoint,
           max(v.made_at) AS savepoint_made_at
    FROM epochline.savepoints v WHERE v.pipeline = s.pipeline) v
CROSS JOIN LATERAL (
    SELECT max(o.newest_timestamp) AS newest FROM epochline.offsets o
    WHERE (o.pipeline, o.epoch_id) = (s.pipeline, s.committed_epoch)) t
WHERE %(pipeline)s::text IS NULL OR s.pipeline = %(pipeline)s
ORDER BY s.pipeline

-- name: page_day
-- The number of epochs that each pipeline planned in each of the last 24 hours, by state; hour 0 is the oldest.
SELECT pipeline, (extract(epoch FROM planned_at - (now() - interval '24 hours')) / 3600)::integer AS hour, state,
       count(*) AS epochs
FROM epochline.epochs
WHERE planned_at > now() - interval '24 hours' AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3

-- name: page_states
-- The number of a pipeline's epochs in each state, counted up to a limit, and of the recovered ones: committed epochs of
-- which an attempt had failed. Each state stands here as a constant, so that the server knows which ones are rare.
SELECT 'COMMITTED' AS state, count(*) AS epochs
FROM (SELECT FROM epochline.epochs WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' LIMIT %(limit)s) e HAVING count(*) > 0
UNION ALL
SELECT 'ABORTED' AS state, count(*) AS epochs
FROM (SELECT FROM epochline.epochs WHERE pipeline = %(pipeline)s AND state = 'ABORTED' LIMIT %(limit)s) e HAVING count(*) > 0
UNION ALL
SELECT 'PRE_COMMITTED' AS state, count(*) AS epochs
FROM (SELECT FROM epochline.epochs WHERE pipeline = %(pipeline)s AND state = 'PRE_COMMITTED' LIMIT %(limit)s) e HAVING count(*) > 0
UNION ALL
SELECT 'PLANNED' AS state, count(*) AS epochs
FROM (SELECT FROM epochline.epochs WHERE pipeline = %(pipeline)s AND state = 'PLANNED' LIMIT %(limit)s) e HAVING count(*) > 0
UNION ALL
SELECT 'RECOVERED' AS state, count(*) AS epochs
FROM (SELECT FROM epochline.epochs WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' AND attempt > 1
      LIMIT %(limit)s) e HAVING count(*) > 0

-- name: page_history
-- A page of a pipeline's epochs, the newest first, with the seconds of their phases and the records that the plan left
-- unread in the partitions of the epoch. The next page begins before the last epoch of this one. The state RECOVERED is
-- that of committed epochs of which an attempt had failed.
SELECT e.epoch_id, e.state, e.kind, e.attempt, e.planned_at, e.committed_at, e.aborted_at, e.run_id, e.dag_id, e.note,
       e.error, e.records_read, e.records_skipped, e.records_quarantined, e.rows_written, e.undone_by, e.replays,
       f.wait_seconds, f.plan_seconds, f.start_seconds, f.stage_seconds, f.seal_seconds, f.commit_seconds, f.publish_seconds,
       extract(epoch FROM coalesce(e.committed_at, e.aborted_at, clock_timestamp()) - e.planned_at)::float8 AS seconds,
       o.offsets, CASE WHEN e.kind = 'regular' THEN o.lag_after END AS lag_after, f.longest_latency_seconds
FROM epochline.epochs e
LEFT JOIN LATERAL (
    SELECT * FROM epochline.phases f WHERE (f.pipeline, f.epoch_id) = (e.pipeline, e.epoch_id)) f ON true
CROSS JOIN LATERAL (
    SELECT sum(o.until_offset - o.start_offset)::bigint AS offsets,
           sum(o.last_stable - o.until_offset)::bigint AS lag_after FROM epochline.offsets o
    WHERE (o.pipeline, o.epoch_id) = (e.pipeline, e.epoch_id)) o
WHERE e.pipeline = %(pipeline)s AND (%(before)s::bigint IS NULL OR e.epoch_id < %(before)s)
  AND (%(state)s::text IS NULL OR e.state = CASE %(state)s WHEN 'RECOVERED' THEN 'COMMITTED' ELSE %(state)s END)
  AND (%(state)s::text IS DISTINCT FROM 'RECOVERED' OR e.attempt > 1) AND (%(kind)s::text IS NULL OR e.kind = %(kind)s)
  AND (%(since)s::timestamptz IS NULL OR e.planned_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR e.planned_at < %(until)s)
ORDER BY e.epoch_id DESC LIMIT %(limit)s

-- name: page_summary
-- How long a pipeline's newest committed epochs took and how large they were: least, median, p95, p99 and most, each
-- with the epoch whose value it is. A percentile is the value of its nearest rank. Fewer than 20 values have none.
WITH newest AS (
    SELECT e.epoch_id, e.attempt, e.records_read, e.rows_written,
           extract(epoch FROM e.committed_at - e.planned_at)::float8 AS seconds
    FROM epochline.epochs e WHERE e.pipeline = %(pipeline)s AND e.state = 'COMMITTED'
    ORDER BY e.epoch_id DESC LIMIT %(limit)s)
SELECT s.measure, s.epochs, s.amounts[1] AS least, s.amounts[s.half] AS median,
       CASE WHEN s.epochs >= 20 THEN s.amounts[s.most_of] END AS p95,
       CASE WHEN s.epochs >= 20 THEN s.amounts[s.nearly_all] END AS p99,
       s.amounts[s.epochs] AS most, s.ids[1] AS least_epoch, s.ids[s.half] AS median_epoch,
       s.ids[s.most_of] AS p95_epoch, s.ids[s.nearly_all] AS p99_epoch, s.ids[s.epochs] AS most_epoch
FROM (
    SELECT m.place, m.measure, count(*)::integer AS epochs, ceil(0.5 * count(*))::integer AS half,
           ceil(0.95 * count(*))::integer AS most_of, ceil(0.99 * count(*))::integer AS nearly_all,
           array_agg(m.value ORDER BY m.value, n.epoch_id) AS amounts,
           array_agg(n.epoch_id ORDER BY m.value, n.epoch_id) AS ids
    FROM newest n
    CROSS JOIN LATERAL (VALUES (1, 'seconds', n.seconds), (2, 'records', n.records_read::float8),
                               (3, 'rows', n.rows_written::float8),
                               (4, 'records per second', n.records_read / nullif(n.seconds, 0)),
                               (5, 'attempts', n.attempt::float8)) m (place, measure, value)
    WHERE m.value IS NOT NULL GROUP BY m.place, m.measure) s
ORDER BY s.place

-- name: page_flow
-- The newest committed epochs, the oldest first: records left unread by the plan, records that were written to the topics
-- since the plan before, and both rates in records per second.
WITH newest AS (
    SELECT * FROM (
        SELECT e.epoch_id, e.planned_at, e.records_read, e.kind,
               extract(epoch FROM e.committed_at - e.planned_at)::float8 AS seconds
        FROM epochline.epochs e WHERE e.pipeline = %(pipeline)s AND e.state = 'COMMITTED'
        ORDER BY e.epoch_id DESC LIMIT %(epochs)s) e
    WHERE e.kind = 'regular'),
ends AS (
    SELECT n.epoch_id, o.last_stable - o.until_offset AS lag_after,
           o.last_stable - lag(o.last_stable) OVER (PARTITION BY o.topic_id, o.partition ORDER BY n.epoch_id) AS written
    FROM newest n
    JOIN epochline.offsets o ON o.pipeline = %(pipeline)s AND o.epoch_id = n.epoch_id
    WHERE o.last_stable IS NOT NULL),
sums AS (
    SELECT epoch_id, sum(lag_after)::bigint AS lag_after, sum(written)::bigint AS written FROM ends GROUP BY epoch_id)
SELECT n.epoch_id, n.planned_at, n.records_read, n.seconds, s.lag_after, s.written, g.seconds_between,
       s.written / nullif(g.seconds_between, 0) AS input_rate, n.records_read / nullif(n.seconds, 0) AS process_rate
FROM newest n
LEFT JOIN sums s USING (epoch_id)
JOIN (SELECT epoch_id, extract(epoch FROM planned_at - lag(planned_at) OVER (ORDER BY epoch_id))::float8
          AS seconds_between FROM newest) g USING (epoch_id)
ORDER BY n.epoch_id

-- name: page_partitions
-- Each partition's origin, head and end of the log, the records between head and end, the least time until Kafka may
-- delete one of them because of its age, and the records left unread by the newest plans, the oldest plan first, with the
-- times of those plans.
WITH newest AS (
    SELECT e.epoch_id, e.kind, e.planned_at FROM epochline.epochs e WHERE e.pipeline = %(pipeline)s AND e.state = 'COMMITTED'
    ORDER BY e.epoch_id DESC LIMIT %(epochs)s)
SELECT coalesce(h.topic, l.topic) AS topic, coalesce(h.partition, l.partition) AS partition, h.origin_offset,
       h.next_offset, l.log_start, l.last_stable, l.observed_at, h.epoch_id, h.committed_at, l.unread AS lag,
       h.next_offset < l.log_start AS unread_deleted, l.seconds_to_loss, l.cleanup_policy IS NULL AS retention_unknown,
       l.by_age, l.by_size, l.compacted, o.lags, o.lags_at
FROM (SELECT * FROM epochline.heads WHERE pipeline = %(pipeline)s) h
FULL JOIN (SELECT * FROM epochline.log_ends WHERE pipeline = %(pipeline)s) l USING (topic_id, partition)
LEFT JOIN (
    SELECT o.topic_id, o.partition, array_agg(o.last_stable - o.until_offset ORDER BY o.epoch_id) AS lags,
           array_agg(n.planned_at ORDER BY o.epoch_id) AS lags_at
    FROM newest n JOIN epochline.offsets o ON o.pipeline = %(pipeline)s AND o.epoch_id = n.epoch_id
    WHERE n.kind = 'regular' AND o.last_stable IS NOT NULL GROUP BY 1, 2) o USING (topic_id, partition)
ORDER BY 1, 2

-- name: page_sinks
-- The sinks of a pipeline's last commit and those that owe an epoch: the newest epoch that each shows, and the number
-- of epochs that it does not show yet.
SELECT s.sink, n.epoch_id AS newest_shown, n.rows AS newest_rows, n.shown_at, n.seconds, d.due, d.oldest_due, d.tried_at
FROM (SELECT r.sink FROM epochline.receipts r WHERE r.pipeline = %(pipeline)s AND r.epoch_id = (
          SELECT e.epoch_id FROM epochline.epochs e WHERE e.pipeline = %(pipeline)s AND e.state = 'COMMITTED'
          ORDER BY e.epoch_id DESC LIMIT 1)
      UNION SELECT r.sink FROM epochline.receipts r WHERE r.pipeline = %(pipeline)s AND r.shown_at IS NULL) s
LEFT JOIN LATERAL (
    SELECT r.epoch_id, r.rows, r.shown_at, r.seconds FROM epochline.receipts r
    WHERE r.pipeline = %(pipeline)s AND r.sink = s.sink AND r.shown_at IS NOT NULL
    ORDER BY r.epoch_id DESC LIMIT 1) n ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS due, min(r.epoch_id) AS oldest_due, max(r.tried_at) AS tried_at FROM epochline.receipts r
    WHERE r.pipeline = %(pipeline)s AND r.sink = s.sink AND r.shown_at IS NULL) d
ORDER BY s.sink

-- name: page_state_tables
-- The number of keys of each state table after the newest epoch that wrote state, and the table's bytes on disk now.
SELECT s.state, s.epoch_id, s.keys, s.written_at, z.bytes FROM epochline.state s
LEFT JOIN epochline.state_sizes z
    ON z.schema_name || '.' || z.table_name = CASE WHEN strpos(s.state, '.') > 0 THEN s.state ELSE 'public.' || s.state END
WHERE s.pipeline = %(pipeline)s
  AND s.epoch_id = (SELECT max(epoch_id) FROM epochline.state WHERE pipeline = %(pipeline)s)
ORDER BY s.state

-- name: page_settings
-- The settings of a pipeline's newest epoch, each with the level that set it.
SELECT e.epoch_id, s.key AS setting, s.value ->> 'value' AS value, s.value ->> 'from' AS set_by
FROM (SELECT e.epoch_id, e.settings FROM epochline.epochs e WHERE e.pipeline = %(pipeline)s ORDER BY e.epoch_id DESC LIMIT 1) e
CROSS JOIN LATERAL jsonb_each(e.settings) s ORDER BY s.key

-- name: page_actions
-- What operators last did to a pipeline, with their reasons.
SELECT action_id, action, epoch_id, actor, reason, acted_at FROM epochline.actions
WHERE pipeline = %(pipeline)s AND (%(epoch_id)s::bigint IS NULL OR epoch_id = %(epoch_id)s)
ORDER BY action_id DESC LIMIT %(limit)s

-- name: page_savepoints
-- The savepoints of a pipeline.
SELECT name, epoch_id, keys, made_by, reason, made_at FROM epochline.savepoints
WHERE pipeline = %(pipeline)s ORDER BY made_at DESC, name LIMIT %(limit)s

-- name: page_epoch
-- One epoch in full, with what it reads summed up: the shared offsets are null if its partitions' ranges differ.
SELECT e.*, extract(epoch FROM coalesce(e.committed_at, e.aborted_at, clock_timestamp()) - e.planned_at)::float8
           AS seconds,
       e.lease_until < clock_timestamp() AS lease_expired, p.paused_at, p.paused_by, p.paused_reason, p.paused_command,
       (SELECT c.epoch_id FROM epochline.epochs c
        WHERE c.pipeline = e.pipeline AND c.state = 'COMMITTED' AND c.epoch_id > e.epoch_id
        ORDER BY c.epoch_id LIMIT 1) AS committed_later,
       (SELECT a.error FROM epochline.attempts a
        WHERE (a.pipeline, a.epoch_id, a.attempt) = (e.pipeline, e.epoch_id, e.attempt) AND a.state = 'FAILED')
           AS attempt_error,
       r.partitions, r.offsets, r.shared_start, r.shared_until
FROM epochline.epochs e JOIN epochline.pipelines p USING (pipeline)
CROSS JOIN LATERAL (
    SELECT count(*) AS partitions, coalesce(sum(until_offset - start_offset), 0)::bigint AS offsets,
           CASE WHEN count(DISTINCT (start_offset, until_offset)) = 1 THEN min(start_offset) END AS shared_start,
           CASE WHEN count(DISTINCT (start_offset, until_offset)) = 1 THEN min(until_offset) END AS shared_until
    FROM epochline.offsets WHERE pipeline = e.pipeline AND epoch_id = e.epoch_id) r
WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s

-- name: page_epoch_of_run
-- The newest epoch of a run.
SELECT epoch_id FROM epochline.epochs WHERE pipeline = %(pipeline)s AND dag_id = %(dag_id)s AND run_id = %(run_id)s
ORDER BY epoch_id DESC LIMIT 1

-- name: page_ranges
-- The ranges of an epoch with their counts: offsets = read + offsets without a record, and read = passed + skipped +
-- quarantined (INV-9).
SELECT topic, partition, start_offset, until_offset, until_offset - start_offset AS offsets, records_read,
       records_passed, records_skipped, records_quarantined, until_offset - start_offset - records_read AS invisible,
       oldest_timestamp, newest_timestamp, source_digest, last_stable
FROM epochline.offsets WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s
ORDER BY topic, partition LIMIT %(limit)s

-- name: page_phases
-- The seconds of each phase of an epoch, and how old its records were at the commit.
SELECT wait_seconds, plan_seconds, start_seconds, stage_seconds, seal_seconds, commit_seconds, publish_seconds, whole_seconds,
       interval_seconds, interval_kept, longest_latency_seconds, shortest_latency_seconds
FROM epochline.phases WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s

-- name: page_attempts
-- The attempts of an epoch, with the number of their writes that the database refused.
SELECT attempt, state, run_id, host, started_at, ended_at, rows_staged, fenced_writes, error
FROM epochline.attempts WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s
ORDER BY attempt DESC LIMIT %(limit)s

-- name: page_staged
-- The rows that the last attempt of an epoch staged for each sink (INV-9): by its parts and by its manifest.
SELECT s.sink, s.attempt, s.parts, s.rows, s.parts_found, s.rows_found FROM epochline.staged_rows s
WHERE s.pipeline = %(pipeline)s AND s.epoch_id = %(epoch_id)s
  AND s.attempt = (SELECT max(a.attempt) FROM epochline.attempts a
                   WHERE a.pipeline = %(pipeline)s AND a.epoch_id = %(epoch_id)s)
ORDER BY s.sink

-- name: page_receipts
-- What each sink did with an epoch, and whether Airflow recorded its asset event.
SELECT sink, state, rows, inserted, updated, deleted, superseded, unchanged, due_at, tried_at, shown_at, seconds,
       announced_by, acknowledged_at
FROM epochline.receipts WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s ORDER BY sink

-- name: page_quarantined
-- The places of the first records that an epoch set aside. A reader sees neither bytes nor reasons.
SELECT epoch_id, topic, partition, "offset", record_timestamp, quarantined_at, requeued_by FROM epochline.quarantine
WHERE pipeline = %(pipeline)s AND -epoch_id = -%(epoch_id)s::bigint ORDER BY topic, partition, "offset" LIMIT %(limit)s

-- name: page_quarantine
-- A page of a pipeline's quarantine, the newest epoch first: places and times. The next page begins after the last
-- record of this one. The index is by -epoch_id, so that all four columns ascend.
SELECT generation, epoch_id, topic, partition, "offset", record_timestamp, quarantined_at, requeued_by
FROM epochline.quarantine
WHERE pipeline = %(pipeline)s AND (%(epoch)s::bigint IS NULL OR -epoch_id = -%(epoch)s::bigint)
  AND (%(since)s::timestamptz IS NULL OR quarantined_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR quarantined_at < %(until)s)
  AND (%(after_epoch)s::bigint IS NULL OR (-epoch_id, topic, partition, "offset")
       > (-%(after_epoch)s::bigint, %(after_topic)s::text, %(after_partition)s::integer, %(after_offset)s::bigint))
ORDER BY -epoch_id, topic, partition, "offset" LIMIT %(limit)s

-- name: page_quarantine_inspected
-- The same page with the reason and the first bytes of each record, for the role that may see them.
SELECT generation, epoch_id, topic, partition, "offset", record_timestamp, quarantined_at, requeued_by, reason,
       substring(value FOR %(most_bytes)s) AS value, octet_length(value) AS value_bytes
FROM epochline.quarantine
WHERE pipeline = %(pipeline)s AND (%(epoch)s::bigint IS NULL OR -epoch_id = -%(epoch)s::bigint)
  AND (%(since)s::timestamptz IS NULL OR quarantined_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR quarantined_at < %(until)s)
  AND (%(reason)s::text IS NULL OR reason LIKE %(reason)s)
  AND (%(after_epoch)s::bigint IS NULL OR (-epoch_id, topic, partition, "offset")
       > (-%(after_epoch)s::bigint, %(after_topic)s::text, %(after_partition)s::integer, %(after_offset)s::bigint))
ORDER BY -epoch_id, topic, partition, "offset" LIMIT %(limit)s

-- name: page_quarantine_total
-- The records of the quarantine that a filter chooses, and those of them that were not requeued, counted up to a limit.
SELECT count(*) AS records, count(*) FILTER (WHERE q.requeued_by IS NULL) AS waiting
FROM (SELECT requeued_by FROM epochline.quarantine
      WHERE pipeline = %(pipeline)s AND (%(epoch)s::bigint IS NULL OR -epoch_id = -%(epoch)s::bigint)
        AND (%(since)s::timestamptz IS NULL OR quarantined_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR quarantined_at < %(until)s) LIMIT %(most)s) q

-- name: page_quarantine_reasons
-- The same records by their reason, without the numbers and the values in it, the most frequent one first, for the role
-- that may see reasons. total and waiting_in_all count every reason.
SELECT g.*, sum(g.records) OVER ()::bigint AS total, sum(g.waiting) OVER ()::bigint AS waiting_in_all
FROM (SELECT r.reason, count(*) AS records, count(*) FILTER (WHERE r.requeued_by IS NULL) AS waiting,
             max(r.epoch_id) AS newest_epoch
      FROM (SELECT epoch_id, requeued_by, regexp_replace(regexp_replace(reason, ': .* does not fit ', ': * does not fit '),
                       '''[^'']*''|\m[0-9][0-9.,:]*', '*', 'g') AS reason
            FROM epochline.quarantine
            WHERE pipeline = %(pipeline)s AND (%(epoch)s::bigint IS NULL OR -epoch_id = -%(epoch)s::bigint)
              AND (%(since)s::timestamptz IS NULL OR quarantined_at >= %(since)s)
              AND (%(until)s::timestamptz IS NULL OR quarantined_at < %(until)s)
              AND (%(reason)s::text IS NULL OR reason LIKE %(reason)s)
            ORDER BY -epoch_id LIMIT %(most)s) r
      GROUP BY r.reason) g
ORDER BY g.records DESC, g.reason LIMIT %(limit)s

-- name: page_quarantined_record
-- One quarantined record with its bytes, for the role that may see them. Of key and value, the first bytes.
SELECT q.generation, q.epoch_id, q.topic, q.partition, q."offset", q.record_timestamp, q.quarantined_at,
       q.requeued_by, q.requeued_at, q.reason, substring(q.key FOR %(most_bytes)s) AS key,
       octet_length(q.key) AS key_bytes, substring(q.value FOR %(most_bytes)s) AS value,
       octet_length(q.value) AS value_bytes, q.headers, q.generation = p.generation AS is_current
FROM epochline.quarantine q JOIN epochline.pipelines p USING (pipeline)
WHERE q.pipeline = %(pipeline)s AND -q.epoch_id = -%(epoch)s::bigint AND q.topic = %(topic)s AND q.partition = %(partition)s
  AND q."offset" = %(offset)s

-- name: act_pipeline
-- What the preview of any action on a pipeline needs, and by what the page decides which actions apply.
SELECT p.generation, p.paused_at, p.paused_by, p.paused_reason, p.dropped_at, p.dropped_by, p.dropped_reason,
       u.epoch_id AS unfinished_epoch, u.state AS unfinished_state, u.approval AS unfinished_approval,
       u.attempt, u.run_id,
       u.lease_until < clock_timestamp() AS lease_expired, c.epoch_id AS committed_epoch, a.epoch_id AS aborted_epoch,
       s.due, l.unread_deleted, l.older_records,
       EXISTS (SELECT FROM epochline.savepoints v WHERE v.pipeline = p.pipeline) AS has_savepoints,
       EXISTS (SELECT FROM epochline.quarantine q WHERE q.pipeline = p.pipeline AND q.requeued_by IS NULL) AS has_quarantined
FROM epochline.pipelines p
LEFT JOIN LATERAL (
    SELECT * FROM epochline.epochs e
    WHERE e.pipeline = p.pipeline AND e.state IN ('PLANNED', 'PRE_COMMITTED') LIMIT 1) u ON true
LEFT JOIN LATERAL (
    SELECT e.epoch_id FROM epochline.epochs e WHERE e.pipeline = p.pipeline AND e.state = 'COMMITTED'
    ORDER BY e.epoch_id DESC LIMIT 1) c ON true
LEFT JOIN LATERAL (
    SELECT e.epoch_id FROM epochline.epochs e
    WHERE e.pipeline = p.pipeline AND e.state = 'ABORTED' AND e.epoch_id > coalesce(c.epoch_id, 0)
    ORDER BY e.epoch_id DESC LIMIT 1) a ON true
CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(d.sink, d.epochs) AS due
    FROM (SELECT r.sink, count(*) AS epochs FROM epochline.receipts r
          WHERE r.pipeline = p.pipeline AND r.shown_at IS NULL GROUP BY r.sink) d) s
CROSS JOIN LATERAL (
    SELECT bool_or(l.log_start > l.next_offset) AS unread_deleted, bool_or(l.log_start < h.origin_offset) AS older_records
    FROM epochline.log_ends l LEFT JOIN epochline.heads h USING (pipeline, topic_id, partition)
    WHERE l.pipeline = p.pipeline) l
WHERE p.pipeline = %(pipeline)s

-- name: act_epoch
-- An epoch that may be approved or aborted, with its offsets and the rows that its live attempt staged.
SELECT e.state, e.attempt, e.run_id, e.rows_written, e.approval, e.outside,
       (SELECT coalesce(sum(o.until_offset - o.start_offset), 0)::bigint FROM epochline.offsets o
        WHERE (o.pipeline, o.epoch_id) = (e.pipeline, e.epoch_id)) AS offsets,
       coalesce((SELECT a.rows_staged FROM epochline.attempts a
                 WHERE (a.pipeline, a.epoch_id, a.attempt) = (e.pipeline, e.epoch_id, e.attempt)
                   AND a.state IN ('RUNNING', 'SEALED')), 0) AS rows_staged
FROM epochline.epochs e WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s

-- name: act_quarantine
-- The number of records that would be requeued, by partition. Reads places alone.
SELECT q.topic, q.partition, count(*) AS records
FROM epochline.quarantine q JOIN epochline.pipelines p USING (pipeline)
WHERE q.pipeline = %(pipeline)s AND q.generation = coalesce(%(generation)s::integer, p.generation)
  AND q.requeued_by IS NULL AND (%(epoch)s::bigint IS NULL OR -q.epoch_id = -%(epoch)s::bigint)
  AND (%(topic)s::text IS NULL OR q.topic = %(topic)s)
  AND (%(partition)s::integer IS NULL OR q.partition = %(partition)s)
  AND (%(offset)s::bigint IS NULL OR q."offset" = %(offset)s)
GROUP BY q.topic, q.partition ORDER BY q.topic, q.partition

-- name: act_quarantine_like
-- The number of records that would be requeued, by partition, chosen by their reason as well.
SELECT q.topic, q.partition, count(*) AS records
FROM epochline.quarantine q JOIN epochline.pipelines p USING (pipeline)
WHERE q.pipeline = %(pipeline)s AND q.generation = coalesce(%(generation)s::integer, p.generation)
  AND q.requeued_by IS NULL AND (%(epoch)s::bigint IS NULL OR -q.epoch_id = -%(epoch)s::bigint)
  AND (%(topic)s::text IS NULL OR q.topic = %(topic)s)
  AND (%(partition)s::integer IS NULL OR q.partition = %(partition)s)
  AND (%(offset)s::bigint IS NULL OR q."offset" = %(offset)s) AND q.reason LIKE %(like)s
GROUP BY q.topic, q.partition ORDER BY q.topic, q.partition

-- name: act_savepoint
-- A savepoint, and the committed epochs that a restore to it would undo.
SELECT s.epoch_id, s.made_by, s.reason, u.epochs AS undone, u.rows AS undone_rows
FROM epochline.savepoints s
CROSS JOIN LATERAL (
    SELECT count(*) AS epochs, sum(e.rows_written)::bigint AS rows FROM epochline.epochs e
    WHERE e.pipeline = s.pipeline AND e.epoch_id > s.epoch_id AND e.state = 'COMMITTED' AND e.undone_by IS NULL) u
WHERE s.pipeline = %(pipeline)s AND s.name = %(savepoint)s
