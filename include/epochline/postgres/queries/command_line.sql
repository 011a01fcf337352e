-- What the command line reads. Nothing here changes anything.

-- name: last_epochs
-- The newest epochs of one pipeline or of all.
SELECT e.pipeline, e.epoch_id, e.state, e.attempt, e.kind, e.dag_id, e.run_id, e.records_read, e.records_passed,
       e.records_skipped, e.records_quarantined, e.rows_written, e.planned_at, e.pre_committed_at, e.committed_at,
       e.aborted_at,
       extract(epoch FROM coalesce(e.committed_at, e.aborted_at, clock_timestamp()) - e.planned_at)::float8 AS seconds,
       (SELECT sum(r.until_offset - r.start_offset)::bigint FROM epochline.planned_range r
        WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) AS offsets,
       e.watermark, e.records_too_late, e.undone_by, e.replays, e.note, e.error,
       (SELECT p.longest_latency_seconds FROM epochline.phases p
        WHERE (p.pipeline, p.epoch_id) = (e.pipeline, e.epoch_id)) AS longest_latency_seconds
FROM epochline.epoch e
WHERE (%(pipeline)s IS NULL OR e.pipeline = %(pipeline)s) AND (%(epoch)s IS NULL OR e.epoch_id = %(epoch)s)
ORDER BY e.planned_at DESC, e.pipeline, e.epoch_id DESC LIMIT %(limit)s

-- name: ranges_of_epoch
-- The planned ranges of an epoch, with their counts.
SELECT topic, partition, start_offset, until_offset, records_read, records_passed, records_skipped,
       records_quarantined
FROM epochline.offsets WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s ORDER BY topic, partition

-- name: phases_of_epoch
-- The seconds of each phase of an epoch, and how old its records were at the commit.
SELECT wait_seconds, start_seconds, stage_seconds, seal_seconds, commit_seconds, publish_seconds,
       longest_latency_seconds, shortest_latency_seconds
FROM epochline.phases WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s

-- name: attempts_of_epoch
-- The attempts of an epoch.
SELECT attempt, state, run_id, host, started_at, ended_at, rows_staged, fenced_writes, error
FROM epochline.attempts WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s ORDER BY attempt

-- name: quarantined_of_epoch
-- The number of records that an epoch set aside.
SELECT count(*) AS records FROM epochline.quarantine WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s

-- name: lease_of_unfinished_epoch
-- The unfinished epoch of a pipeline, and whether its lease is alive.
SELECT epoch_id, state, attempt, dag_id, run_id, host, lease_until > clock_timestamp() AS lease_alive,
       extract(epoch FROM lease_until - clock_timestamp())::float8 AS lease_seconds
FROM epochline.epoch WHERE pipeline = %(pipeline)s AND state IN ('PLANNED', 'PRE_COMMITTED')

-- name: newest_declaration
-- The declaration of the newest epoch.
SELECT e.epoch_id, e.declaration_hash, d.body
FROM epochline.epoch e JOIN epochline.declaration d ON d.hash = e.declaration_hash
WHERE e.pipeline = %(pipeline)s ORDER BY e.epoch_id DESC LIMIT 1

-- name: newest_stored_declaration
-- The declaration of the newest epoch, as text.
SELECT d.body::text AS body
FROM epochline.epoch e JOIN epochline.declaration d ON d.hash = e.declaration_hash
WHERE e.pipeline = %(pipeline)s ORDER BY e.epoch_id DESC LIMIT 1

-- name: pipelines
-- The pipelines that the ledger knows.
SELECT pipeline FROM epochline.pipeline ORDER BY pipeline

-- name: heads_with_ages
-- The head of each partition, and the seconds since its last commit.
SELECT topic, topic_id, partition, origin_offset, next_offset, epoch_id,
       extract(epoch FROM clock_timestamp() - committed_at)::float8 AS seconds
FROM epochline.heads WHERE pipeline = %(pipeline)s ORDER BY topic, partition

-- name: epoch_of_run
-- The newest epoch of a run.
SELECT epoch_id, state, attempt, error, records_read, records_passed, records_skipped, records_quarantined,
       rows_written, committed_at, run_id
FROM epochline.epoch WHERE pipeline = %(pipeline)s AND dag_id = %(dag_id)s AND run_id = %(run_id)s
ORDER BY epoch_id DESC LIMIT 1

-- name: newest_epoch_id
-- The id of the newest epoch; 0 before the first one.
SELECT coalesce(max(epoch_id), 0) AS epoch_id FROM epochline.epoch WHERE pipeline = %(pipeline)s

-- name: epoch_committed_after
-- The newest committed epoch of any run after a given epoch.
SELECT epoch_id, state, attempt, error, records_read, records_passed, records_skipped, records_quarantined,
       rows_written, committed_at, run_id
FROM epochline.epoch WHERE pipeline = %(pipeline)s AND epoch_id > %(epoch_id)s AND state = 'COMMITTED'
ORDER BY epoch_id DESC LIMIT 1

-- name: outcome_of_epoch
-- The state of an epoch.
SELECT state, attempt, error, committed_at FROM epochline.epoch WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s

-- name: running_attempt
-- The attempt whose job is running.
SELECT a.attempt_id, a.epoch_id, a.attempt, e.run_id,
       (SELECT sum(r.until_offset - r.start_offset)::bigint FROM epochline.planned_range r
        WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) AS planned
FROM epochline.epoch e JOIN epochline.attempt a USING (pipeline, epoch_id, attempt)
WHERE e.pipeline = %(pipeline)s AND e.state = 'PLANNED' AND a.fenced_at IS NULL AND a.sealed_at IS NULL
  AND a.job_ended_at IS NULL

-- name: staged_by_attempt
-- The parts, rows and received records of an attempt, by sink.
SELECT p.sink, count(*) AS parts, sum(p.rows)::bigint AS rows,
       (SELECT sum((seen ->> 'received')::bigint)::bigint FROM epochline.part q,
               jsonb_array_elements(q.message -> 'seen') seen
        WHERE q.attempt_id = %(attempt_id)s AND q.sink = p.sink) AS received
FROM epochline.part p WHERE p.attempt_id = %(attempt_id)s GROUP BY p.sink ORDER BY p.sink

-- name: attempt_is_open
-- Whether an attempt may still insert parts and its driver has written no manifest.
SELECT job_ended_at IS NULL AND sealed_at IS NULL AND fenced_at IS NULL
       AND NOT EXISTS (SELECT FROM epochline.manifest m WHERE m.attempt_id = a.attempt_id) AS open
FROM epochline.attempt a WHERE attempt_id = %(attempt_id)s

-- name: any_part
-- One part of an attempt, if there is any.
SELECT FROM epochline.part WHERE attempt_id = %(attempt_id)s LIMIT 1

-- name: fenced_writes
-- The refused writes of an attempt.
SELECT backend_pid, host, what, refused_at FROM epochline.fenced_write WHERE attempt_id = %(attempt_id)s
ORDER BY refused_at
