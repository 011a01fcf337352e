-- What the command line reads. Nothing here changes anything.

-- name: last_epochs
-- The newest epochs of one pipeline or of all.
SELECT e.pipeline, e.epoch_id, e.state, e.attempt, e.kind, e.dag_id, e.run_id, e.records_read, e.records_passed,
       e.records_skipped, e.records_quarantined, e.rows_written, e.planned_at, e.pre_committed_at, e.committed_at,
       e.aborted_at,
       extract(epoch FROM coalesce(e.committed_at, e.aborted_at, clock_timestamp()) - e.planned_at)::float8 AS seconds,
       (SELECT sum(r.until_offset - r.start_offset)::bigint FROM epochline.planned_range r
        WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) AS offsets,
       e.watermark, e.records_too_late, e.undone_by, e.replays, e.note, e.error, e.settings,
       (SELECT p.longest_latency_seconds FROM epochline.phases p
        WHERE (p.pipeline, p.epoch_id) = (e.pipeline, e.epoch_id)) AS longest_latency_seconds
FROM epochline.epoch e
WHERE (%(pipeline)s IS NULL OR e.pipeline = %(pipeline)s) AND (%(epoch)s IS NULL OR e.epoch_id = %(epoch)s)
ORDER BY e.planned_at DESC, e.pipeline, e.epoch_id DESC LIMIT %(limit)s

-- name: newest_committed_epochs
-- The newest committed epochs of a pipeline, the oldest first.
SELECT epoch_id, committed_at FROM (
    SELECT epoch_id, committed_at FROM epochline.epochs
    WHERE pipeline = %(pipeline)s AND state = 'COMMITTED' AND undone_by IS NULL ORDER BY epoch_id DESC LIMIT %(limit)s
) AS newest ORDER BY epoch_id

-- name: ranges_of_epoch
-- The planned ranges of an epoch, with their counts.
SELECT topic, partition, start_offset, until_offset, records_read, records_passed, records_skipped,
       records_quarantined
FROM epochline.offsets WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s ORDER BY topic, partition

-- name: phases_of_epoch
-- The seconds of each phase of an epoch, and how old its records were at the commit.
SELECT wait_seconds, plan_seconds, start_seconds, stage_seconds, seal_seconds, commit_seconds, publish_seconds,
       longest_latency_seconds, shortest_latency_seconds
FROM epochline.phases WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s

-- name: quarantined_of_epoch
-- The number of records that an epoch set aside.
SELECT count(*) AS records FROM epochline.quarantine
WHERE pipeline = %(pipeline)s AND -epoch_id = -CAST(%(epoch)s AS bigint)

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

-- name: pipelines
-- The pipelines that the ledger knows.
SELECT pipeline FROM epochline.pipeline ORDER BY pipeline

-- name: heads_with_ages
-- The head of each partition, the leader's epoch in which it was read, and the seconds since its last commit.
SELECT topic, topic_id, partition, origin_offset, next_offset, epoch_id,
       (SELECT max(c.leader_epoch) FROM epochline.committed_range c
        WHERE (c.pipeline, c.generation, c.topic_id, c.partition, c.until_offset)
              = (h.pipeline, h.generation, h.topic_id, h.partition, h.next_offset)) AS leader_epoch,
       extract(epoch FROM clock_timestamp() - committed_at)::float8 AS seconds
FROM epochline.heads h WHERE pipeline = %(pipeline)s ORDER BY topic, partition

-- name: epoch_of_run
-- The newest epoch of a run.
SELECT pipeline, epoch_id, state, attempt, error, records_read, records_passed, records_skipped, records_quarantined,
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

-- name: manifest_is_written
-- Whether the driver of an attempt has written its manifests: the attempt can be sealed without the driver.
SELECT EXISTS (SELECT FROM epochline.manifest WHERE attempt_id = %(attempt_id)s) AS written

-- name: any_part
-- One part of an attempt, if there is any.
SELECT FROM epochline.part WHERE attempt_id = %(attempt_id)s LIMIT 1

-- name: fenced_writes
-- The refused writes of an attempt.
SELECT backend_pid, host, what, refused_at FROM epochline.fenced_write WHERE attempt_id = %(attempt_id)s
ORDER BY refused_at

-- name: standing
-- Where each pipeline stands by the ledger, or one; no row for one that the ledger does not know.
SELECT s.*, (SELECT sum(l.unread)::bigint FROM epochline.log_ends l WHERE l.pipeline = s.pipeline) AS lag
FROM epochline.standings s
WHERE %(pipeline)s::text IS NULL OR s.pipeline = %(pipeline)s ORDER BY s.pipeline

-- name: quarantined_records
-- The newest quarantined records that match. Of a value, the first bytes.
SELECT q.epoch_id, q.generation, q.topic, q.partition, q."offset", q.record_timestamp, q.quarantined_at, q.reason,
       q.key, substring(q.value FOR %(most_bytes)s) AS value, octet_length(q.value) AS value_bytes, q.headers,
       CASE WHEN q.erased_at IS NULL OR q.requeued_by <> q.epoch_id THEN q.requeued_by END AS requeued_by,
       q.requeued_at, q.erased_at, q.generation = p.generation AS is_current
FROM epochline.quarantine q JOIN epochline.pipeline p USING (pipeline)
WHERE q.pipeline = %(pipeline)s
  AND (CAST(%(epoch)s AS bigint) IS NULL OR -q.epoch_id = -CAST(%(epoch)s AS bigint))
  AND (CAST(%(reason)s AS text) IS NULL OR q.reason LIKE %(reason)s)
  AND (CAST(%(topic)s AS text) IS NULL
       OR (q.topic, q.partition, q."offset") = (%(topic)s, CAST(%(partition)s AS integer), CAST(%(offset)s AS bigint)))
ORDER BY q.quarantined_at DESC, q.epoch_id DESC, q.topic, q.partition, q."offset" DESC LIMIT %(limit)s

-- name: quarantine_waiting
-- The number of matching records of the present generation that were not requeued.
SELECT count(*) AS records
FROM epochline.quarantine q JOIN epochline.pipeline p USING (pipeline, generation)
WHERE q.pipeline = %(pipeline)s AND q.requeued_by IS NULL
  AND (CAST(%(epoch)s AS bigint) IS NULL OR -q.epoch_id = -CAST(%(epoch)s AS bigint))
  AND (CAST(%(reason)s AS text) IS NULL OR q.reason LIKE %(reason)s)

-- name: refused_rows
-- The rows without a record that targets refused since the last commit, one line for equal rows of several attempts.
SELECT max(epoch_id) AS epoch_id, sink, max(refused_at) AS refused_at, reason, "row"
FROM epochline.refused_rows r
WHERE pipeline = %(pipeline)s
  AND epoch_id > coalesce((SELECT max(epoch_id) FROM epochline.epochs e
                           WHERE e.pipeline = r.pipeline AND e.state = 'COMMITTED'), 0)
GROUP BY sink, reason, "row" ORDER BY max(refused_at) DESC LIMIT %(limit)s

-- name: runs_of_epoch
-- The runs that planned or staged an epoch, with their hosts, the first one first.
SELECT dag_id, run_id, min(host) AS host
FROM (SELECT dag_id, run_id, host, planned_at AS begun_at
      FROM epochline.epoch WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s
      UNION ALL
      SELECT dag_id, run_id, host, started_at
      FROM epochline.attempt WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch)s) AS run
GROUP BY dag_id, run_id ORDER BY min(begun_at)

-- name: session_state
-- What the server makes of a session of this login: whether it may write, whether triggers fire, what limits its time,
-- and what a crash costs. Each setting with the place that decides it.
SELECT current_user AS login, current_database() AS database, pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('session_replication_role') AS replication_role, decided_by, settings
FROM (SELECT jsonb_object_agg(name, source) AS decided_by, jsonb_object_agg(name, setting) AS settings FROM pg_settings
      WHERE name IN ('default_transaction_read_only', 'session_replication_role', 'statement_timeout',
                     'transaction_timeout', 'fsync', 'full_page_writes')) AS made

-- name: room_for_sessions
-- How many more sessions this login may open: by the server's limit, by its own and by the database's; NULL for no limit.
-- And each limit.
SELECT current_setting('max_connections')::int AS of_server, rolconnlimit AS of_login, datconnlimit AS of_database,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       - current_setting('reserved_connections')::int
       - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS server,
       CASE WHEN rolconnlimit >= 0
            THEN rolconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE usesysid = pg_roles.oid) END AS login,
       CASE WHEN datconnlimit >= 0
            THEN datconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE datid = pg_database.oid) END AS database
FROM pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()

-- name: prepared_transactions
-- Transactions of this database that were prepared some time ago, and keep their locks until somebody ends them.
SELECT quote_literal(gid) AS gid, extract(epoch FROM now() - prepared)::float8 AS seconds FROM pg_prepared_xacts
WHERE database = current_database() AND prepared <= now() - make_interval(secs => %(seconds)s) ORDER BY prepared

-- name: publications_of_staging
-- Publications that ship what epochs stage.
SELECT quote_ident(pubname) AS publication, puballtables AS of_all_tables FROM pg_publication AS p
WHERE puballtables OR EXISTS (
    SELECT FROM pg_publication_namespace
    WHERE pnpubid = p.oid AND pnnspid = to_regnamespace('epochline_staging')) ORDER BY pubname

-- name: idle_slots
-- Replication slots that nobody reads, and how many bytes of the write-ahead log each keeps.
SELECT quote_literal(slot_name) AS slot, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS bytes
FROM pg_replication_slots
WHERE NOT active AND restart_lsn IS NOT NULL AND NOT pg_is_in_recovery() ORDER BY slot_name

-- name: clock
-- The server's clock, in seconds since 1970.
SELECT extract(epoch FROM clock_timestamp())::float8
