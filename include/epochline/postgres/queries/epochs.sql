-- Pipelines, and the rows of epochs with their ranges, targets and declarations. The clock of the database alone
-- decides about time.

-- name: make_pipeline
-- Create the row of a pipeline.
INSERT INTO epochline.pipeline (pipeline) VALUES (%(pipeline)s) ON CONFLICT DO NOTHING

-- name: lock_pipeline
-- Lock a pipeline, so that its plans wait for each other. Rows that refer to the pipeline can still be written.
SELECT generation, last_epoch_id, cluster_id FROM epochline.pipeline WHERE pipeline = %(pipeline)s FOR NO KEY UPDATE

-- name: pipeline
-- The generation, last epoch id and cluster of a pipeline.
SELECT generation, last_epoch_id, cluster_id FROM epochline.pipeline WHERE pipeline = %(pipeline)s

-- name: remember_cluster
-- Record the Kafka clusters of a pipeline. The caller holds the row's lock and has compared the ones that were known.
UPDATE epochline.pipeline SET cluster_id = %(cluster_id)s WHERE pipeline = %(pipeline)s

-- name: skip_ids
-- Raise the counter of epoch ids, so that no id up to this one is given again.
UPDATE epochline.pipeline SET last_epoch_id = greatest(last_epoch_id, %(epoch_id)s) WHERE pipeline = %(pipeline)s

-- name: next_epoch_id
-- Take the next epoch id of a pipeline.
UPDATE epochline.pipeline SET last_epoch_id = last_epoch_id + 1 WHERE pipeline = %(pipeline)s RETURNING last_epoch_id

-- name: keep_declaration
-- Store a declaration under its hash.
INSERT INTO epochline.declaration (hash, pipeline, body) VALUES (%(hash)s, %(pipeline)s, CAST(%(body)s AS jsonb))
ON CONFLICT DO NOTHING

-- name: insert_epoch
-- Insert a planned epoch.
INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, kind, dag_id, run_id, host, declaration_hash,
                             record_limit, note, lease_until, interval_start, interval_end, replays, plan_seconds)
VALUES (%(pipeline)s, %(epoch_id)s, %(generation)s, 'PLANNED', %(kind)s, %(dag_id)s, %(run_id)s, %(host)s, %(hash)s,
        %(record_limit)s, %(note)s, clock_timestamp() + make_interval(secs => %(lease)s), %(interval_start)s,
        %(interval_end)s, %(replays)s, %(plan_seconds)s)

-- name: insert_planned_range
-- Insert the planned range of one partition, with the end of its log, as far as the ledger knows it.
INSERT INTO epochline.planned_range (pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset,
                                     leader_epoch, last_stable)
SELECT %(pipeline)s, %(epoch_id)s, %(topic)s, %(topic_id)s, %(partition)s, %(start_offset)s, %(until_offset)s,
       %(leader_epoch)s, (SELECT l.last_stable FROM epochline.log_end l
                          WHERE (l.pipeline, l.topic_id, l.partition) = (%(pipeline)s, %(topic_id)s, %(partition)s))

-- name: keep_planned_target
-- Store the columns of a target as the plan found them.
INSERT INTO epochline.planned_target (pipeline, epoch_id, sink, columns)
VALUES (%(pipeline)s, %(epoch_id)s, %(sink)s, CAST(%(columns)s AS jsonb))
ON CONFLICT (pipeline, epoch_id, sink) DO UPDATE SET columns = EXCLUDED.columns

-- name: delete_planned_targets
-- Delete the stored columns of an epoch's targets.
DELETE FROM epochline.planned_target WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s

-- name: reopen_epoch
-- Plan an aborted epoch again, with its old ranges and the current declaration.
UPDATE epochline.epoch
SET state = 'PLANNED', aborted_at = NULL, error = NULL, error_class = NULL, error_command = NULL, approval = NULL,
    judged_attempt = NULL, outside = NULL, measured = NULL, decided_by = NULL, decided_at = NULL, decided_reason = NULL,
    declaration_hash = %(hash)s, attempts_before = attempt, lease_until = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND state = 'ABORTED'

-- name: epoch
-- One epoch.
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s

-- name: lock_epoch
-- Lock one epoch.
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s FOR UPDATE

-- name: unfinished_epoch
-- The epoch of a pipeline that is planned or pre-committed; at most one exists.
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND state IN ('PLANNED', 'PRE_COMMITTED')

-- name: newest_epoch_of_run
-- The newest epoch that a run planned.
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND dag_id = %(dag_id)s AND run_id = %(run_id)s ORDER BY epoch_id DESC LIMIT 1

-- name: later_epochs
-- The epochs after this one that are not aborted.
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND epoch_id > %(epoch_id)s AND state <> 'ABORTED' ORDER BY epoch_id

-- name: newest_committed_epoch
-- The newest committed epoch that the pipeline's own schedule planned.
SELECT *, false AS lease_expired FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' AND kind = 'regular'
ORDER BY epoch_id DESC LIMIT 1

-- name: stale_epochs
-- Planned epochs of every pipeline whose lease expired some time ago.
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE state = 'PLANNED' AND lease_until < clock_timestamp() - make_interval(secs => %(after)s)
ORDER BY pipeline, epoch_id

-- name: renew_lease
-- Extend the lease of an epoch, as long as this attempt is its live one.
UPDATE epochline.epoch e SET lease_until = clock_timestamp() + make_interval(secs => %(lease)s)
FROM epochline.attempt a
WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s AND e.state = 'PLANNED' AND e.attempt = %(attempt)s
  AND (a.pipeline, a.epoch_id, a.attempt) = (e.pipeline, e.epoch_id, e.attempt) AND a.fenced_at IS NULL

-- name: planned_ranges
-- The planned ranges of an epoch.
SELECT topic, topic_id, partition, records_read, start_offset, until_offset, leader_epoch FROM epochline.planned_range
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s ORDER BY topic, partition

-- name: planned_targets
-- The columns of each target, as the plan found them.
SELECT sink, columns FROM epochline.planned_target WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s

-- name: declaration_of_epoch
-- The declaration with which an epoch was planned.
SELECT d.body FROM epochline.epoch e JOIN epochline.declaration d ON d.hash = e.declaration_hash
WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s

-- name: last_declaration
-- The declaration of the last committed epoch.
SELECT d.body FROM epochline.epoch e JOIN epochline.declaration d ON d.hash = e.declaration_hash
WHERE e.pipeline = %(pipeline)s AND e.state = 'COMMITTED' ORDER BY e.epoch_id DESC LIMIT 1

-- name: declarations
-- The declarations of all committed epochs, the newest first.
SELECT d.body FROM epochline.declaration d
JOIN (SELECT declaration_hash, max(epoch_id) AS last_epoch FROM epochline.epoch
      WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' GROUP BY declaration_hash) e ON e.declaration_hash = d.hash
ORDER BY e.last_epoch DESC

-- name: last_committed
-- The last committed epoch that was not undone.
SELECT max(epoch_id) FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' AND undone_by IS NULL

-- name: mark_pre_committed
-- Seal an epoch: store its counts, the verdict on its live attempt, and that attempt's watermark.
UPDATE epochline.epoch
SET approval = %(approval)s, judged_attempt = CASE WHEN %(approval)s IS NOT NULL THEN attempt END, outside = %(outside)s,
    measured = CAST(%(measured)s AS jsonb), state = 'PRE_COMMITTED', pre_committed_at = clock_timestamp(), records_read = %(read)s, records_passed = %(passed)s,
    records_skipped = %(skipped)s, records_quarantined = %(quarantined)s,
    (watermark, records_too_late) = (SELECT a.watermark, a.records_too_late FROM epochline.attempt a
                                     WHERE (a.pipeline, a.epoch_id) = (%(pipeline)s, %(epoch_id)s)
                                       AND a.fenced_at IS NULL)
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND state = 'PLANNED'

-- name: count_range
-- Store the counts, the span of Kafka's timestamps and the newest event time of one partition. Event time does not go
-- back.
UPDATE epochline.planned_range
SET records_read = %(received)s, records_passed = %(passed)s, records_skipped = %(skipped)s,
    records_quarantined = %(quarantined)s, first_offset = %(first_offset)s, last_offset = %(last_offset)s,
    source_digest = %(digest)s, oldest_timestamp = %(oldest_timestamp)s, newest_timestamp = %(newest_timestamp)s,
    newest_event_time = CASE WHEN CAST(%(newest)s AS timestamptz) IS NOT NULL THEN
        greatest(%(newest)s, (SELECT t.newest_event_time FROM epochline.event_times t
                              WHERE t.pipeline = %(pipeline)s AND t.topic_id = planned_range.topic_id
                                AND t.partition = %(partition)s)) END
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND topic = %(topic)s AND partition = %(partition)s

-- name: approve_epoch
-- Approve a sealed epoch that awaits it, for the attempt that was judged.
UPDATE epochline.epoch
SET approval = 'approved', decided_by = %(by)s, decided_at = clock_timestamp(), decided_reason = %(reason)s
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND state = 'PRE_COMMITTED' AND approval = 'awaited'
  AND judged_attempt = %(attempt)s

-- name: measured_before
-- What the newest committed epochs measured, without those that are no share of the stream.
SELECT CAST(measured ->> %(key)s AS numeric) FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' AND undone_by IS NULL AND measured ? %(key)s
  AND kind IN ('regular', 'backfill', 'extend_back')
ORDER BY epoch_id DESC LIMIT %(epochs)s

-- name: mark_committed
-- Mark a sealed epoch as committed.
UPDATE epochline.epoch
SET state = 'COMMITTED', committed_at = clock_timestamp(), rows_written = %(rows_written)s, error = NULL,
    error_class = NULL, error_command = NULL
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND state = 'PRE_COMMITTED'

-- name: mark_aborted
-- Mark an unfinished epoch as aborted. It keeps the class and the command of its newest attempt's error.
UPDATE epochline.epoch e
SET state = 'ABORTED', aborted_at = clock_timestamp(), error = %(reason)s, aborts = aborts + 1,
    (error_class, error_command) = (
        SELECT a.error_class, a.error_command FROM epochline.attempt a
        WHERE (a.pipeline, a.epoch_id, a.attempt) = (e.pipeline, e.epoch_id, e.attempt))
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND state IN ('PLANNED', 'PRE_COMMITTED')

-- name: mark_undone
-- Mark committed epochs as undone by a restore or a replay.
UPDATE epochline.epoch SET undone_by = %(by)s
WHERE pipeline = %(pipeline)s AND epoch_id = ANY (%(epochs)s) AND undone_by IS NULL

-- name: last_epoch_of_earlier_generations
-- The last epoch of all earlier generations, or 0. The rows of these epochs come from logs whose offsets cannot be
-- compared with those of this generation.
SELECT coalesce(max(epoch_id), 0) FROM epochline.epoch WHERE pipeline = %(pipeline)s AND generation < %(generation)s

-- name: now
-- The time at which this transaction started.
SELECT now()
