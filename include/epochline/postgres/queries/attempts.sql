-- Attempts, their staging tables and parts.

-- name: insert_attempt
-- Insert an attempt of an epoch.
INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host)
VALUES (%(pipeline)s, %(epoch_id)s, %(attempt)s, %(dag_id)s, %(run_id)s, %(host)s)
RETURNING *, (SELECT generation FROM epochline.epoch e WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s)

-- name: count_attempt
-- Store the number of the newest attempt in its epoch.
UPDATE epochline.epoch SET attempt = %(attempt)s, host = %(host)s
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s

-- name: register_staging
-- Record a staging table of an attempt.
INSERT INTO epochline.staging (attempt_id, sink, table_name) VALUES (%(attempt_id)s, %(sink)s, %(table_name)s)

-- name: live_attempt
-- The attempt of an epoch that is not fenced.
SELECT a.*, e.generation FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE a.pipeline = %(pipeline)s AND a.epoch_id = %(epoch_id)s AND a.fenced_at IS NULL

-- name: committed_token
-- The token of the attempt that an epoch committed.
SELECT a.token FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE a.pipeline = %(pipeline)s AND a.epoch_id = %(epoch_id)s AND a.fenced_at IS NULL AND e.state = 'COMMITTED'

-- name: lock_attempt
-- Lock an attempt: wait for every writer that holds the row FOR KEY SHARE, and block new ones.
SELECT a.*, (SELECT generation FROM epochline.epoch e WHERE e.pipeline = a.pipeline AND e.epoch_id = a.epoch_id)
FROM epochline.attempt a WHERE a.attempt_id = %(attempt_id)s FOR UPDATE

-- name: fence_attempt
-- Fence an attempt: from now on the database refuses its writes (INV-4).
UPDATE epochline.attempt
SET fenced_at = clock_timestamp(), ended_at = coalesce(ended_at, clock_timestamp()), error = concat_ws('; ', error, %(reason)s)
WHERE attempt_id = %(attempt_id)s AND fenced_at IS NULL

-- name: note_attempt_error
-- Add to what is known of an attempt's failure, once: a repeat that fails in the same way adds nothing.
UPDATE epochline.attempt
SET error = left(concat_ws('; ', error, %(error)s), 8000), error_class = coalesce(error_class, %(error_class)s),
    error_command = coalesce(error_command, %(command)s), failed_at = coalesce(failed_at, clock_timestamp())
WHERE attempt_id = %(attempt_id)s AND fenced_at IS NULL AND coalesce(position(%(error)s IN error), 0) = 0

-- name: seal_attempt
-- Seal an attempt: from now on the database accepts no more parts.
UPDATE epochline.attempt SET sealed_at = clock_timestamp(), rows_staged = %(rows_staged)s
WHERE attempt_id = %(attempt_id)s AND fenced_at IS NULL AND sealed_at IS NULL

-- name: finish_attempt
-- Record that an attempt was committed.
UPDATE epochline.attempt SET ended_at = clock_timestamp() WHERE attempt_id = %(attempt_id)s

-- name: manifests
-- What the driver of an attempt counted, by sink.
SELECT sink, write_id, parts, rows, body FROM epochline.manifest WHERE attempt_id = %(attempt_id)s ORDER BY sink

-- name: part_sums
-- The number of parts and rows of an attempt, by sink and write.
SELECT sink, write_id, count(*) AS parts, sum(rows)::bigint AS rows FROM epochline.part
WHERE attempt_id = %(attempt_id)s GROUP BY sink, write_id ORDER BY sink, write_id

-- name: part_messages
-- The messages of the parts of one sink. The quarantine's parts carry the counts of received records, because every
-- record passes there once.
SELECT spark_partition, rows, message FROM epochline.part WHERE attempt_id = %(attempt_id)s AND sink = %(sink)s
ORDER BY spark_partition

-- name: end_sessions
-- End the sessions that write an attempt's staging tables, and record each. They are found by their locks: behind a
-- pooler, a session with the attempt's name may serve another client by now.
WITH writing AS (
    SELECT DISTINCT l.pid FROM epochline.staging s
    JOIN pg_class c ON c.relname = s.table_name AND c.relnamespace = to_regnamespace('epochline_staging')
    JOIN pg_locks l ON l.locktype = 'relation' AND l.relation = c.oid AND l.mode = 'RowExclusiveLock' AND l.granted
    JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
    WHERE s.attempt_id = %(attempt_id)s AND s.dropped_at IS NULL AND l.pid <> pg_backend_pid()
), ended AS (
    SELECT pid, pg_terminate_backend(pid) FROM writing
)
INSERT INTO epochline.fenced_write (attempt_id, backend_pid, host, what)
SELECT %(attempt_id)s, pid, %(host)s, 'its session was ended' FROM ended
ON CONFLICT DO NOTHING

-- name: left_over_attempts
-- Attempts that are over and still have staging tables.
SELECT a.*, e.generation FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE a.pipeline = %(pipeline)s AND (a.fenced_at IS NOT NULL OR e.state IN ('COMMITTED', 'ABORTED'))
  AND EXISTS (SELECT FROM epochline.staging s WHERE s.attempt_id = a.attempt_id AND s.dropped_at IS NULL)
ORDER BY a.attempt_id

-- name: staging_tables
-- The staging tables of an attempt that are not dropped.
SELECT table_name FROM epochline.staging WHERE attempt_id = %(attempt_id)s AND dropped_at IS NULL ORDER BY table_name

-- name: staging_dropped
-- Record that the staging tables of an attempt are dropped.
UPDATE epochline.staging SET dropped_at = clock_timestamp() WHERE attempt_id = %(attempt_id)s AND dropped_at IS NULL

-- name: unexplained_staging
-- Tables in the staging schema that no attempt registered.
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'epochline_staging' AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (SELECT FROM epochline.staging s WHERE s.table_name = c.relname AND s.dropped_at IS NULL)
ORDER BY c.relname

-- name: keep_sealed
-- Store in the manifest what an external sink's seal left for its commit.
UPDATE epochline.manifest SET body = CAST(%(body)s AS jsonb) WHERE attempt_id = %(attempt_id)s AND sink = %(sink)s

-- name: rows_sealed
-- The number of rows that these epochs sealed, by sink, without those that their receipts count as unchanged: a skipped
-- repeat wrote nothing.
SELECT m.sink, sum(m.rows - coalesce(r.unchanged, 0))::bigint AS rows
FROM epochline.manifest m JOIN epochline.attempt a USING (attempt_id)
LEFT JOIN epochline.receipt r ON (r.attempt_id, r.sink) = (m.attempt_id, m.sink)
WHERE a.pipeline = %(pipeline)s AND a.epoch_id = ANY (%(epochs)s) AND a.fenced_at IS NULL GROUP BY m.sink

-- name: keep_refused_rows
-- Record rows that staging or a target refused, a record once for each attempt. The topic id comes from the planned
-- range, or from the claim if the epoch requeues records.
INSERT INTO epochline.refused_row (pipeline, epoch_id, attempt, generation, sink, topic, topic_id, partition, "offset",
                                   "row", reason)
SELECT e.pipeline, e.epoch_id, a.attempt, e.generation, f.sink, f.topic, (
           SELECT topic_id FROM epochline.planned_range r
           WHERE (r.pipeline, r.epoch_id, r.topic, r.partition) = (e.pipeline, e.epoch_id, f.topic, f.partition)
           UNION
           SELECT q.topic_id FROM epochline.requeue_claim c
           JOIN epochline.quarantined_record q USING (pipeline, generation, topic_id, partition, "offset")
           WHERE (c.pipeline, c.epoch_id) = (e.pipeline, e.epoch_id)
             AND (q.topic, q.partition, q."offset") = (f.topic, f.partition, f."offset")),
       f.partition, f."offset", CAST(f."row" AS jsonb), f.reason
FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
CROSS JOIN unnest(CAST(%(sinks)s AS text[]), CAST(%(topics)s AS text[]), CAST(%(partitions)s AS integer[]),
                  CAST(%(offsets)s AS bigint[]), CAST(%(rows)s AS text[]), CAST(%(reasons)s AS text[]))
    WITH ORDINALITY AS f (sink, topic, partition, "offset", "row", reason, turn)
WHERE a.attempt_id = %(attempt_id)s AND a.fenced_at IS NULL AND a.sealed_at IS NULL
  AND NOT EXISTS (
      SELECT FROM epochline.refused_row k
      WHERE (k.pipeline, k.epoch_id, k.attempt) = (a.pipeline, a.epoch_id, a.attempt)
        AND (k.topic, k.partition, k."offset") = (f.topic, f.partition, f."offset"))
ORDER BY f.turn
