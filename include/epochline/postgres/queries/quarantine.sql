-- Quarantined records and the claims of requeue epochs.

-- name: quarantine_selected
-- The number of selected records that were not requeued, by partition.
SELECT topic, partition, count(*) AS records FROM epochline.quarantined_record
WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND requeued_by IS NULL
  AND (CAST(%(epoch_id)s AS bigint) IS NULL OR epoch_id = %(epoch_id)s)
  AND (CAST(%(topic)s AS text) IS NULL OR topic = %(topic)s)
  AND (CAST(%(partition)s AS integer) IS NULL OR partition = %(partition)s)
  AND (CAST(%(offset)s AS bigint) IS NULL OR "offset" = %(offset)s)
  AND (CAST(%(reason)s AS text) IS NULL OR reason LIKE %(reason)s)
GROUP BY topic, partition ORDER BY topic, partition

-- name: claim_quarantined
-- Claim the selected records for an epoch.
INSERT INTO epochline.requeue_claim (pipeline, epoch_id, generation, topic_id, partition, "offset")
SELECT pipeline, %(claiming)s, generation, topic_id, partition, "offset" FROM epochline.quarantined_record
WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND requeued_by IS NULL
  AND (CAST(%(epoch_id)s AS bigint) IS NULL OR epoch_id = %(epoch_id)s)
  AND (CAST(%(topic)s AS text) IS NULL OR topic = %(topic)s)
  AND (CAST(%(partition)s AS integer) IS NULL OR partition = %(partition)s)
  AND (CAST(%(offset)s AS bigint) IS NULL OR "offset" = %(offset)s)
  AND (CAST(%(reason)s AS text) IS NULL OR reason LIKE %(reason)s)

-- name: requeue_claims
-- The number of claimed records of an epoch, by partition, and how many of them were requeued.
SELECT q.topic, q.partition, count(*) AS records, count(q.requeued_by) AS requeued
FROM epochline.requeue_claim c
JOIN epochline.quarantined_record q USING (pipeline, generation, topic_id, partition, "offset")
WHERE c.pipeline = %(pipeline)s AND c.epoch_id = %(epoch_id)s GROUP BY q.topic, q.partition
ORDER BY q.topic, q.partition

-- name: requeued_of
-- The number of records that these epochs set aside and that a later epoch requeued. An erased record that was not
-- requeued names its own epoch.
SELECT count(*) FROM epochline.quarantined_record
WHERE pipeline = %(pipeline)s AND epoch_id = ANY (%(epochs)s) AND requeued_by IS NOT NULL
  AND (erased_at IS NULL OR requeued_by <> epoch_id)

-- name: free_requeued
-- Mark the records that these epochs requeued as not requeued. An erased record names its own epoch: nothing of it can be
-- requeued.
UPDATE epochline.quarantined_record
SET requeued_by = CASE WHEN erased_at IS NOT NULL THEN epoch_id END,
    requeued_at = CASE WHEN erased_at IS NOT NULL THEN requeued_at END
WHERE pipeline = %(pipeline)s AND requeued_by = ANY (%(epochs)s)

-- name: delete_claims
-- Delete the claims on records that these epochs set aside.
DELETE FROM epochline.requeue_claim c USING epochline.quarantined_record q
WHERE (c.pipeline, c.generation, c.topic_id, c.partition, c."offset")
    = (q.pipeline, q.generation, q.topic_id, q.partition, q."offset")
  AND q.pipeline = %(pipeline)s AND q.epoch_id = ANY (%(epochs)s)

-- name: delete_quarantined
-- Delete the records that these epochs set aside. Later epochs read their ranges again and set aside bad records
-- themselves.
DELETE FROM epochline.quarantined_record WHERE pipeline = %(pipeline)s AND epoch_id = ANY (%(epochs)s)
