-- What the janitor deletes by age, and what an operator erases.

-- name: retentions
-- The retention of each pipeline, in seconds: that of its newest epoch.
SELECT p.pipeline, r.retention
FROM epochline.pipeline p CROSS JOIN LATERAL (
    SELECT e.settings #> '{retention,value}' AS retention FROM epochline.epoch e
    WHERE e.pipeline = p.pipeline ORDER BY e.epoch_id DESC LIMIT 1) r
WHERE r.retention IS NOT NULL AND r.retention NOT IN ('{}', 'null') ORDER BY p.pipeline

-- name: expire_quarantined
-- Erase the bytes of old quarantined records, except those that an unfinished epoch reads again.
UPDATE epochline.quarantined_record q
SET key = NULL, value = NULL, headers = NULL, erased_at = clock_timestamp(), reason = %(reason)s,
    requeued_by = coalesce(q.requeued_by, q.epoch_id), requeued_at = coalesce(q.requeued_at, clock_timestamp())
FROM (SELECT k.ctid FROM epochline.quarantined_record k
      WHERE k.pipeline = %(pipeline)s AND k.erased_at IS NULL
        AND k.quarantined_at < clock_timestamp() - make_interval(secs => %(age)s)
        AND NOT EXISTS (
            SELECT FROM epochline.requeue_claim c JOIN epochline.epoch e USING (pipeline, epoch_id)
            WHERE (c.pipeline, c.generation, c.topic_id, c.partition, c."offset")
                = (k.pipeline, k.generation, k.topic_id, k.partition, k."offset")
              AND e.state IN ('PLANNED', 'PRE_COMMITTED'))
      ORDER BY k.quarantined_at LIMIT %(at_most)s) old
WHERE q.ctid = old.ctid

-- name: old_images
-- Before-images of epochs that were committed long ago.
SELECT b.sink, b.epoch_id, b.table_name FROM epochline.before_image b JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE b.pipeline = %(pipeline)s AND b.erased_at IS NULL
  AND e.committed_at < clock_timestamp() - make_interval(secs => %(age)s)
ORDER BY b.epoch_id LIMIT %(at_most)s

-- name: image_erased
-- Record that the before-images of an epoch in a sink were dropped for their age.
UPDATE epochline.before_image SET erased_at = clock_timestamp()
WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND epoch_id = %(epoch_id)s

-- name: erased_images
-- Epochs of which the before-images in a sink were dropped for their age.
SELECT epoch_id, erased_at FROM epochline.before_image
WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND erased_at IS NOT NULL ORDER BY epoch_id

-- name: sinks_of_pipeline
-- The sinks that epochs of a pipeline wrote.
SELECT DISTINCT sink FROM epochline.receipt WHERE pipeline = %(pipeline)s ORDER BY sink

-- name: expire_ledger
-- Delete the rows about parts and staging of attempts whose epochs ended long ago, are shown everywhere, and are older than
-- the newest committed epoch; and the rows that targets refused of such epochs. Returns the number of attempts.
WITH old AS (
    SELECT a.attempt_id, a.epoch_id FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
    WHERE a.pipeline = %(pipeline)s AND a.parts_deleted_at IS NULL AND e.state IN ('COMMITTED', 'ABORTED')
      AND coalesce(e.committed_at, e.aborted_at) < clock_timestamp() - make_interval(secs => %(age)s)
      AND e.epoch_id < (SELECT max(c.epoch_id) FROM epochline.epoch c
                        WHERE c.pipeline = %(pipeline)s AND c.state = 'COMMITTED')
      AND NOT EXISTS (SELECT FROM epochline.receipt r
                      WHERE (r.pipeline, r.epoch_id) = (a.pipeline, a.epoch_id) AND r.shown_at IS NULL)
      AND NOT EXISTS (SELECT FROM epochline.staging s WHERE s.attempt_id = a.attempt_id AND s.dropped_at IS NULL)
    ORDER BY a.epoch_id LIMIT %(at_most)s
), parts AS (
    DELETE FROM epochline.part p USING old WHERE p.attempt_id = old.attempt_id RETURNING p.attempt_id, p.rows
), staging AS (
    DELETE FROM epochline.staging s USING old WHERE s.attempt_id = old.attempt_id
), refused AS (
    DELETE FROM epochline.refused_row f USING old WHERE f.pipeline = %(pipeline)s AND f.epoch_id = old.epoch_id
)
UPDATE epochline.attempt a SET parts_deleted_at = clock_timestamp(),
    rows_staged = coalesce(a.rows_staged, (SELECT sum(p.rows) FROM parts p WHERE p.attempt_id = a.attempt_id), 0)
FROM old WHERE a.attempt_id = old.attempt_id

-- name: allow_erasing
-- Let this transaction change and delete refused rows.
SELECT set_config('epochline.erasing', 'on', true)

-- name: records_with_bytes
-- The next page of a pipeline's quarantined records that have their bytes.
SELECT generation, topic, topic_id, partition, "offset", record_timestamp, key, value, headers, reason
FROM epochline.quarantined_record
WHERE pipeline = %(pipeline)s AND erased_at IS NULL
  AND (generation, topic_id, partition, "offset") > (%(generation)s, %(topic_id)s, %(partition)s, %(offset)s)
ORDER BY generation, topic_id, partition, "offset" LIMIT %(at_most)s

-- name: images_of_pipeline
-- The before-images of a pipeline whose tables are there.
SELECT sink, table_name FROM epochline.before_image
WHERE pipeline = %(pipeline)s AND to_regclass(format('epochline.%%I', table_name)) IS NOT NULL

-- name: savepoint_copies
-- The copies of state tables in savepoints of a pipeline, imported ones included.
SELECT name, state, table_name FROM epochline.savepoint_state WHERE pipeline = %(pipeline)s ORDER BY name, state

-- name: states_of_pipeline
-- The state tables that epochs of a pipeline left.
SELECT DISTINCT state FROM epochline.state_version WHERE pipeline = %(pipeline)s ORDER BY state

-- name: targets_of_pipeline
-- The tables that a pipeline claimed and that are neither state nor outbox, by the names of their sinks.
SELECT t.sink FROM epochline.target t
WHERE t.pipeline = %(pipeline)s AND t.schema_name NOT IN ('', 'epochline_outbox')
  AND NOT EXISTS (SELECT FROM epochline.state_table s
                  WHERE (s.schema_name, s.table_name) = (t.schema_name, t.table_name))
ORDER BY t.sink

-- name: folders_of_pipeline
-- The folders in which epochs of a pipeline left files, as their settings name them.
SELECT DISTINCT settings #>> '{epoch_files,value}' AS folder FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND settings #>> '{epoch_files,value}' IS NOT NULL ORDER BY 1

-- name: count_savepoint_state
-- Count the copy of a state table again, after rows of it were erased.
UPDATE epochline.savepoint_state s SET keys = d.keys, digest = d.digest
FROM epochline.state_digest('epochline', %(table_name)s) d
WHERE s.pipeline = %(pipeline)s AND s.table_name = %(table_name)s

-- name: erasure_said
-- When, by whom and why something is erased, as people read it.
SELECT format('erased on %%s by %%s: %%s', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"'), %(by)s, %(why)s)

-- name: erase_records
-- Erase the bytes of quarantined records.
UPDATE epochline.quarantined_record q
SET key = NULL, value = NULL, headers = NULL, erased_at = clock_timestamp(), erased_by = %(by)s, reason = %(said)s,
    requeued_by = coalesce(q.requeued_by, q.epoch_id), requeued_at = coalesce(q.requeued_at, clock_timestamp())
FROM unnest(CAST(%(generations)s AS integer[]), CAST(%(topic_ids)s AS text[]), CAST(%(partitions)s AS integer[]),
            CAST(%(offsets)s AS bigint[])) AS place (generation, topic_id, partition, "offset")
WHERE q.pipeline = %(pipeline)s AND q.erased_at IS NULL
  AND (q.generation, q.topic_id, q.partition, q."offset")
    = (place.generation, place.topic_id, place.partition, place."offset")

-- name: texts_of_key
-- How many refused rows and errors mention every value of a key as a word.
SELECT (SELECT count(*) FROM epochline.refused_row
        WHERE pipeline = %(pipeline)s AND concat("row", ' ', reason) ~ ALL (%(patterns)s::text[])),
       (SELECT count(*) FROM epochline.attempt WHERE pipeline = %(pipeline)s AND error ~ ALL (%(patterns)s::text[])),
       (SELECT count(*) FROM epochline.epoch WHERE pipeline = %(pipeline)s AND error ~ ALL (%(patterns)s::text[])),
       (SELECT count(*) FROM epochline.epoch WHERE pipeline = %(pipeline)s AND outside ~ ALL (%(patterns)s::text[])),
       (SELECT count(*) FROM epochline.plan_failure WHERE pipeline = %(pipeline)s AND error ~ ALL (%(patterns)s::text[])),
       (SELECT count(*) FROM epochline.pipeline
        WHERE pipeline = %(pipeline)s AND paused_reason ~ ALL (%(patterns)s::text[]))

-- name: erase_refused
-- Erase refused rows that mention every value of a key. The record stays refused.
UPDATE epochline.refused_row SET "row" = NULL, reason = %(said)s
WHERE pipeline = %(pipeline)s AND concat("row", ' ', reason) ~ ALL (%(patterns)s::text[])

-- name: erase_attempt_errors
-- Erase errors of attempts that mention every value of a key.
UPDATE epochline.attempt SET error = %(said)s
WHERE pipeline = %(pipeline)s AND error ~ ALL (%(patterns)s::text[])

-- name: erase_epoch_errors
-- Erase errors of epochs that mention every value of a key.
UPDATE epochline.epoch SET error = %(said)s WHERE pipeline = %(pipeline)s AND error ~ ALL (%(patterns)s::text[])

-- name: erase_outside
-- Erase how epochs differed from their bounds, where it mentions every value of a key.
UPDATE epochline.epoch SET outside = %(said)s WHERE pipeline = %(pipeline)s AND outside ~ ALL (%(patterns)s::text[])

-- name: erase_plan_failure
-- Erase the error of a plan that mentions every value of a key.
UPDATE epochline.plan_failure SET error = %(said)s
WHERE pipeline = %(pipeline)s AND error ~ ALL (%(patterns)s::text[])

-- name: erase_pause
-- Erase the reason of a pause that mentions every value of a key.
UPDATE epochline.pipeline SET paused_reason = %(said)s
WHERE pipeline = %(pipeline)s AND paused_reason ~ ALL (%(patterns)s::text[])

-- name: erased_of_epochs
-- What operators erased of the records and the rows of epochs: when, by whom, why, and how many.
SELECT format('epoch %%s: %%s, %%s, %%s', epoch_id, what, counted, said) FROM (
    SELECT epoch_id, 'quarantine' AS what, reason AS said, count(*) || ' records' AS counted
    FROM epochline.quarantined_record
    WHERE pipeline = %(pipeline)s AND epoch_id = ANY (%(epochs)s) AND erased_by IS NOT NULL GROUP BY epoch_id, reason
    UNION ALL
    SELECT epoch_id, sink, said, sum(rows) || ' rows' FROM epochline.erased_row
    WHERE pipeline = %(pipeline)s AND epoch_id = ANY (%(epochs)s) GROUP BY epoch_id, sink, said) e
ORDER BY epoch_id, what, said
