-- Savepoints, and restores.

-- name: savepoint_position
-- The position of a pipeline. The generation is that of the heads; if a topic was adopted since, the last epoch
-- belongs to an earlier generation.
SELECT e.epoch_id, p.generation, e.watermark, p.cluster_id
FROM epochline.epoch e JOIN epochline.pipeline p USING (pipeline)
WHERE e.pipeline = %(pipeline)s AND e.state = 'COMMITTED' AND e.undone_by IS NULL ORDER BY e.epoch_id DESC LIMIT 1

-- name: heads_with_times
-- The head of each partition, with its event time.
SELECT h.topic, h.topic_id, h.partition, h.next_offset, c.leader_epoch, t.newest_event_time, t.read_at
FROM epochline.heads h
JOIN epochline.event_times t USING (pipeline, topic_id, partition)
JOIN epochline.committed_range c
    ON (c.pipeline, c.generation, c.topic_id, c.partition, c.until_offset)
     = (h.pipeline, h.generation, h.topic_id, h.partition, h.next_offset)
WHERE h.pipeline = %(pipeline)s ORDER BY h.topic, h.partition, h.topic_id

-- name: epoch_outcome
-- The ranges, the counts and the sinks of an epoch, for its file.
SELECT jsonb_build_object('read', e.records_read, 'passed', e.records_passed, 'skipped', e.records_skipped,
                          'quarantined', e.records_quarantined, 'rows_written', e.rows_written) AS counts,
       (SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'topic', r.topic, 'partition', r.partition, 'start', r.start_offset, 'until', r.until_offset)
                   ORDER BY r.topic, r.partition), '[]')
        FROM epochline.planned_range r WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) AS ranges,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('sink', s.sink, 'rows', s.rows) ORDER BY s.sink), '[]')
        FROM epochline.receipt s WHERE (s.pipeline, s.epoch_id) = (e.pipeline, e.epoch_id)) AS sinks
FROM epochline.epoch e WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s

-- name: keep_savepoint
-- Store a savepoint.
INSERT INTO epochline.savepoint (pipeline, name, epoch_id, generation, cluster_id, watermark, declaration, made_by,
                                 reason)
VALUES (%(pipeline)s, %(name)s, %(epoch_id)s, %(generation)s, %(cluster_id)s, %(watermark)s,
        CAST(%(declaration)s AS jsonb), %(made_by)s, %(reason)s)

-- name: keep_savepoint_head
-- Store the head of one partition in a savepoint.
INSERT INTO epochline.savepoint_head (pipeline, name, topic, topic_id, partition, next_offset, leader_epoch,
                                      newest_event_time, read_at)
VALUES (%(pipeline)s, %(savepoint)s, %(topic)s, %(topic_id)s, %(partition)s, %(next_offset)s, %(leader_epoch)s,
        %(newest_event_time)s, %(read_at)s)

-- name: keep_savepoint_state
-- Store the number of keys and the digest of a state table in a savepoint.
INSERT INTO epochline.savepoint_state (pipeline, name, state, table_name, keys, digest)
SELECT %(pipeline)s, %(savepoint)s, %(state)s, %(table_name)s, keys, digest FROM epochline.state_table
WHERE schema_name = %(schema)s AND table_name = %(table)s

-- name: savepoints
-- The savepoints of a pipeline, the oldest first.
SELECT pipeline, name, epoch_id, generation, cluster_id, watermark, made_by, reason, made_at, imported_at
FROM epochline.savepoint WHERE pipeline = %(pipeline)s ORDER BY made_at, name

-- name: savepoint_heads
-- The heads of a savepoint.
SELECT topic, topic_id, partition, next_offset, leader_epoch, newest_event_time, read_at
FROM epochline.savepoint_head WHERE pipeline = %(pipeline)s AND name = %(savepoint)s ORDER BY topic, partition, topic_id

-- name: savepoint_states
-- The copies of state tables of a savepoint.
SELECT state, table_name, keys, digest FROM epochline.savepoint_state
WHERE pipeline = %(pipeline)s AND name = %(savepoint)s ORDER BY state

-- name: savepoint_declaration
-- The declaration with which a savepoint was made.
SELECT declaration FROM epochline.savepoint WHERE pipeline = %(pipeline)s AND name = %(savepoint)s

-- name: import_savepoint_state
-- Store the number of keys and the digest of a state table from a savepoint file.
INSERT INTO epochline.savepoint_state (pipeline, name, state, table_name, keys, digest)
VALUES (%(pipeline)s, %(savepoint)s, %(state)s, %(table_name)s, %(keys)s, %(digest)s)

-- name: mark_imported
-- Mark a savepoint as imported.
UPDATE epochline.savepoint SET imported_at = now(), made_at = %(made_at)s
WHERE pipeline = %(pipeline)s AND name = %(savepoint)s

-- name: delete_savepoint
-- Delete a savepoint.
DELETE FROM epochline.savepoint WHERE pipeline = %(pipeline)s AND name = %(savepoint)s

-- name: erasures
-- The erasures of values of a pipeline, the oldest first.
SELECT acted_at, actor, reason FROM epochline.action
WHERE pipeline = %(pipeline)s AND action = 'forget' ORDER BY action_id

-- name: epochs_to_undo
-- The committed epochs after this one that were not undone.
SELECT epoch_id FROM epochline.epoch
WHERE pipeline = %(pipeline)s AND epoch_id > %(epoch_id)s AND state = 'COMMITTED' AND undone_by IS NULL
ORDER BY epoch_id

-- name: insert_restore
-- Insert the epoch of a restore. It reads nothing and is committed at once.
INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, kind, dag_id, run_id, host, declaration_hash, note,
                             lease_until, pre_committed_at, committed_at, records_read, records_passed,
                             records_skipped, records_quarantined, rows_written, watermark)
VALUES (%(pipeline)s, %(epoch_id)s, %(generation)s, 'COMMITTED', 'restore', %(dag_id)s, %(run_id)s, %(host)s, %(hash)s,
        %(note)s,
        clock_timestamp(), clock_timestamp(), clock_timestamp(), 0, 0, 0, 0, 0, %(watermark)s)
