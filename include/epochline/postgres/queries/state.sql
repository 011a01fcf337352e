-- State tables, their versions, and event time.

-- name: follow_state_table
-- Start to count a state table.
INSERT INTO epochline.state_table (schema_name, table_name, relation)
VALUES (%(schema)s, %(table)s, format('%%I.%%I', %(schema)s, %(table)s)::regclass)
ON CONFLICT (schema_name, table_name) DO UPDATE SET keys = 0, digest = 0, relation = excluded.relation

-- name: state_now
-- The counts of a state table, locked, and whether its triggers are enabled. Other writers of the table have ended
-- or wait for this transaction.
SELECT s.keys, s.digest, s.relation = c.oid AS is_same,
       (SELECT count(*) FROM pg_trigger t
        WHERE t.tgrelid = c.oid AND starts_with(t.tgname, %(triggers)s) AND t.tgenabled IN ('O', 'A')) AS triggers
FROM epochline.state_table s
JOIN pg_class c ON c.oid = to_regclass(format('%%I.%%I', s.schema_name, s.table_name))
WHERE s.schema_name = %(schema)s AND s.table_name = %(table)s FOR UPDATE OF s

-- name: count_state
-- Count a state table that was created again, for example from a backup. Its triggers saw none of these rows.
UPDATE epochline.state_table s SET keys = d.keys, digest = d.digest,
       relation = to_regclass(format('%%I.%%I', s.schema_name, s.table_name))
FROM epochline.state_digest(%(schema)s, %(table)s) d
WHERE s.schema_name = %(schema)s AND s.table_name = %(table)s RETURNING s.keys, s.digest

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
-- The watermark of the last committed epoch, of any generation: time does not go back.
SELECT watermark FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' AND undone_by IS NULL ORDER BY epoch_id DESC LIMIT 1

-- name: event_times
-- The newest event time of each partition.
SELECT topic, topic_id, partition, newest_event_time, read_at FROM epochline.event_times WHERE pipeline = %(pipeline)s
