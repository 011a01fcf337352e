-- Every statement of the ledger, by name. Values are bound; safety is a condition of the statement.
-- The database's clock alone decides about time (trap 19).

-- name: make_pipeline
INSERT INTO epochline.pipeline (pipeline) VALUES (:pipeline) ON CONFLICT DO NOTHING

-- name: lock_pipeline
-- Plans wait for each other; rows that refer to the pipeline may be written meanwhile.
SELECT generation, last_epoch_id, cluster_id FROM epochline.pipeline WHERE pipeline = :pipeline FOR NO KEY UPDATE

-- name: pipeline
SELECT generation, last_epoch_id, cluster_id FROM epochline.pipeline WHERE pipeline = :pipeline

-- name: remember_cluster
UPDATE epochline.pipeline SET cluster_id = :cluster_id WHERE pipeline = :pipeline AND cluster_id IS NULL

-- name: unfinished_epoch
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = :pipeline AND state IN ('PLANNED', 'PRE_COMMITTED')

-- name: newest_epoch_of_run
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = :pipeline AND dag_id = :dag_id AND run_id = :run_id ORDER BY epoch_id DESC LIMIT 1

-- name: lock_epoch
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = :pipeline AND epoch_id = :epoch_id FOR UPDATE

-- name: later_epochs
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = :pipeline AND epoch_id > :epoch_id AND state <> 'ABORTED' ORDER BY epoch_id

-- name: skip_ids
UPDATE epochline.pipeline SET last_epoch_id = greatest(last_epoch_id, :epoch_id) WHERE pipeline = :pipeline

-- name: keep_declaration
INSERT INTO epochline.declaration (hash, pipeline, body) VALUES (:hash, :pipeline, CAST(:body AS jsonb))
ON CONFLICT DO NOTHING

-- name: next_epoch_id
UPDATE epochline.pipeline SET last_epoch_id = last_epoch_id + 1 WHERE pipeline = :pipeline RETURNING last_epoch_id

-- name: insert_epoch
INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, kind, dag_id, run_id, host, declaration_hash,
                             record_limit, note, lease_until, interval_start, interval_end, replays)
VALUES (:pipeline, :epoch_id, :generation, 'PLANNED', :kind, :dag_id, :run_id, :host, :hash, :record_limit, :note,
        clock_timestamp() + make_interval(secs => :lease), :interval_start, :interval_end, :replays)

-- name: insert_planned_range
INSERT INTO epochline.planned_range (pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset,
                                     leader_epoch)
VALUES (:pipeline, :epoch_id, :topic, :topic_id, :partition, :start_offset, :until_offset, :leader_epoch)

-- name: keep_planned_target
INSERT INTO epochline.planned_target (pipeline, epoch_id, sink, columns)
VALUES (:pipeline, :epoch_id, :sink, CAST(:columns AS jsonb))
ON CONFLICT (pipeline, epoch_id, sink) DO UPDATE SET columns = EXCLUDED.columns

-- name: forget_planned_targets
DELETE FROM epochline.planned_target WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: reopen_epoch
UPDATE epochline.epoch
SET state = 'PLANNED', aborted_at = NULL, error = NULL, approval = NULL, declaration_hash = :hash,
    lease_until = clock_timestamp() + make_interval(secs => :lease)
WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND state = 'ABORTED'

-- name: planned_ranges
SELECT topic, topic_id, partition, start_offset, until_offset, leader_epoch FROM epochline.planned_range
WHERE pipeline = :pipeline AND epoch_id = :epoch_id ORDER BY topic, partition

-- name: planned_targets
SELECT sink, columns FROM epochline.planned_target WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: declaration_of_epoch
SELECT d.body FROM epochline.epoch e JOIN epochline.declaration d ON d.hash = e.declaration_hash
WHERE e.pipeline = :pipeline AND e.epoch_id = :epoch_id

-- name: last_declaration
SELECT d.body FROM epochline.epoch e JOIN epochline.declaration d ON d.hash = e.declaration_hash
WHERE e.pipeline = :pipeline AND e.state = 'COMMITTED' ORDER BY e.epoch_id DESC LIMIT 1

-- name: declarations
SELECT d.body FROM epochline.declaration d
JOIN (SELECT declaration_hash, max(epoch_id) AS last_epoch FROM epochline.epoch
      WHERE pipeline = :pipeline AND state = 'COMMITTED' GROUP BY declaration_hash) e ON e.declaration_hash = d.hash
ORDER BY e.last_epoch DESC

-- name: renew_lease
UPDATE epochline.epoch e SET lease_until = clock_timestamp() + make_interval(secs => :lease)
FROM epochline.attempt a
WHERE e.pipeline = :pipeline AND e.epoch_id = :epoch_id AND e.state = 'PLANNED' AND e.attempt = :attempt
  AND (a.pipeline, a.epoch_id, a.attempt) = (e.pipeline, e.epoch_id, e.attempt) AND a.fenced_at IS NULL

-- name: mark_pre_committed
UPDATE epochline.epoch
SET state = 'PRE_COMMITTED', pre_committed_at = clock_timestamp(), records_read = :read, records_passed = :passed,
    records_skipped = :skipped, records_quarantined = :quarantined,
    (watermark, records_too_late) = (SELECT a.watermark, a.records_too_late FROM epochline.attempt a
                                     WHERE (a.pipeline, a.epoch_id) = (:pipeline, :epoch_id) AND a.fenced_at IS NULL)
WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND state = 'PLANNED'

-- name: count_range
UPDATE epochline.planned_range
SET records_read = :read, records_passed = :passed, records_skipped = :skipped, records_quarantined = :quarantined,
    first_offset = :first_offset, last_offset = :last_offset, source_digest = :digest,
    newest_event_time = CASE WHEN CAST(:newest AS timestamptz) IS NOT NULL THEN
        greatest(:newest, (SELECT t.newest_event_time FROM epochline.event_times t
                           WHERE t.pipeline = :pipeline AND t.topic_id = planned_range.topic_id
                             AND t.partition = :partition)) END
WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND topic = :topic AND partition = :partition

-- name: mark_committed
UPDATE epochline.epoch SET state = 'COMMITTED', committed_at = clock_timestamp(), rows_written = :rows_written, error = NULL
WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND state = 'PRE_COMMITTED'

-- name: mark_aborted
UPDATE epochline.epoch SET state = 'ABORTED', aborted_at = clock_timestamp(), error = :reason, aborts = aborts + 1
WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND state IN ('PLANNED', 'PRE_COMMITTED')

-- name: heads
SELECT topic, topic_id, partition, origin.until_offset AS origin, head.until_offset AS next_offset, head.epoch_id,
       head.leader_epoch
FROM (SELECT DISTINCT ON (topic_id, partition) topic, topic_id, partition, until_offset, epoch_id, leader_epoch
      FROM epochline.committed_range WHERE pipeline = :pipeline AND generation = :generation
      ORDER BY topic_id, partition, until_offset DESC) head
JOIN (SELECT topic_id, partition, until_offset FROM epochline.committed_range
      WHERE pipeline = :pipeline AND generation = :generation AND start_offset IS NULL) origin
    USING (topic_id, partition)
ORDER BY topic, partition, topic_id

-- name: reached
-- The row of the origin says where the chain begins now; what was extended back since does not count.
SELECT topic, topic_id, partition, coalesce(min(start_offset), max(until_offset)) AS begins, max(until_offset) AS ends,
       (array_agg(leader_epoch ORDER BY until_offset DESC, start_offset DESC NULLS LAST))[1] AS leader_epoch
FROM epochline.committed_range
WHERE pipeline = :pipeline AND generation = :generation AND (epoch_id IS NULL OR epoch_id <= :epoch_id)
GROUP BY topic, topic_id, partition

-- name: write_origin
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       chosen_by, leader_epoch)
VALUES (:pipeline, :generation, :topic, :topic_id, :partition, NULL, :offset, :chosen_by, :leader_epoch)
ON CONFLICT DO NOTHING

-- name: carry_over
-- What earlier generations committed between the origin and the head, as one range: which epochs did, they say.
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       chosen_by, leader_epoch)
VALUES (:pipeline, :generation, :topic, :topic_id, :partition, :start_offset, :until_offset, 'carried over',
        :leader_epoch)

-- name: advance_head
-- Compare-and-swap: the range must start where the partition's newest committed range ends.
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       epoch_id, chosen_by, leader_epoch)
SELECT :pipeline, :generation, :topic, :topic_id, :partition, :start_offset, :until_offset, :epoch_id, 'epoch',
       :leader_epoch
WHERE :start_offset = (SELECT max(until_offset) FROM epochline.committed_range
                       WHERE pipeline = :pipeline AND generation = :generation AND topic_id = :topic_id
                         AND partition = :partition)

-- name: insert_attempt
INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host)
VALUES (:pipeline, :epoch_id, :attempt, :dag_id, :run_id, :host)
RETURNING *, (SELECT generation FROM epochline.epoch e WHERE e.pipeline = :pipeline AND e.epoch_id = :epoch_id)

-- name: count_attempt
UPDATE epochline.epoch SET attempt = :attempt, host = :host WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: register_staging
INSERT INTO epochline.staging (attempt_id, sink, table_name) VALUES (:attempt_id, :sink, :table_name)

-- name: live_attempt
SELECT a.*, e.generation FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE a.pipeline = :pipeline AND a.epoch_id = :epoch_id AND a.fenced_at IS NULL

-- name: committed_token
SELECT a.token FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE a.pipeline = :pipeline AND a.epoch_id = :epoch_id AND a.fenced_at IS NULL AND e.state = 'COMMITTED'

-- name: lock_attempt
-- Waits for every writer that holds the row FOR KEY SHARE, and holds new ones off.
SELECT a.*, (SELECT generation FROM epochline.epoch e WHERE e.pipeline = a.pipeline AND e.epoch_id = a.epoch_id)
FROM epochline.attempt a WHERE a.attempt_id = :attempt_id FOR UPDATE

-- name: fence_attempt
UPDATE epochline.attempt
SET fenced_at = clock_timestamp(), ended_at = coalesce(ended_at, clock_timestamp()), error = coalesce(error, :reason)
WHERE attempt_id = :attempt_id AND fenced_at IS NULL

-- name: seal_attempt
UPDATE epochline.attempt SET sealed_at = clock_timestamp(), rows_staged = :rows_staged
WHERE attempt_id = :attempt_id AND fenced_at IS NULL AND sealed_at IS NULL

-- name: finish_attempt
UPDATE epochline.attempt SET ended_at = clock_timestamp() WHERE attempt_id = :attempt_id

-- name: manifests
SELECT sink, write_id, parts, rows, body FROM epochline.manifest WHERE attempt_id = :attempt_id ORDER BY sink

-- name: part_sums
SELECT sink, write_id, count(*) AS parts, sum(rows)::bigint AS rows FROM epochline.part
WHERE attempt_id = :attempt_id GROUP BY sink, write_id ORDER BY sink, write_id

-- name: part_messages
-- What was received travels in the message of the quarantine's part: every record passes there once.
SELECT spark_partition, rows, message FROM epochline.part WHERE attempt_id = :attempt_id AND sink = :sink ORDER BY spark_partition

-- name: end_sessions
-- By what they hold, not by their names: behind a pooler, a session that bears the name may serve somebody else now.
WITH writing AS (
    SELECT DISTINCT l.pid FROM epochline.staging s
    JOIN pg_class c ON c.relname = s.table_name AND c.relnamespace = to_regnamespace('epochline_staging')
    JOIN pg_locks l ON l.locktype = 'relation' AND l.relation = c.oid AND l.mode = 'RowExclusiveLock' AND l.granted
    JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
    WHERE s.attempt_id = :attempt_id AND s.dropped_at IS NULL AND l.pid <> pg_backend_pid()
), ended AS (
    SELECT pid, pg_terminate_backend(pid) FROM writing
)
INSERT INTO epochline.fenced_write (attempt_id, backend_pid, host, what)
SELECT :attempt_id, pid, :host, 'its session was ended' FROM ended
ON CONFLICT DO NOTHING

-- name: left_over_attempts
SELECT a.*, e.generation FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE a.pipeline = :pipeline AND (a.fenced_at IS NOT NULL OR e.state IN ('COMMITTED', 'ABORTED'))
  AND EXISTS (SELECT FROM epochline.staging s WHERE s.attempt_id = a.attempt_id AND s.dropped_at IS NULL)
ORDER BY a.attempt_id

-- name: staging_tables
SELECT table_name FROM epochline.staging WHERE attempt_id = :attempt_id AND dropped_at IS NULL ORDER BY table_name

-- name: staging_dropped
UPDATE epochline.staging SET dropped_at = clock_timestamp() WHERE attempt_id = :attempt_id AND dropped_at IS NULL

-- name: epochs_within
-- Which epochs committed any of these offsets; what was declared lost has none.
SELECT epoch_id FROM epochline.committed_range
WHERE pipeline = :pipeline AND generation = :generation AND topic_id = :topic_id AND partition = :partition
  AND start_offset < :until AND until_offset > :start AND epoch_id IS NOT NULL
ORDER BY until_offset

-- What an audit asks: the ledger's word on committed epochs. Nothing below changes anything.

-- name: audited_epochs
SELECT e.epoch_id, e.kind, e.generation, e.generation < p.generation AS superseded, e.declaration_hash,
       e.records_read, e.committed_at,
       (SELECT coalesce(sum(r.until_offset - r.start_offset), 0)::bigint FROM epochline.planned_range r
        WHERE (r.pipeline, r.epoch_id) = (e.pipeline, e.epoch_id)) AS offsets,
       (SELECT jsonb_object_agg(t.sink, t.columns) FROM epochline.planned_target t
        WHERE (t.pipeline, t.epoch_id) = (e.pipeline, e.epoch_id)) AS targets
FROM epochline.epoch e JOIN epochline.pipeline p USING (pipeline)
WHERE e.pipeline = :pipeline AND e.state = 'COMMITTED' AND e.undone_by IS NULL AND e.kind <> 'restore'
  AND e.epoch_id BETWEEN :first AND :last
ORDER BY e.epoch_id

-- name: audited_ranges
SELECT topic, topic_id, partition, start_offset, until_offset, records_read, records_passed, records_skipped,
       records_quarantined, source_digest
FROM epochline.planned_range WHERE pipeline = :pipeline AND epoch_id = :epoch_id ORDER BY topic, partition

-- name: audited_rows
SELECT m.sink, m.rows FROM epochline.manifest m JOIN epochline.attempt a USING (attempt_id)
WHERE a.pipeline = :pipeline AND a.epoch_id = :epoch_id AND a.fenced_at IS NULL

-- name: audited_claims
SELECT count(*) FROM epochline.requeue_claim WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: audited_claimed_records
SELECT q.topic, q.topic_id, q.partition, q."offset", q.record_timestamp, q.key, q.value, q.headers
FROM epochline.requeue_claim c
JOIN epochline.quarantined_record q USING (pipeline, generation, topic_id, partition, "offset")
WHERE c.pipeline = :pipeline AND c.epoch_id = :epoch_id
  AND (q.topic_id, q.partition, q."offset") > (:topic_id, :partition, :offset)
ORDER BY q.topic_id, q.partition, q."offset" LIMIT :at_most

-- name: declared_losses
SELECT topic, partition, start_offset, until_offset, generation FROM epochline.committed_range
WHERE pipeline = :pipeline AND chosen_by = 'declared loss' ORDER BY generation, topic, partition, start_offset

-- name: quarantine_differences
SELECT coalesce(x.epoch_id, q.epoch_id) AS epoch_id, coalesce(x.topic, q.topic) AS topic,
       coalesce(x.partition, q.partition) AS partition, coalesce(x."offset", q."offset") AS "offset",
       CASE WHEN q."offset" IS NULL THEN 'missing' WHEN x."offset" IS NULL THEN 'extra' ELSE 'changed' END AS kind
FROM pg_temp.audited_record x
FULL JOIN (SELECT * FROM epochline.quarantined_record k WHERE pipeline = :pipeline AND epoch_id = ANY (:epochs)
           AND NOT EXISTS (SELECT FROM pg_temp.audited_gap g WHERE g.topic = k.topic AND g.partition = k.partition
                           AND k."offset" >= g.first AND k."offset" < g.until)) q
     ON (q.epoch_id, q.topic, q.partition, q."offset") = (x.epoch_id, x.topic, x.partition, x."offset")
WHERE x."offset" IS NULL OR q."offset" IS NULL OR (q.key, q.value) IS DISTINCT FROM (x.key, x.value)
ORDER BY 1, 2, 3, 4

-- Operators' actions.

-- name: epoch
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: standing
SELECT paused_at, paused_by, paused_reason, dropped_at, dropped_by, dropped_reason
FROM epochline.pipeline WHERE pipeline = :pipeline

-- name: pause_pipeline
UPDATE epochline.pipeline SET paused_at = clock_timestamp(), paused_by = :by, paused_reason = :reason
WHERE pipeline = :pipeline AND paused_at IS NULL

-- name: resume_pipeline
UPDATE epochline.pipeline SET paused_at = NULL, paused_by = NULL, paused_reason = NULL WHERE pipeline = :pipeline

-- name: drop_pipeline
UPDATE epochline.pipeline SET dropped_at = clock_timestamp(), dropped_by = :by, dropped_reason = :reason
WHERE pipeline = :pipeline AND dropped_at IS NULL

-- name: claimed_targets
SELECT schema_name, table_name FROM epochline.target WHERE pipeline = :pipeline ORDER BY schema_name, table_name

-- name: release_targets
DELETE FROM epochline.target WHERE pipeline = :pipeline

-- name: begin_generation
UPDATE epochline.pipeline SET generation = generation + 1, cluster_id = coalesce(:cluster_id, cluster_id)
WHERE pipeline = :pipeline RETURNING generation, last_epoch_id, cluster_id

-- name: write_action
INSERT INTO epochline.action (pipeline, action, epoch_id, actor, reason, before, after)
VALUES (:pipeline, :action, :epoch_id, :actor, :reason, CAST(:before AS jsonb), CAST(:after AS jsonb))
RETURNING action_id, acted_at

-- name: actions
SELECT action_id, pipeline, action, epoch_id, actor, reason, before, after, acted_at
FROM epochline.action WHERE pipeline = :pipeline ORDER BY action_id

-- name: declare_lost
-- Compare-and-swap, as advance_head: what was lost begins at the head.
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       chosen_by, leader_epoch)
SELECT :pipeline, :generation, :topic, :topic_id, :partition, :start_offset, :until_offset, 'declared loss',
       :leader_epoch
WHERE :start_offset = (SELECT max(until_offset) FROM epochline.committed_range
                       WHERE pipeline = :pipeline AND generation = :generation AND topic_id = :topic_id
                         AND partition = :partition)

-- name: superseded_epochs
-- Rows of these epochs were read from logs whose offsets say nothing about those of the generation.
SELECT coalesce(max(epoch_id), 0) FROM epochline.epoch WHERE pipeline = :pipeline AND generation < :generation

-- Settings and failures.

-- name: keep_settings
UPDATE epochline.epoch SET settings = CAST(:settings AS jsonb) WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: settings_of_epoch
SELECT settings FROM epochline.epoch WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: pause_left
SELECT greatest(interval '0', max(committed_at) + make_interval(secs => :pause) - clock_timestamp())
FROM epochline.epoch WHERE pipeline = :pipeline AND state = 'COMMITTED'

-- name: failed_attempts
-- An attempt failed when its job said so, or when it was fenced before it was sealed: then it had gone silent.
SELECT count(*) FROM epochline.attempt
WHERE pipeline = :pipeline AND sealed_at IS NULL AND (fenced_at IS NOT NULL OR error IS NOT NULL)
  AND coalesce(ended_at, clock_timestamp()) > clock_timestamp() - make_interval(secs => :interval)

-- name: aborts
-- A pause for failures notes how many there had been by then: who resumes begins to count anew. A replay that was only
-- looked at is aborted, and failed at nothing.
WITH last AS (
    SELECT (SELECT max(epoch_id) FROM epochline.epoch WHERE pipeline = :pipeline AND state = 'COMMITTED') AS committed,
           (SELECT max((after->>'aborts')::bigint) FROM epochline.action
            WHERE pipeline = :pipeline AND action = :pause) AS at_pause
)
SELECT least(coalesce(sum(aborts) FILTER (WHERE epoch_id > coalesce(last.committed, 0)), 0),
             coalesce(sum(aborts), 0) - coalesce(max(last.at_pause), 0))::bigint AS in_a_row,
       coalesce(sum(aborts), 0)::bigint AS ever
FROM epochline.epoch, last WHERE pipeline = :pipeline AND kind <> 'replay'

-- Migrations and roles.

-- name: definition_sha256
-- The version of a file of definitions that this database has.
SELECT sha256 FROM epochline.definition WHERE name = :file

-- name: keep_definition
INSERT INTO epochline.definition (name, sha256) VALUES (:file, :sha256)
ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256, applied_at = clock_timestamp()

-- name: arrange_roles
SELECT statement FROM epochline.arrange_roles() AS statement

-- name: owner_may_own
-- Whether a new table can be given to the owners' role: it exists, and this database has granted to it.
SELECT coalesce(pg_has_role(to_regrole('epochline_owner'), 'SET')
                AND has_schema_privilege(to_regrole('epochline_owner'), CAST(:schema AS text), 'CREATE'), false)

-- name: writer_may_stage
SELECT coalesce(has_schema_privilege(to_regrole('epochline_writer'), 'epochline_staging', 'USAGE'), false)

-- name: writer_is_known
-- Asked by the writer's own login, of the catalogue alone: is there a ledger, and may it be read?
SELECT current_user AS login, to_regnamespace('epochline') IS NOT NULL AS ledger,
       coalesce(has_schema_privilege(to_regnamespace('epochline'), 'USAGE'), false)
           AND coalesce(has_schema_privilege(to_regnamespace('epochline_staging'), 'USAGE'), false) AS may_read

-- name: writer_standing
-- Asked by the writer's own login: whether it stands where the ledger's login stands, and may do its part.
SELECT current_user AS login,
       (SELECT token::text FROM epochline.attempt WHERE attempt_id = :attempt_id) AS token,
       coalesce(has_table_privilege(to_regclass(:staging), 'INSERT'), false) AS may_stage

-- name: ledger_standing
-- Asked by the ledger's login: the attempt's token, and whether it may end sessions of the writer's login.
SELECT token::text AS token,
       coalesce(pg_has_role(to_regrole(quote_ident(:login)), 'USAGE'), false)
           OR pg_has_role('pg_signal_backend', 'USAGE') AS may_end_sessions
FROM epochline.attempt WHERE attempt_id = :attempt_id

-- name: quarantine_selected
SELECT topic, partition, count(*) AS records FROM epochline.quarantined_record
WHERE pipeline = :pipeline AND generation = :generation AND requeued_by IS NULL
  AND (CAST(:epoch_id AS bigint) IS NULL OR epoch_id = :epoch_id) AND (CAST(:topic AS text) IS NULL OR topic = :topic)
  AND (CAST(:partition AS integer) IS NULL OR partition = :partition)
  AND (CAST(:offset AS bigint) IS NULL OR "offset" = :offset) AND (CAST(:reason AS text) IS NULL OR reason LIKE :reason)
GROUP BY topic, partition ORDER BY topic, partition

-- name: claim_quarantined
INSERT INTO epochline.requeue_claim (pipeline, epoch_id, generation, topic_id, partition, "offset")
SELECT pipeline, :claiming, generation, topic_id, partition, "offset" FROM epochline.quarantined_record
WHERE pipeline = :pipeline AND generation = :generation AND requeued_by IS NULL
  AND (CAST(:epoch_id AS bigint) IS NULL OR epoch_id = :epoch_id) AND (CAST(:topic AS text) IS NULL OR topic = :topic)
  AND (CAST(:partition AS integer) IS NULL OR partition = :partition)
  AND (CAST(:offset AS bigint) IS NULL OR "offset" = :offset) AND (CAST(:reason AS text) IS NULL OR reason LIKE :reason)

-- name: requeue_claims
SELECT q.topic, q.partition, count(*) AS records, count(q.requeued_by) AS requeued
FROM epochline.requeue_claim c
JOIN epochline.quarantined_record q USING (pipeline, generation, topic_id, partition, "offset")
WHERE c.pipeline = :pipeline AND c.epoch_id = :epoch_id GROUP BY q.topic, q.partition ORDER BY q.topic, q.partition

-- name: move_origin_back
-- Compare-and-swap: the range ends at the origin, which moves to where it starts.
UPDATE epochline.committed_range SET until_offset = :start_offset
WHERE pipeline = :pipeline AND generation = :generation AND topic_id = :topic_id AND partition = :partition
  AND start_offset IS NULL AND until_offset = :until_offset

-- name: insert_before_origin
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       epoch_id, chosen_by, leader_epoch)
VALUES (:pipeline, :generation, :topic, :topic_id, :partition, :start_offset, :until_offset, :epoch_id, 'extend back',
        :leader_epoch)

-- name: defer_chain
SET CONSTRAINTS epochline.starts_where_one_ended DEFERRED

-- name: check_chain
SET CONSTRAINTS epochline.starts_where_one_ended IMMEDIATE

-- name: keep_refused_row
INSERT INTO epochline.refused_row (pipeline, epoch_id, attempt, generation, sink, topic, topic_id, partition, "offset",
                                   "row", reason)
SELECT :pipeline, :epoch_id, :attempt, :generation, :sink, :topic, (
           SELECT topic_id FROM epochline.planned_range r
           WHERE r.pipeline = :pipeline AND r.epoch_id = :epoch_id AND r.topic = :topic AND r.partition = :partition
           UNION
           SELECT q.topic_id FROM epochline.requeue_claim c
           JOIN epochline.quarantined_record q USING (pipeline, generation, topic_id, partition, "offset")
           WHERE c.pipeline = :pipeline AND c.epoch_id = :epoch_id AND q.topic = :topic AND q.partition = :partition
             AND q."offset" = :offset),
       :partition, :offset, CAST(:row AS jsonb), :reason

-- name: superseded_until
-- Below the origin alone: what lies between it and the head stands in the generation's own chain.
SELECT coalesce(max(least(c.until_offset, origin.until_offset)), 0)
FROM epochline.committed_range origin
JOIN epochline.committed_range c
    ON (c.pipeline, c.topic_id, c.partition) = (origin.pipeline, origin.topic_id, origin.partition)
   AND c.generation < origin.generation AND c.start_offset < origin.until_offset
WHERE origin.pipeline = :pipeline AND origin.generation = :generation AND origin.topic_id = :topic_id
  AND origin.partition = :partition AND origin.start_offset IS NULL
  AND NOT EXISTS (SELECT FROM epochline.epoch e
                  JOIN epochline.epoch by ON (by.pipeline, by.epoch_id) = (e.pipeline, e.undone_by)
                  WHERE (e.pipeline, e.epoch_id) = (c.pipeline, c.epoch_id) AND by.kind = 'restore')

-- name: known_pipelines
SELECT pipeline FROM epochline.pipeline ORDER BY pipeline

-- name: stale_epochs
SELECT *, lease_until < clock_timestamp() AS lease_expired FROM epochline.epoch
WHERE state = 'PLANNED' AND lease_until < clock_timestamp() - make_interval(secs => :after)
ORDER BY pipeline, epoch_id

-- name: unexplained_staging
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'epochline_staging' AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (SELECT FROM epochline.staging s WHERE s.table_name = c.relname AND s.dropped_at IS NULL)
ORDER BY c.relname

-- name: state_now
-- Locked: whoever else writes the table has ended, or waits.
SELECT s.keys, s.digest, s.relation = c.oid AS is_same,
       (SELECT count(*) FROM pg_trigger t
        WHERE t.tgrelid = c.oid AND starts_with(t.tgname, :triggers) AND t.tgenabled IN ('O', 'A')) AS triggers
FROM epochline.state_table s
JOIN pg_class c ON c.oid = to_regclass(format('%I.%I', s.schema_name, s.table_name))
WHERE s.schema_name = :schema AND s.table_name = :table FOR UPDATE OF s

-- name: count_state
-- Of a table that was made anew, such as by a backup that was brought back: triggers saw nothing of what was loaded.
UPDATE epochline.state_table s SET keys = d.keys, digest = d.digest,
       relation = to_regclass(format('%I.%I', s.schema_name, s.table_name))
FROM epochline.state_digest(:schema, :table) d
WHERE s.schema_name = :schema AND s.table_name = :table RETURNING s.keys, s.digest

-- name: state_left
SELECT v.keys, v.digest, v.epoch_id FROM epochline.state_version v JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE v.pipeline = :pipeline AND v.state = :state AND e.undone_by IS NULL
ORDER BY v.epoch_id DESC LIMIT 1

-- name: leave_state
INSERT INTO epochline.state_version (pipeline, state, epoch_id, keys, digest)
SELECT :pipeline, :state, :epoch_id, keys, digest FROM epochline.state_table
WHERE schema_name = :schema AND table_name = :table
ON CONFLICT (pipeline, state, epoch_id) DO UPDATE
SET keys = excluded.keys, digest = excluded.digest, written_at = clock_timestamp()

-- name: last_committed
SELECT max(epoch_id) FROM epochline.epoch
WHERE pipeline = :pipeline AND state = 'COMMITTED' AND undone_by IS NULL

-- Event time.

-- name: watermark_left
-- By the last committed epoch, of whichever generation: time does not go back.
SELECT watermark FROM epochline.epoch
WHERE pipeline = :pipeline AND state = 'COMMITTED' AND undone_by IS NULL ORDER BY epoch_id DESC LIMIT 1

-- name: event_times
SELECT topic, topic_id, partition, newest_event_time, read_at FROM epochline.event_times WHERE pipeline = :pipeline

-- name: now
SELECT now()

-- Savepoints.

-- name: last_standing
-- The generation is that of the heads: where a topic was adopted since, the epoch is of an earlier one.
SELECT e.epoch_id, p.generation, e.watermark, p.cluster_id
FROM epochline.epoch e JOIN epochline.pipeline p USING (pipeline)
WHERE e.pipeline = :pipeline AND e.state = 'COMMITTED' AND e.undone_by IS NULL ORDER BY e.epoch_id DESC LIMIT 1

-- name: heads_with_times
SELECT h.topic, h.topic_id, h.partition, h.next_offset, c.leader_epoch, t.newest_event_time, t.read_at
FROM epochline.heads h
JOIN epochline.event_times t USING (pipeline, topic_id, partition)
JOIN epochline.committed_range c
    ON (c.pipeline, c.generation, c.topic_id, c.partition, c.until_offset)
     = (h.pipeline, h.generation, h.topic_id, h.partition, h.next_offset)
WHERE h.pipeline = :pipeline ORDER BY h.topic, h.partition, h.topic_id

-- name: keep_savepoint
INSERT INTO epochline.savepoint (pipeline, name, epoch_id, generation, cluster_id, watermark, declaration, made_by,
                                 reason)
VALUES (:pipeline, :savepoint, :epoch_id, :generation, :cluster_id, :watermark, CAST(:declaration AS jsonb),
        :made_by, :reason)

-- name: keep_savepoint_head
INSERT INTO epochline.savepoint_head (pipeline, name, topic, topic_id, partition, next_offset, leader_epoch,
                                      newest_event_time, read_at)
VALUES (:pipeline, :savepoint, :topic, :topic_id, :partition, :next_offset, :leader_epoch, :newest, :read_at)

-- name: keep_savepoint_state
INSERT INTO epochline.savepoint_state (pipeline, name, state, table_name, keys, digest)
SELECT :pipeline, :savepoint, :state, :table_name, keys, digest FROM epochline.state_table
WHERE schema_name = :schema AND table_name = :table

-- name: savepoints
SELECT pipeline, name, epoch_id, generation, cluster_id, watermark, made_by, reason, made_at, imported_at
FROM epochline.savepoint WHERE pipeline = :pipeline ORDER BY made_at, name

-- name: savepoint_heads
SELECT topic, topic_id, partition, next_offset, leader_epoch, newest_event_time, read_at
FROM epochline.savepoint_head WHERE pipeline = :pipeline AND name = :savepoint ORDER BY topic, partition, topic_id

-- name: savepoint_states
SELECT state, table_name, keys, digest FROM epochline.savepoint_state
WHERE pipeline = :pipeline AND name = :savepoint ORDER BY state

-- name: forget_savepoint
DELETE FROM epochline.savepoint WHERE pipeline = :pipeline AND name = :savepoint

-- name: standing_epochs_after
SELECT epoch_id FROM epochline.epoch
WHERE pipeline = :pipeline AND epoch_id > :epoch_id AND state = 'COMMITTED' AND undone_by IS NULL ORDER BY epoch_id

-- name: insert_restore
INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, kind, dag_id, run_id, host, declaration_hash, note,
                             lease_until, pre_committed_at, committed_at, records_read, records_passed,
                             records_skipped, records_quarantined, rows_written, watermark)
VALUES (:pipeline, :epoch_id, :generation, 'COMMITTED', 'restore', :dag_id, :run_id, :host, :hash, :note,
        clock_timestamp(), clock_timestamp(), clock_timestamp(), 0, 0, 0, 0, 0, :watermark)

-- name: write_restored_origin
INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
                                       chosen_by, leader_epoch, newest_event_time, read_at)
VALUES (:pipeline, :generation, :topic, :topic_id, :partition, NULL, :offset, :chosen_by, :leader_epoch, :newest,
        :read_at)

-- name: rows_sealed
SELECT m.sink, sum(m.rows)::bigint AS rows FROM epochline.manifest m JOIN epochline.attempt a USING (attempt_id)
WHERE a.pipeline = :pipeline AND a.epoch_id = ANY (:epochs) AND a.fenced_at IS NULL GROUP BY m.sink

-- name: mark_undone
UPDATE epochline.epoch SET undone_by = :by
WHERE pipeline = :pipeline AND epoch_id = ANY (:epochs) AND undone_by IS NULL

-- name: undone_by
SELECT undone_by FROM epochline.epoch WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: requeued_of
-- Records that these epochs set aside and that another epoch has brought into the target since.
SELECT count(*) FROM epochline.quarantined_record
WHERE pipeline = :pipeline AND epoch_id = ANY (:epochs) AND requeued_by IS NOT NULL

-- name: free_requeued
UPDATE epochline.quarantined_record SET requeued_by = NULL, requeued_at = NULL
WHERE pipeline = :pipeline AND requeued_by = ANY (:epochs)

-- name: forget_claims
DELETE FROM epochline.requeue_claim c USING epochline.quarantined_record q
WHERE (c.pipeline, c.generation, c.topic_id, c.partition, c."offset")
    = (q.pipeline, q.generation, q.topic_id, q.partition, q."offset")
  AND q.pipeline = :pipeline AND q.epoch_id = ANY (:epochs)

-- name: forget_quarantined
-- Their ranges are read again, by epochs that set aside again what is bad.
DELETE FROM epochline.quarantined_record WHERE pipeline = :pipeline AND epoch_id = ANY (:epochs)

-- name: keep_image
INSERT INTO epochline.before_image (pipeline, epoch_id, sink, table_name)
VALUES (:pipeline, :epoch_id, :sink, :table_name)

-- name: images
SELECT epoch_id, table_name FROM epochline.before_image
WHERE pipeline = :pipeline AND sink = :sink ORDER BY epoch_id DESC

-- name: forget_image
DELETE FROM epochline.before_image WHERE pipeline = :pipeline AND sink = :sink AND epoch_id = :epoch_id

-- name: savepoint_declaration
SELECT declaration FROM epochline.savepoint WHERE pipeline = :pipeline AND name = :savepoint

-- name: take_in_savepoint_state
INSERT INTO epochline.savepoint_state (pipeline, name, state, table_name, keys, digest)
VALUES (:pipeline, :savepoint, :state, :table_name, :keys, :digest)

-- name: mark_imported
UPDATE epochline.savepoint SET imported_at = now(), made_at = :made_at WHERE pipeline = :pipeline AND name = :savepoint

-- name: keep_sealed
UPDATE epochline.manifest SET body = CAST(:body AS jsonb) WHERE attempt_id = :attempt_id AND sink = :sink

-- name: write_receipt
-- A manifest names a topic by its outbox, a receipt by the topic.
INSERT INTO epochline.receipt (pipeline, epoch_id, sink, attempt_id, rows, body, shown_at,
                               inserted, updated, deleted, superseded, unchanged)
SELECT :pipeline, :epoch_id, :sink, m.attempt_id, m.rows, coalesce(m.body, '{}'), CASE WHEN :shown THEN now() END,
       :inserted, :updated, :deleted, :superseded, :unchanged
FROM epochline.manifest m WHERE m.attempt_id = :attempt_id AND m.sink = :manifest

-- name: due_receipts
SELECT r.epoch_id, r.sink, r.rows, r.body, r.tried_at IS NOT NULL AS tried, a.attempt, a.token, e.generation
FROM epochline.receipt r
JOIN epochline.attempt a USING (attempt_id)
JOIN epochline.epoch e ON (e.pipeline, e.epoch_id) = (r.pipeline, r.epoch_id)
WHERE r.pipeline = :pipeline AND r.shown_at IS NULL ORDER BY r.epoch_id, r.sink

-- name: unpublished
SELECT sink, count(*) AS epochs FROM epochline.receipt WHERE pipeline = :pipeline AND shown_at IS NULL
GROUP BY sink ORDER BY sink

-- name: try_to_show
UPDATE epochline.receipt SET tried_at = coalesce(tried_at, clock_timestamp())
WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND sink = :sink AND shown_at IS NULL

-- name: mark_shown
UPDATE epochline.receipt SET shown_at = clock_timestamp(), seconds = :seconds
WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND sink = :sink AND shown_at IS NULL

-- name: receipts_of_epoch
SELECT r.epoch_id, r.sink, r.rows, r.body, r.shown_at IS NOT NULL AS shown, a.attempt, a.token, e.generation
FROM epochline.receipt r
JOIN epochline.attempt a USING (attempt_id)
JOIN epochline.epoch e ON (e.pipeline, e.epoch_id) = (r.pipeline, r.epoch_id)
WHERE r.pipeline = :pipeline AND r.epoch_id = :epoch_id ORDER BY r.sink

-- name: last_shown
-- The newest epoch that a sink shows, by the attempt that it took its rows from.
SELECT r.epoch_id, a.token FROM epochline.receipt r JOIN epochline.attempt a USING (attempt_id)
WHERE r.pipeline = :pipeline AND r.sink = :sink AND r.shown_at IS NOT NULL ORDER BY r.epoch_id DESC LIMIT 1

-- name: committed_as
-- Whether the ledger knows that this attempt of this epoch was committed for the sink.
SELECT EXISTS (SELECT FROM epochline.receipt r JOIN epochline.attempt a USING (attempt_id)
               WHERE r.pipeline = :pipeline AND r.sink = :sink AND r.epoch_id = :epoch_id
                 AND a.token = CAST(:token AS uuid))
    OR EXISTS (SELECT FROM epochline.accepted_epoch
               WHERE pipeline = :pipeline AND shown_by = :sink AND token = CAST(:token AS uuid))

-- name: knows_token
-- A sealed attempt may be committed by whoever comes next, and may have been by a ledger that is newer than this one.
SELECT EXISTS (SELECT FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
               WHERE a.token = CAST(:token AS uuid) AND a.pipeline = :pipeline AND a.sealed_at IS NOT NULL
                 AND a.fenced_at IS NULL AND e.state IN ('PRE_COMMITTED', 'COMMITTED'))
    OR EXISTS (SELECT FROM epochline.accepted_epoch WHERE pipeline = :pipeline AND token = CAST(:token AS uuid))

-- name: accept_epoch
INSERT INTO epochline.accepted_epoch (pipeline, shown_by, generation, epoch_id, token, reached)
VALUES (:pipeline, :shown_by, :generation, :epoch_id, CAST(:token AS uuid), CAST(:reached AS jsonb))

-- name: accepted_epochs
SELECT shown_by, generation, epoch_id, token, reached FROM (
    SELECT DISTINCT ON (shown_by, token) * FROM epochline.accepted_epoch
    WHERE pipeline = :pipeline ORDER BY shown_by, token, accepted_id DESC) newest
ORDER BY accepted_id

-- name: received
SELECT sink FROM epochline.receipt WHERE pipeline = :pipeline AND epoch_id = :epoch_id

-- name: may_stand_still
-- How long this transaction may wait for its client, whatever holds for others.
SELECT set_config('idle_in_transaction_session_timeout', CAST(CAST(:milliseconds AS integer) AS text), true)

-- name: shown_rate
-- Rows per second of a sink, by its newest epochs that took long enough to be measured.
SELECT sum(rows) / sum(seconds) FROM (
    SELECT rows, seconds FROM epochline.receipt
    WHERE pipeline = :pipeline AND sink = :sink AND shown_at IS NOT NULL AND seconds > 0 AND rows >= 1000
    ORDER BY epoch_id DESC LIMIT 10) newest

-- name: untold_receipts
SELECT r.epoch_id, r.sink, r.rows, r.shown_at,
       (SELECT jsonb_object_agg(topic, partitions) FROM (
            SELECT topic, jsonb_object_agg(partition, jsonb_build_array(start_offset, until_offset)) AS partitions
            FROM epochline.planned_range p WHERE (p.pipeline, p.epoch_id) = (r.pipeline, r.epoch_id)
            GROUP BY topic) topics) AS offsets
FROM epochline.receipt r
WHERE r.pipeline = :pipeline AND r.heard_at IS NULL AND r.shown_at IS NOT NULL
ORDER BY r.epoch_id, r.sink LIMIT :most

-- name: tell_receipt
UPDATE epochline.receipt SET told_by = :run_id WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND sink = :sink

-- name: hear_receipt
UPDATE epochline.receipt SET heard_at = clock_timestamp()
WHERE pipeline = :pipeline AND epoch_id = :epoch_id AND sink = :sink AND told_by IS NOT NULL AND heard_at IS NULL
