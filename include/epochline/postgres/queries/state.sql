-- State tables, their versions, and event time.

-- name: follow_state_table
-- Start to count a state table, which the next check reads whole.
INSERT INTO epochline.state_table (schema_name, table_name, relation)
VALUES (%(schema)s, %(table)s, format('%%I.%%I', %(schema)s, %(table)s)::regclass)
ON CONFLICT (schema_name, table_name) DO UPDATE SET relation = excluded.relation, trace = NULL

-- name: lock_state
-- The counts of a state table, locked. Other writers of the table have ended or wait for this transaction.
SELECT keys, digest, trace FROM epochline.state_table
WHERE schema_name = %(schema)s AND table_name = %(table)s FOR UPDATE

-- name: state_trace
-- Whether the triggers of a state table count every write, and a trace of what a write past them leaves behind. The
-- trace changes with each new version of a catalog row of the table, its columns or its triggers: a trigger that is
-- disabled and enabled again, another table of the same name, a rewrite, a column that is dropped and added.
--   following  the number of enabled triggers that count
--   watched    whether no write can go past them without a new trace: they also fire in sessions that replicate, and no
--              statement on another table changes rows of this one
--   owned      whether this login may alter the table
SELECT t.following, t.counting = %(counting)s AND t.replicated = 1
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)) AS watched,
       pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned,
       pg_catalog.md5(pg_catalog.concat_ws(' ', c.oid, c.xmin, t.versions,
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.xmin), ' ' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0))) AS trace
FROM pg_catalog.pg_class c
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE t.tgenabled IN ('O', 'A') AND t.tgtype & 1 = 0) AS following,
           count(*) FILTER (WHERE t.tgenabled = 'A' AND t.tgtype & 1 = 0) AS counting,
           count(*) FILTER (WHERE t.tgenabled = 'R' AND t.tgtype & 1 = 1) AS replicated,
           pg_catalog.string_agg(pg_catalog.concat_ws(' ', t.oid, t.xmin, t.tgenabled), ' ' ORDER BY t.oid) AS versions
    FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND pg_catalog.starts_with(t.tgname, %(triggers)s)) t
WHERE c.oid = pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', %(schema)s, %(table)s))

-- name: count_state
-- Read a whole state table to count it, because its triggers may not have seen a row.
UPDATE epochline.state_table s SET keys = d.keys, digest = d.digest, trace = %(trace)s,
       relation = to_regclass(format('%%I.%%I', s.schema_name, s.table_name))
FROM epochline.state_digest(%(schema)s, %(table)s) d
WHERE s.schema_name = %(schema)s AND s.table_name = %(table)s RETURNING s.keys, s.digest

-- name: state_content
-- Read a whole state table to count it, and change nothing.
SELECT keys, digest FROM epochline.state_digest(%(schema)s, %(table)s)

-- name: state_left
-- What the last committed epoch left in a state table.
SELECT v.keys, v.digest, v.epoch_id FROM epochline.state_version v JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE v.pipeline = %(pipeline)s AND v.state = %(state)s AND e.undone_by IS NULL
ORDER BY v.epoch_id DESC LIMIT 1

-- name: leave_state
-- Store what an epoch leaves in a state table.
INSERT INTO epochline.state_version (pipeline, state, epoch_id, keys, digest)
SELECT %(pipeline)s, %(state)s, %(epoch_id)s, keys, digest FROM epochline.state_table
WHERE schema_name = %(schema)s AND table_name = %(table)s
ON CONFLICT (pipeline, state, epoch_id) DO UPDATE
SET keys = excluded.keys, digest = excluded.digest, written_at = clock_timestamp()

-- name: watermark_left
-- The watermark of the last committed epoch, or of the last one before another; of any generation: time does not go back.
SELECT watermark FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' AND undone_by IS NULL
  AND (%(before)s::bigint IS NULL OR epoch_id < %(before)s)
ORDER BY epoch_id DESC LIMIT 1

-- name: keep_unread
-- Store the partitions that have records beyond an epoch's ranges.
UPDATE epochline.epoch SET unread = CAST(%(unread)s AS jsonb)
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s

-- name: event_times
-- The newest event time of each partition.
SELECT topic, topic_id, partition, newest_event_time, read_at FROM epochline.event_times WHERE pipeline = %(pipeline)s
