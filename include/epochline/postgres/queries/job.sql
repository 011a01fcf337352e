-- What a Spark job reads and writes. A statement that makes rows count reads only the locked row of the attempt: FOR
-- KEY SHARE waits for a seal or a fence in progress and then sees the row as they leave it. A joined row would come from
-- the older snapshot.

-- name: plan_of_attempt
-- Why an attempt is not live, or NULL, with the declaration and the settings of the plan.
SELECT CASE WHEN e.attempt <> a.attempt THEN 'is followed by attempt ' || e.attempt
            WHEN a.fenced_at IS NOT NULL THEN 'is fenced'
            WHEN a.sealed_at IS NOT NULL THEN 'is sealed'
            WHEN a.job_ended_at IS NOT NULL THEN 'its job has already ended'
            WHEN e.state <> 'PLANNED' THEN 'its epoch is ' || e.state END,
       e.generation, a.attempt_id, a.token::text, e.kind, d.body::text, e.settings, e.planned_at, e.unread
FROM epochline.attempt a
JOIN epochline.epoch e USING (pipeline, epoch_id)
JOIN epochline.declaration d ON d.hash = e.declaration_hash
WHERE a.pipeline = %(pipeline)s AND a.epoch_id = %(epoch_id)s AND a.attempt = %(attempt)s

-- name: refused_records
-- Records that a target refused and that this epoch sets aside. A requeue epoch has no planned range: it tries
-- earlier records again, and sets aside only those that it met itself.
SELECT f.topic, f.partition, f."offset", f.reason
FROM epochline.refused_row f
JOIN epochline.epoch e ON (e.pipeline, e.epoch_id) = (f.pipeline, f.epoch_id)
WHERE f.pipeline = %(pipeline)s AND f."offset" IS NOT NULL
  AND (f.epoch_id = %(epoch_id)s OR e.kind <> 'requeue' AND f.epoch_id < %(epoch_id)s
       AND f.generation = %(generation)s AND EXISTS (
       SELECT FROM epochline.planned_range r
       WHERE (r.pipeline, r.epoch_id) = (f.pipeline, %(epoch_id)s)
         AND (r.topic_id, r.partition) = (f.topic_id, f.partition)
         AND f."offset" >= r.start_offset AND f."offset" < r.until_offset))
ORDER BY f.refused_id

-- name: claimed_partitions
-- The partitions of the records that an epoch claimed.
SELECT DISTINCT q.topic, q.topic_id, q.partition
FROM epochline.requeue_claim c
JOIN epochline.quarantined_record q USING (pipeline, generation, topic_id, partition, "offset")
WHERE c.pipeline = %(pipeline)s AND c.epoch_id = %(epoch_id)s ORDER BY 1, 3

-- name: claimed_records
-- The claimed records of one partition.
SELECT q.topic, q.partition, q."offset", q.record_timestamp, q.key, q.value, q.headers
FROM epochline.requeue_claim c
JOIN epochline.quarantined_record q USING (pipeline, generation, topic_id, partition, "offset")
WHERE c.pipeline = %(pipeline)s AND c.epoch_id = %(epoch_id)s AND c.topic_id = %(topic_id)s
  AND c.partition = %(partition)s
ORDER BY q."offset"

-- name: insert_part
-- Insert a part, if the attempt is neither fenced nor sealed; the counts of a parse task only until its job has ended.
INSERT INTO epochline.part (attempt_id, sink, write_id, spark_partition, rows, message)
SELECT attempt_id, %(sink)s, %(write_id)s::uuid, %(spark_partition)s, %(rows)s, %(message)s::jsonb
FROM epochline.attempt WHERE attempt_id = %(attempt_id)s AND fenced_at IS NULL AND sealed_at IS NULL
  AND (%(sink)s <> %(parse)s OR job_ended_at IS NULL)
FOR KEY SHARE

-- name: first_parts
-- The parts that an earlier try of a Spark partition committed.
SELECT sink, rows, message FROM epochline.part
WHERE attempt_id = %(attempt_id)s AND write_id = %(write_id)s::uuid AND spark_partition = %(spark_partition)s

-- name: insert_manifest
-- Insert the manifest of one sink, if the attempt is neither fenced nor sealed.
INSERT INTO epochline.manifest (attempt_id, sink, write_id, parts, rows)
SELECT attempt_id, %(sink)s, %(write_id)s::uuid, %(parts)s, %(rows)s
FROM epochline.attempt WHERE attempt_id = %(attempt_id)s AND fenced_at IS NULL AND sealed_at IS NULL
FOR KEY SHARE

-- name: end_job
-- Write the end mark of a job, if the attempt is neither fenced nor sealed.
UPDATE epochline.attempt SET job_ended_at = now(), watermark = %(watermark)s, records_too_late = %(too_late)s
WHERE attempt_id = %(attempt_id)s AND fenced_at IS NULL AND sealed_at IS NULL

-- name: delete_parse_parts
-- Delete the counts of the parse tasks.
DELETE FROM epochline.part WHERE attempt_id = %(attempt_id)s AND sink = %(sink)s

-- name: record_error
-- Store why a job failed, unless it ended or the attempt is fenced or sealed.
UPDATE epochline.attempt
SET error = coalesce(error, %(error)s), error_class = coalesce(error_class, %(error_class)s),
    error_command = coalesce(error_command, %(command)s), failed_at = coalesce(failed_at, clock_timestamp())
WHERE attempt_id = %(attempt_id)s AND fenced_at IS NULL AND sealed_at IS NULL AND job_ended_at IS NULL

-- name: attempt_is_live
-- Whether an attempt is neither fenced nor sealed.
SELECT fenced_at IS NULL AND sealed_at IS NULL FROM epochline.attempt WHERE attempt_id = %(attempt_id)s

-- name: record_fenced_write
-- Record a refused write, once per database session.
INSERT INTO epochline.fenced_write (attempt_id, backend_pid, host, what)
VALUES (%(attempt_id)s, %(backend_pid)s, %(host)s, %(what)s) ON CONFLICT (attempt_id, backend_pid) DO NOTHING
