-- From a row of a target to what made it. Every statement reads views alone, as a reader's login may, but the one of
-- commit times.

-- name: writers_of_table
-- The pipelines with an epoch that wrote a table, the last writer first, and the name by which each declares it.
SELECT p.pipeline, w.declared, w.is_state, w.epoch_id
FROM epochline.pipelines p CROSS JOIN LATERAL (
    (SELECT r.sink AS declared, false AS is_state, r.epoch_id, r.due_at AS written_at FROM epochline.receipts r
     WHERE r.pipeline = p.pipeline AND r.sink = ANY (%(names)s) ORDER BY r.epoch_id DESC LIMIT 1)
    UNION ALL
    (SELECT s.state, true, s.epoch_id, s.written_at FROM epochline.state s
     WHERE s.pipeline = p.pipeline AND s.state = ANY (%(names)s) ORDER BY s.epoch_id DESC LIMIT 1)) w
ORDER BY w.written_at DESC, p.pipeline

-- name: declared_table
-- How the declaration of an epoch describes a table, and the connection of its Kafka by input; no row for a state table.
SELECT d.mode, d.transformed, d.keeps_state, d.keep_unavailable
FROM epochline.declared_tables d JOIN epochline.epochs e USING (declaration_hash)
WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s AND d.declared = %(declared)s

-- name: declared_kafka
-- The connections of the Kafka clusters that an epoch read, by input. The only source has no name.
SELECT DISTINCT d.input, d.connection
FROM epochline.declared_kafka d JOIN epochline.epochs e USING (declaration_hash)
WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s

-- name: reader_rights
-- Whether this login may read declarations and the tables beside targets, and the bytes of quarantined records.
SELECT current_user AS login, has_table_privilege('epochline.declaration', 'SELECT') AS is_owner,
       has_column_privilege('epochline.quarantine', 'value', 'SELECT') AS sees_bytes,
       current_setting('track_commit_timestamp') = 'on' AS commits_have_times

-- name: epoch_that_wrote
-- An epoch with the attempt that it committed.
SELECT e.epoch_id, e.kind, e.state, e.generation, e.attempt, e.dag_id, coalesce(a.run_id, e.run_id) AS run_id, a.host,
       e.committed_at, e.declaration_hash, e.undone_by, e.replays
FROM epochline.epochs e LEFT JOIN epochline.attempts a USING (pipeline, epoch_id, attempt)
WHERE e.pipeline = %(pipeline)s AND e.epoch_id = %(epoch_id)s

-- name: epoch_that_read
-- The last committed epoch up to one that read an offset.
SELECT r.epoch_id, e.committed_at FROM epochline.offsets r JOIN epochline.epochs e USING (pipeline, epoch_id)
WHERE r.pipeline = %(pipeline)s AND r.topic = %(topic)s AND r.partition = %(partition)s AND r.state = 'COMMITTED'
  AND r.start_offset <= %(offset)s AND r.until_offset > %(offset)s AND r.epoch_id <= %(epoch_id)s
ORDER BY r.epoch_id DESC LIMIT 1

-- name: ranges_of_epochs
-- What the committed epochs between two read, those without a row of theirs left out: first and last offset of each log.
SELECT r.topic, r.partition, min(r.start_offset) AS start_offset, max(r.until_offset) AS until_offset,
       count(*) AS epochs, sum(r.records_read)::bigint AS records_read
FROM epochline.offsets r JOIN epochline.epochs e USING (pipeline, epoch_id)
WHERE r.pipeline = %(pipeline)s AND r.epoch_id BETWEEN %(first)s AND %(last)s AND r.state = 'COMMITTED'
  AND e.undone_by IS NULL
GROUP BY r.topic, r.partition ORDER BY r.topic, r.partition

-- name: epochs_between
-- The committed epochs between two, the newest first.
SELECT e.epoch_id, e.kind, e.generation, e.declaration_hash FROM epochline.epochs e
WHERE e.pipeline = %(pipeline)s AND e.epoch_id BETWEEN %(first)s AND %(last)s AND e.state = 'COMMITTED'
  AND e.undone_by IS NULL AND e.kind <> 'restore'
ORDER BY e.epoch_id DESC

-- name: log_when_seen
-- Where a log began when Kafka was last asked.
SELECT topic_id, log_start, observed_at FROM epochline.log_ends
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s

-- name: last_write_of_row
-- When the transaction that last wrote a row was committed, and whether it was that of the row's epoch, or of a restore
-- or replay since. NULL where PostgreSQL no longer knows, and for an epoch without a range.
SELECT w.written_at, CASE WHEN r.committed THEN w.written_at = r.at
       OR EXISTS (SELECT FROM epochline.epoch e WHERE e.pipeline = %(pipeline)s AND e.epoch_id > %(epoch_id)s
                  AND e.kind IN ('restore', 'replay') AND pg_xact_commit_timestamp(e.xmin) >= w.written_at) END AS by_epoch
FROM (SELECT pg_xact_commit_timestamp(%(xmin)s::text::xid) AS written_at) w
CROSS JOIN LATERAL (
    SELECT count(*) > 0 AS committed, max(pg_xact_commit_timestamp(c.xmin)) AS at FROM epochline.committed_range c
    WHERE c.pipeline = %(pipeline)s AND c.epoch_id = %(epoch_id)s) r
