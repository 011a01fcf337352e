-- What an audit reads. Nothing here changes anything.

-- name: audited_epochs
-- The committed epochs in a range of ids, with what the plan stored.
SELECT e.epoch_id, e.kind, e.generation, e.generation < p.generation AS superseded, e.declaration_hash, e.watermark,
       (SELECT coalesce(sum(r.until_offset - r.start_offset), 0)::bigint FROM epochline.planned_range r
        WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) AS offsets,
       (SELECT coalesce(jsonb_object_agg(t.sink, t.columns), '{}') FROM epochline.planned_target t
        WHERE (t.pipeline, t.epoch_id) = (e.pipeline, e.epoch_id)) AS targets
FROM epochline.epoch e JOIN epochline.pipeline p USING (pipeline)
WHERE e.pipeline = %(pipeline)s AND e.state = 'COMMITTED' AND e.undone_by IS NULL AND e.kind <> 'restore'
  AND e.epoch_id BETWEEN %(first)s AND %(last)s
ORDER BY e.epoch_id

-- name: audited_ranges
-- The ranges of an epoch, with counts and digests. If a later generation adopted the log after a truncation,
-- replaced_from is the offset at which that generation began; 0 if it did not begin where the log was cut off.
SELECT r.topic, r.topic_id, r.partition, r.start_offset, r.until_offset, r.records_read, r.records_passed,
       r.records_skipped, r.records_quarantined, r.source_digest,
       (SELECT min(CASE WHEN o.chosen_by = 'adopted at truncation' THEN coalesce(l.until_offset, o.until_offset)
                   ELSE 0 END)
        FROM epochline.committed_ranges o
        LEFT JOIN epochline.committed_ranges l ON l.chosen_by = 'carried over'
            AND (l.pipeline, l.generation, l.topic_id, l.partition, l.start_offset)
              = (o.pipeline, o.generation, o.topic_id, o.partition, o.until_offset)
        WHERE (o.pipeline, o.topic_id, o.partition) = (r.pipeline, r.topic_id, r.partition)
          AND o.generation > r.generation AND o.start_offset IS NULL
          AND starts_with(o.chosen_by, 'adopted at ')) AS replaced_from
FROM epochline.offsets r
WHERE r.pipeline = %(pipeline)s AND r.epoch_id = %(epoch_id)s ORDER BY r.topic, r.partition

-- name: audited_quarantine
-- The places of the records that an epoch set aside, whatever became of them since.
SELECT topic, partition, "offset" FROM epochline.quarantine
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s

-- name: audited_claimed_records
-- The next page of the records that an epoch requeued. Those of its claims that were bad again gave no row, whatever a
-- later epoch made of them.
SELECT q.topic, q.topic_id, q.partition, q."offset", q.record_timestamp, q.key, q.value, q.headers
FROM epochline.requeue_claim c
JOIN epochline.quarantined_record q USING (pipeline, generation, topic_id, partition, "offset")
WHERE c.pipeline = %(pipeline)s AND c.epoch_id = %(epoch_id)s AND q.requeued_by = c.epoch_id AND q.erased_at IS NULL
  AND (q.topic_id, q.partition, q."offset") > (%(topic_id)s, %(partition)s, %(offset)s)
ORDER BY q.topic_id, q.partition, q."offset" LIMIT %(at_most)s

-- name: audited_erasures
-- What was erased of epochs' records and rows: the places, which are not compared, and the number of erased rows.
SELECT CASE WHEN q.epoch_id = ANY (%(epochs)s) THEN q.epoch_id ELSE q.requeued_by END AS epoch_id,
       CASE WHEN q.epoch_id = ANY (%(epochs)s) THEN 'quarantine' ELSE 'requeue' END AS sink, q.topic, q.partition, q."offset", q.reason AS said, 1 AS rows
FROM epochline.quarantined_record q
WHERE q.pipeline = %(pipeline)s AND q.erased_at IS NOT NULL
  AND (q.epoch_id = ANY (%(epochs)s) OR q.requeued_by = ANY (%(epochs)s))
UNION ALL
SELECT epoch_id, sink, topic, partition, "offset", said, rows::integer FROM epochline.erased_row
WHERE pipeline = %(pipeline)s AND epoch_id = ANY (%(epochs)s)

-- name: audited_receipts
-- Of every epoch of a sink: the sealed rows, and whether the ledger says that the sink shows them.
SELECT epoch_id, rows, shown_at IS NOT NULL AS shown FROM epochline.receipt
WHERE pipeline = %(pipeline)s AND sink = %(sink)s ORDER BY epoch_id

-- name: changes_of_state
-- The newest action of an operator that gave state tables another content than the records before give.
SELECT action, epoch_id FROM (
    SELECT action, epoch_id, acted_at FROM epochline.action
    WHERE pipeline = %(pipeline)s AND action IN ('accept-state', 'forget')
    UNION ALL
    SELECT kind, epoch_id, committed_at FROM epochline.epoch
    WHERE pipeline = %(pipeline)s AND kind IN ('restore', 'replay') AND state = 'COMMITTED'
) c ORDER BY acted_at DESC LIMIT 1

-- name: erased_without_place
-- The newest erasure of a target's rows that name no record, since an epoch.
SELECT said FROM epochline.erased_row
WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND "offset" IS NULL AND at_epoch >= %(since)s
ORDER BY at_epoch DESC LIMIT 1

-- name: declared_losses
-- The ranges that an operator declared lost.
SELECT topic, partition, start_offset, until_offset, generation FROM epochline.committed_range
WHERE pipeline = %(pipeline)s AND chosen_by = 'declared loss' ORDER BY generation, topic, partition, start_offset

-- name: quarantine_differences
-- Compare the quarantine with the records that the audit expects in it, gaps left out.
SELECT coalesce(x.epoch_id, q.epoch_id) AS epoch_id, coalesce(x.topic, q.topic) AS topic,
       coalesce(x.partition, q.partition) AS partition, coalesce(x."offset", q."offset") AS "offset",
       CASE WHEN q."offset" IS NULL THEN 'missing' WHEN x."offset" IS NULL THEN 'extra' ELSE 'changed' END AS kind
FROM pg_temp.audited_record x
FULL JOIN (SELECT * FROM epochline.quarantined_record k WHERE pipeline = %(pipeline)s AND epoch_id = ANY (%(epochs)s)
           AND NOT EXISTS (SELECT FROM pg_temp.audited_gap g WHERE g.topic = k.topic AND g.partition = k.partition
                           AND k."offset" >= g.first AND k."offset" < g.until)) q
     ON (q.epoch_id, q.topic, q.partition, q."offset") = (x.epoch_id, x.topic, x.partition, x."offset")
WHERE x."offset" IS NULL OR q."offset" IS NULL OR (q.key, q.value) IS DISTINCT FROM (x.key, x.value)
ORDER BY 1, 2, 3, 4

-- name: audited_ledger
-- Where the ledger contradicts itself, although its constraints held when each row was written: counts of epochs that
-- are not the sums of their partitions, committed ranges that are not the planned ones or leave a gap, and rows of
-- attempts, manifests, parts and receipts that differ. All of the chain; of epochs, those in a range of ids.
WITH epochs AS (
    SELECT e.* FROM epochline.epoch e
    WHERE e.pipeline = %(pipeline)s AND e.state = 'COMMITTED' AND e.kind <> 'restore'
      AND e.epoch_id BETWEEN %(first)s AND %(last)s
), attempts AS (
    SELECT a.* FROM epochline.attempt a JOIN epochs USING (pipeline, epoch_id) WHERE a.fenced_at IS NULL
)
SELECT e.epoch_id, NULL AS topic, NULL::integer AS partition, 'its counts of records are not the sums of its partitions' AS said
FROM epochs e
CROSS JOIN LATERAL (
    SELECT sum(records_read) AS seen, sum(records_passed) AS passed, sum(records_skipped) AS skipped,
           sum(records_quarantined) AS quarantined
    FROM epochline.planned_range r WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) r
WHERE e.kind <> 'requeue' AND (e.records_read, e.records_passed, e.records_skipped, e.records_quarantined)
      IS DISTINCT FROM (r.seen, r.passed, r.skipped, r.quarantined)
UNION ALL
SELECT coalesce(c.epoch_id, p.epoch_id), coalesce(c.topic, p.topic), coalesce(c.partition, p.partition),
       format('planned [%%s,%%s), committed [%%s,%%s)', p.start_offset, p.until_offset, c.start_offset, c.until_offset)
FROM (SELECT c.* FROM epochline.committed_range c JOIN epochs USING (pipeline, epoch_id)) c
FULL JOIN (SELECT r.* FROM epochline.planned_range r JOIN epochs e USING (pipeline, epoch_id) WHERE e.replays IS NULL) p
     ON (p.epoch_id, p.topic_id, p.partition) = (c.epoch_id, c.topic_id, c.partition)
WHERE (c.start_offset, c.until_offset) IS DISTINCT FROM (p.start_offset, p.until_offset)
UNION ALL
SELECT epoch_id, topic, partition, format('its range begins at %%s, the one before ends at %%s', start_offset, previous)
FROM (SELECT c.*, lag(until_offset) OVER (PARTITION BY generation, topic_id, partition ORDER BY until_offset) AS previous
      FROM epochline.committed_range c WHERE pipeline = %(pipeline)s) c
WHERE start_offset IS DISTINCT FROM previous AND start_offset IS NOT NULL
UNION ALL
SELECT a.epoch_id, NULL, NULL, format('attempt %%s: %%s rows were sealed, its manifests say %%s', a.attempt, a.rows_staged, m.rows)
FROM attempts a
CROSS JOIN LATERAL (SELECT sum(m.rows) AS rows FROM epochline.manifest m WHERE m.attempt_id = a.attempt_id) m
WHERE a.rows_staged IS DISTINCT FROM m.rows
UNION ALL
SELECT s.epoch_id, NULL, NULL, format('%%s: the manifest says %%s rows in %%s parts, the parts say %%s in %%s',
                                      s.sink, s.rows, s.parts, s.rows_found, s.parts_found)
FROM epochline.staged_rows s JOIN attempts USING (pipeline, epoch_id, attempt)
WHERE (s.rows, s.parts) <> (s.rows_found, s.parts_found)
UNION ALL
SELECT r.epoch_id, NULL, NULL, format('%%s: the receipt says %%s rows, the manifest %%s', r.sink, r.rows, m.rows)
FROM attempts a JOIN epochline.receipt r USING (pipeline, epoch_id, attempt_id)
JOIN epochline.manifest m USING (attempt_id, sink)
WHERE r.rows <> m.rows OR r.rows <> r.inserted + r.updated + r.deleted + r.superseded + r.unchanged
ORDER BY 1, 2, 3
