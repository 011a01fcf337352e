-- The chain of committed ranges of each partition (INV-1).

-- name: heads
-- The head and the origin of each partition; where the epoch of the head was planned to end, and its log ended then.
SELECT head.topic, topic_id, partition, origin.until_offset AS origin, head.until_offset AS next_offset, head.epoch_id,
       head.leader_epoch, p.until_offset AS planned, p.last_stable AS log_end
FROM (SELECT DISTINCT ON (topic_id, partition) topic, topic_id, partition, until_offset, epoch_id, leader_epoch
      FROM epochline.committed_range WHERE pipeline = %(pipeline)s AND generation = %(generation)s
      ORDER BY topic_id, partition, until_offset DESC) head
JOIN (SELECT topic_id, partition, until_offset FROM epochline.committed_range
      WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND start_offset IS NULL) origin
    USING (topic_id, partition)
LEFT JOIN LATERAL (
    SELECT r.until_offset, r.last_stable FROM epochline.planned_range r
    WHERE (r.pipeline, r.epoch_id, r.topic_id, r.partition)
          = (%(pipeline)s, head.epoch_id, head.topic_id, head.partition)) p ON true
ORDER BY head.topic, partition, topic_id

-- name: reached
-- What each partition had reached after an epoch. The origin may have moved back since, so the oldest range tells
-- where the chain began.
SELECT topic, topic_id, partition, coalesce(min(start_offset), max(until_offset)) AS begins, max(until_offset) AS ends,
       (array_agg(leader_epoch ORDER BY until_offset DESC, start_offset DESC NULLS LAST))[1] AS leader_epoch
FROM epochline.committed_range
WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND (epoch_id IS NULL OR epoch_id <= %(epoch_id)s)
GROUP BY topic, topic_id, partition

-- name: write_origin
-- Start a chain at its origin, unless it has started; after a restore, with the event time that the savepoint knew.
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       chosen_by, leader_epoch, same_log_until, newest_event_time, read_at)
VALUES (%(pipeline)s, %(generation)s, %(topic)s, %(topic_id)s, %(partition)s, NULL, %(offset)s, %(chosen_by)s,
        %(leader_epoch)s, %(same_log_until)s, %(newest)s, %(read_at)s)
ON CONFLICT DO NOTHING

-- name: keep_log_ends
-- Store where the logs of partitions begin and end, as Kafka just said, and how long Kafka keeps them if it said so. If
-- the log ended at the head or before it when Kafka was last asked, it was caught up at that time.
INSERT INTO epochline.log_end AS known (pipeline, topic, topic_id, partition, log_start, last_stable, cleanup_policy,
                                        retention_ms, retention_bytes)
SELECT p.pipeline, given.*
FROM epochline.pipeline p,
     unnest(%(topics)s::text[], %(topic_ids)s::text[], %(partitions)s::integer[], %(log_starts)s::bigint[],
            %(last_stables)s::bigint[], %(cleanup_policies)s::text[], %(retention_ms)s::bigint[],
            %(retention_bytes)s::bigint[])
         given (topic, topic_id, partition, log_start, last_stable, cleanup_policy, retention_ms, retention_bytes)
WHERE p.pipeline = %(pipeline)s
ON CONFLICT (pipeline, topic_id, partition) DO UPDATE
SET log_start = excluded.log_start, last_stable = excluded.last_stable, observed_at = excluded.observed_at,
    cleanup_policy = coalesce(excluded.cleanup_policy, known.cleanup_policy),
    retention_ms = coalesce(excluded.retention_ms, known.retention_ms),
    retention_bytes = coalesce(excluded.retention_bytes, known.retention_bytes),
    caught_up_at = CASE WHEN known.last_stable <= (
        SELECT max(c.until_offset) FROM epochline.committed_range c
        WHERE c.generation = (SELECT p.generation FROM epochline.pipeline p WHERE p.pipeline = known.pipeline)
          AND (c.pipeline, c.topic_id, c.partition) = (known.pipeline, known.topic_id, known.partition))
        THEN known.observed_at ELSE known.caught_up_at END

-- name: advance_head
-- Append a range of an epoch, or a lost one without, if it starts where the newest range of the partition ends
-- (compare-and-swap).
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       epoch_id, chosen_by, leader_epoch)
SELECT %(pipeline)s, %(generation)s, %(topic)s, %(topic_id)s, %(partition)s, %(start_offset)s, %(until_offset)s,
       %(epoch_id)s, %(chosen_by)s, %(leader_epoch)s
WHERE %(start_offset)s = (SELECT max(until_offset) FROM epochline.committed_range
                          WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND topic_id = %(topic_id)s
                            AND partition = %(partition)s)

-- name: move_origin_back
-- Move the origin to the start of a range that ends at the origin (compare-and-swap).
UPDATE epochline.committed_range SET until_offset = %(start_offset)s
WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND topic_id = %(topic_id)s AND partition = %(partition)s
  AND start_offset IS NULL AND until_offset = %(until_offset)s

-- name: insert_range
-- Insert a range that no head decides: between a new origin and the old one, or everything that earlier generations
-- committed of a log that a new generation goes on with.
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       epoch_id, chosen_by, leader_epoch)
VALUES (%(pipeline)s, %(generation)s, %(topic)s, %(topic_id)s, %(partition)s, %(start_offset)s, %(until_offset)s,
        %(epoch_id)s, %(chosen_by)s, %(leader_epoch)s)

-- name: epochs_within
-- The epochs that committed any of these offsets. A lost range has no epoch.
SELECT epoch_id FROM epochline.committed_range
WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND topic_id = %(topic_id)s AND partition = %(partition)s
  AND start_offset < %(until)s AND until_offset > %(start)s AND epoch_id IS NOT NULL
ORDER BY until_offset

-- name: superseded
-- What earlier generations committed of the log that a partition has now, up to the origin of this generation. What an
-- adopted log had lost does not count, nor does what a restore undid. A carried range is left out: its epochs are there.
WITH RECURSIVE undone AS (
    SELECT e.epoch_id
    FROM epochline.epoch e JOIN epochline.epoch by ON (by.pipeline, by.epoch_id) = (e.pipeline, e.undone_by)
    WHERE e.pipeline = %(pipeline)s AND by.kind = 'restore'
    UNION
    SELECT e.epoch_id FROM epochline.epoch e JOIN undone ON e.undone_by = undone.epoch_id
    WHERE e.pipeline = %(pipeline)s
)
SELECT c.start_offset, least(c.until_offset, origin.until_offset, cut.until) AS until_offset, cut.until = -1 AS unknown
FROM epochline.committed_range origin
JOIN epochline.committed_range c
    ON (c.pipeline, c.topic_id, c.partition) = (origin.pipeline, origin.topic_id, origin.partition)
   AND c.generation < origin.generation AND c.epoch_id IS NOT NULL
CROSS JOIN LATERAL (
    SELECT min(begun.same_log_until) AS until FROM epochline.committed_range begun
    WHERE (begun.pipeline, begun.topic_id, begun.partition) = (c.pipeline, c.topic_id, c.partition)
      AND begun.generation > c.generation AND begun.generation <= origin.generation AND begun.start_offset IS NULL) cut
WHERE origin.pipeline = %(pipeline)s AND origin.generation = %(generation)s AND origin.topic_id = %(topic_id)s
  AND origin.partition = %(partition)s AND origin.start_offset IS NULL
  AND (c.start_offset < least(origin.until_offset, cut.until) OR cut.until = -1)
  AND c.epoch_id NOT IN (SELECT epoch_id FROM undone)
ORDER BY c.start_offset, until_offset

-- name: cut_since
-- Where the log of a partition was first cut off in the generations after this one, as adoptions recorded it.
SELECT min(same_log_until) FROM epochline.committed_range
WHERE pipeline = %(pipeline)s AND generation > %(generation)s AND topic_id = %(topic_id)s AND partition = %(partition)s
  AND start_offset IS NULL AND same_log_until >= 0

-- name: declare_gap
-- Record a hole in a log as lost.
INSERT INTO epochline.declared_gap (pipeline, topic, topic_id, partition, start_offset, until_offset)
VALUES (%(pipeline)s, %(topic)s, %(topic_id)s, %(partition)s, %(start)s, %(until)s)
ON CONFLICT (pipeline, topic_id, partition, start_offset)
DO UPDATE SET until_offset = greatest(declared_gap.until_offset, excluded.until_offset)

-- name: declared_gaps
-- The holes in a log that were declared lost.
SELECT start_offset, until_offset FROM epochline.declared_gap
WHERE pipeline = %(pipeline)s AND topic_id = %(topic_id)s AND partition = %(partition)s ORDER BY start_offset
