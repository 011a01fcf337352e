-- What release 0.1.0 left in a database besides the tables of its first migration: its functions and views, and an
-- aborted, a committed and a sealed epoch of the pipeline `orders`, written by the code of that release.
SET check_function_bodies = false;
CREATE FUNCTION epochline.arrange_roles() RETURNS SETOF text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
DECLARE
    roles     CONSTANT text[] := ARRAY['epochline_owner', 'epochline_writer', 'epochline_reader'];
    step      integer;
    statement text;
    relation  record;
BEGIN
    FOR step IN 1..3 LOOP
        FOR statement IN
            SELECT format('CREATE ROLE %I NOLOGIN', role) FROM unnest(roles) role
            WHERE step = 1 AND to_regrole(role) IS NULL
            UNION ALL
            -- An owner also needs the membership to end the sessions of a login that is the writer role itself.
            SELECT 'GRANT epochline_writer TO epochline_owner'
            WHERE step = 2
              AND pg_has_role(to_regrole('epochline_owner'), to_regrole('epochline_writer'), 'USAGE') IS NOT TRUE
            UNION ALL
            SELECT format('GRANT epochline_owner TO %I', current_user)
            WHERE step = 2 AND pg_has_role(to_regrole('epochline_owner'), 'USAGE') IS NOT TRUE
            UNION ALL
            -- TEMPORARY: an audit stores the records that it read in temporary tables.
            SELECT format('GRANT %s ON DATABASE %I TO %I', wanted, current_database(), role)
            FROM (SELECT role, 'CONNECT' FROM unnest(roles) role
                  UNION ALL SELECT 'epochline_owner', 'TEMPORARY') AS rights (role, wanted)
            WHERE step = 3 AND has_database_privilege(to_regrole(role), current_database(), wanted) IS NOT TRUE
        LOOP
            IF step = 3 AND NOT (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database
                                 WHERE datname = current_database()) THEN
                -- Without ownership of the database, GRANT only warns and changes nothing.
                RETURN NEXT statement || ';';
                CONTINUE;
            END IF;
            BEGIN
                EXECUTE statement;
            EXCEPTION
                -- The migration of another database created it at the same moment.
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege OR undefined_object THEN RETURN NEXT statement || ';';
            END;
        END LOOP;
    END LOOP;
    -- Only the owner of the schema may grant on it. For every other caller the function ends here.
    IF (SELECT bool_or(to_regrole(role) IS NULL) FROM unnest(roles) role)
       OR NOT (SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'epochline') THEN
        RETURN;
    END IF;
    GRANT USAGE, CREATE ON SCHEMA epochline, epochline_staging TO epochline_owner;
    GRANT USAGE ON SCHEMA epochline, epochline_staging TO epochline_writer;
    GRANT USAGE ON SCHEMA epochline TO epochline_reader;
    FOR relation IN
        SELECT c.oid::regclass AS name, c.relkind = 'v' AS is_view,
               CASE WHEN c.relname = 'quarantine' AND c.relkind = 'v' THEN
                   (SELECT format('(%s)', string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum))
                    FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                      AND a.attname NOT IN ('key', 'value', 'headers', 'reason'))
               ELSE '' END AS columns
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'epochline' AND c.relkind IN ('r', 'p', 'v')
          AND c.relname NOT IN ('alembic_version', 'definition')
          AND pg_has_role(c.relowner, 'USAGE')
    LOOP
        IF relation.is_view THEN
            EXECUTE format('GRANT SELECT ON %s TO epochline_owner', relation.name);
            EXECUTE format('GRANT SELECT %s ON %s TO epochline_reader', relation.columns, relation.name);
        ELSE
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO epochline_owner', relation.name);
        END IF;
    END LOOP;
    GRANT SELECT ON epochline.alembic_version, epochline.definition TO epochline_owner;
    GRANT SELECT ON epochline.epoch, epochline.declaration, epochline.planned_range, epochline.planned_target,
        epochline.attempt, epochline.part, epochline.requeue_claim, epochline.quarantined_record, epochline.event_times,
        epochline.refused_row TO epochline_writer;
    -- SELECT … FOR KEY SHARE needs the right to update at least one column.
    GRANT UPDATE (job_ended_at, error, watermark, records_too_late) ON epochline.attempt TO epochline_writer;
    -- DELETE: at its end the job deletes the counts of its parse tasks. The seal refuses if a real part is missing.
    GRANT INSERT, DELETE ON epochline.part TO epochline_writer;
    GRANT INSERT ON epochline.manifest TO epochline_writer;
    GRANT INSERT, SELECT ON epochline.fenced_write TO epochline_writer;
    GRANT INSERT ON epochline.refused_row TO epochline_writer;
END $$;
CREATE FUNCTION epochline.follow_state() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    SET "TimeZone" TO 'UTC'
    SET "DateStyle" TO 'ISO, YMD'
    SET "IntervalStyle" TO 'postgres'
    SET extra_float_digits TO '1'
    SET bytea_output TO 'hex'
    SET lc_monetary TO 'C'
    AS $$
DECLARE
    more_keys bigint  := 0;
    more      numeric := 0;
    of_some   numeric;
    number    bigint;
BEGIN
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) INTO number, of_some FROM new_rows r;
        more_keys := more_keys + number;
        more := more + of_some;
    END IF;
    IF TG_OP IN ('DELETE', 'UPDATE') THEN
        SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) INTO number, of_some FROM old_rows r;
        more_keys := more_keys - number;
        more := more - of_some;
    END IF;
    UPDATE epochline.state_table SET keys = keys + more_keys, digest = digest + more
    WHERE schema_name = TG_TABLE_SCHEMA AND table_name = TG_TABLE_NAME;
    RETURN NULL;
END $$;
CREATE FUNCTION epochline.follow_state_truncated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    UPDATE epochline.state_table SET keys = 0, digest = 0
    WHERE schema_name = TG_TABLE_SCHEMA AND table_name = TG_TABLE_NAME;
    RETURN NULL;
END $$;
CREATE FUNCTION epochline.row_digest(row_text text) RETURNS numeric
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (((('x'::text || substr(md5(row_text), 1, 16)))::bit(64))::bigint)::numeric;
CREATE FUNCTION epochline.state_digest(schema_name text, table_name text, OUT keys bigint, OUT digest numeric) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog'
    SET "TimeZone" TO 'UTC'
    SET "DateStyle" TO 'ISO, YMD'
    SET "IntervalStyle" TO 'postgres'
    SET extra_float_digits TO '1'
    SET bytea_output TO 'hex'
    SET lc_monetary TO 'C'
    AS $$
BEGIN
    EXECUTE format('SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) FROM %I.%I r',
                   schema_name, table_name) INTO keys, digest;
END $$;
CREATE FUNCTION epochline.take_epoch(consumer text, pipeline text, sink text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $_$
DECLARE
    next_epoch bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(format('epochline.take_epoch %s %s %s', $1, $2, $3), 0));
    -- Sinks show epochs in the order of their ids, so no epoch with a lower id can appear later.
    SELECT min(r.epoch_id) INTO next_epoch FROM epochline.receipts r
    WHERE r.pipeline = $2 AND r.sink = $3 AND r.state = 'SHOWN' AND r.undone_by IS NULL
      AND r.epoch_id > coalesce((SELECT max(c.epoch_id) FROM epochline.consumer_cursor c
                                 WHERE c.consumer = $1 AND c.pipeline = $2 AND c.sink = $3), 0);
    IF next_epoch IS NOT NULL THEN
        INSERT INTO epochline.consumer_cursor (consumer, pipeline, sink, epoch_id) VALUES ($1, $2, $3, next_epoch);
    END IF;
    RETURN next_epoch;
END $_$;
CREATE VIEW epochline.actions AS
 SELECT action_id,
    pipeline,
    action,
    epoch_id,
    actor,
    reason,
    before,
    after,
    acted_at
   FROM epochline.action;
CREATE VIEW epochline.attempts AS
 SELECT pipeline,
    epoch_id,
    attempt,
        CASE
            WHEN (fenced_at IS NOT NULL) THEN 'FENCED'::text
            WHEN (ended_at IS NOT NULL) THEN 'COMMITTED'::text
            WHEN (sealed_at IS NOT NULL) THEN 'SEALED'::text
            ELSE 'RUNNING'::text
        END AS state,
    run_id,
    host,
    started_at,
    ended_at,
    (COALESCE((rows_staged)::numeric, ( SELECT sum(p.rows) AS sum
           FROM epochline.part p
          WHERE (p.attempt_id = a.attempt_id)), (0)::numeric))::bigint AS rows_staged,
    ( SELECT count(*) AS count
           FROM epochline.fenced_write f
          WHERE (f.attempt_id = a.attempt_id)) AS fenced_writes,
    error
   FROM epochline.attempt a;
CREATE VIEW epochline.committed_ranges AS
 SELECT c.pipeline,
    c.generation,
    c.topic,
    c.topic_id,
    c.partition,
    c.start_offset,
    c.until_offset,
    c.epoch_id,
    c.chosen_by,
    c.leader_epoch,
    c.committed_at,
    (c.generation < p.generation) AS superseded
   FROM (epochline.committed_range c
     JOIN epochline.pipeline p USING (pipeline));
CREATE VIEW epochline.epochs AS
 SELECT pipeline,
    generation,
    epoch_id,
    state,
    attempt,
    kind,
    dag_id,
    run_id,
    planned_at,
    pre_committed_at,
    committed_at,
    aborted_at,
    records_read,
    records_passed,
    records_quarantined,
    rows_written,
    approval,
    error,
    records_skipped,
    record_limit,
    note,
    declaration_hash,
    lease_until,
    settings,
    interval_start,
    interval_end,
    aborts,
    watermark,
    records_too_late,
    undone_by,
    replays
   FROM epochline.epoch;
CREATE VIEW epochline.heads AS
 SELECT c.pipeline,
    c.generation,
    c.topic,
    c.topic_id,
    c.partition,
    o.until_offset AS origin_offset,
    c.until_offset AS next_offset,
    c.epoch_id,
    c.committed_at
   FROM ((( SELECT DISTINCT ON (committed_range.pipeline, committed_range.generation, committed_range.topic_id, committed_range.partition) committed_range.pipeline,
            committed_range.generation,
            committed_range.topic,
            committed_range.topic_id,
            committed_range.partition,
            committed_range.start_offset,
            committed_range.until_offset,
            committed_range.epoch_id,
            committed_range.chosen_by,
            committed_range.leader_epoch,
            committed_range.committed_at,
            committed_range.newest_event_time,
            committed_range.read_at
           FROM epochline.committed_range
          ORDER BY committed_range.pipeline, committed_range.generation, committed_range.topic_id, committed_range.partition, committed_range.until_offset DESC) c
     JOIN epochline.committed_range o USING (pipeline, generation, topic_id, partition))
     JOIN epochline.pipeline p ON (((p.pipeline = c.pipeline) AND (p.generation = c.generation))))
  WHERE (o.start_offset IS NULL);
CREATE VIEW epochline.event_times AS
 SELECT h.pipeline,
    h.topic,
    h.topic_id,
    h.partition,
    COALESCE(t.newest_event_time, o.newest_event_time) AS newest_event_time,
    COALESCE(t.planned_at, o.read_at) AS read_at
   FROM ((epochline.heads h
     JOIN epochline.committed_range o ON ((((o.pipeline = h.pipeline) AND (o.generation = h.generation) AND (o.topic_id = h.topic_id) AND (o.partition = h.partition)) AND (o.start_offset IS NULL))))
     LEFT JOIN LATERAL ( SELECT r.newest_event_time,
            e.planned_at
           FROM (epochline.planned_range r
             JOIN epochline.epoch e USING (pipeline, epoch_id))
          WHERE ((r.pipeline = h.pipeline) AND (r.topic_id = h.topic_id) AND (r.partition = h.partition) AND (r.newest_event_time IS NOT NULL) AND (e.state = 'COMMITTED'::text) AND (e.undone_by IS NULL))
          ORDER BY r.epoch_id DESC
         LIMIT 1) t ON (true));
CREATE VIEW epochline.offsets AS
 SELECT r.pipeline,
    e.generation,
    r.epoch_id,
    r.topic,
    r.topic_id,
    r.partition,
    r.start_offset,
    r.until_offset,
    e.state,
    r.records_read,
    r.records_passed,
    r.records_skipped,
    r.records_quarantined,
    r.first_offset,
    r.last_offset,
    r.leader_epoch,
    r.newest_event_time
   FROM (epochline.planned_range r
     JOIN epochline.epoch e USING (pipeline, epoch_id));
CREATE VIEW epochline.pipelines AS
 SELECT pipeline,
    generation,
    last_epoch_id,
    cluster_id,
    created_at,
    paused_at,
    paused_by,
    paused_reason,
    dropped_at,
    dropped_by,
    dropped_reason
   FROM epochline.pipeline;
CREATE VIEW epochline.quarantine AS
 SELECT pipeline,
    epoch_id,
    topic,
    partition,
    "offset",
    key,
    value,
    reason,
    quarantined_at,
    generation,
    record_timestamp,
    headers,
    requeued_by,
    requeued_at
   FROM epochline.quarantined_record;
CREATE VIEW epochline.receipts AS
 SELECT r.pipeline,
    e.generation,
    r.epoch_id,
    r.sink,
        CASE
            WHEN (r.shown_at IS NOT NULL) THEN 'SHOWN'::text
            WHEN (r.tried_at IS NOT NULL) THEN 'OPEN'::text
            ELSE 'DUE'::text
        END AS state,
    r.rows,
    r.due_at,
    r.tried_at,
    r.shown_at,
    r.seconds,
    a.token,
    e.undone_by,
    r.inserted,
    r.updated,
    r.deleted,
    r.superseded,
    r.unchanged
   FROM ((epochline.receipt r
     JOIN epochline.epoch e USING (pipeline, epoch_id))
     JOIN epochline.attempt a USING (attempt_id));
CREATE VIEW epochline.savepoints AS
 SELECT pipeline,
    name,
    epoch_id,
    generation,
    watermark,
    made_by,
    reason,
    made_at,
    imported_at,
    (( SELECT sum(t.keys) AS sum
           FROM epochline.savepoint_state t
          WHERE ((t.pipeline = s.pipeline) AND (t.name = s.name))))::bigint AS keys
   FROM epochline.savepoint s;
CREATE VIEW epochline.state AS
 SELECT pipeline,
    state,
    epoch_id,
    keys,
    digest,
    written_at
   FROM epochline.state_version v;
CREATE TABLE epochline_staging.stg__quarantine_26211791f4_e3_a1 (
    topic text,
    partition integer,
    "offset" bigint,
    record_timestamp timestamp with time zone,
    key bytea,
    value bytea,
    headers text,
    reason text
);
CREATE TABLE epochline_staging.stg_orders_2a28a411d7_e3_a1 (
    value text,
    _topic text,
    _partition integer,
    _offset bigint,
    _row integer
);
CREATE TABLE public.orders (
    value text,
    _topic text,
    _partition integer,
    _offset bigint,
    _row integer,
    _epoch bigint
);
INSERT INTO epochline.declaration VALUES ('7699c327d466b007', 'orders', '{"name": "orders", "tags": ["epochline"], "parse": {"kind": "text", "column": "value"}, "sinks": [{"key": [], "mode": "append", "table": "orders", "select": null, "columns": {"value": "text"}, "lineage": true, "measures": [], "order_by": [], "tombstone": null, "aggregated": false}], "record": {}, "source": {"topics": ["orders"], "pattern": null, "startup": "earliest", "connection": "epochline_kafka", "gaps_expected": false, "records_per_epoch": 1000000}, "explode": null, "profile": null, "schedule": null, "settings": {"restart": null, "timeout": null, "interval": null, "on_cancel": null, "semantics": null, "parallelism": null, "minimum_pause": null, "max_concurrent": null, "tolerable_failures": null, "fail_on_epoch_error": null}, "transform": null, "spark_conf": {}, "bad_records": "quarantine", "lock_timeout": "PT30S", "spark_connection": "spark_default", "writer_connection": null, "postgres_connection": "epochline_postgres", "commit_statement_timeout": "PT15M"}', '2026-11-24 03:58:41.009777+00');
INSERT INTO epochline.pipeline VALUES ('orders', 1, 3, 'fake', '2026-11-24 03:58:40.931439+00', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.definition VALUES ('functions', '9610c220dd6be4069bf1a453d75378e62e7fb1ddfba615032f1228a320559ad2', '2026-11-24 03:58:40.553481+00');
INSERT INTO epochline.definition VALUES ('views', '5877f6a17b50f4d80485daf86c2cf94b14401f4ab1fcf692ce7ffe209eb92d81', '2026-11-24 03:58:40.553481+00');
INSERT INTO epochline.definition VALUES ('roles', 'bef8d71558ad71e7b4e3046ca482353ea2b4ec0c87bfd903f53c541e96188d19', '2026-11-24 03:58:40.553481+00');
INSERT INTO epochline.epoch VALUES ('orders', 3, 1, 'PRE_COMMITTED', 1, 'regular', 'orders', 'run-2', 'here', '7699c327d466b007', 6, NULL, '2026-11-24 03:59:41.755934+00', NULL, '2026-11-24 03:58:41.696268+00', '2026-11-24 03:58:41.87737+00', NULL, NULL, 6, 6, 0, 0, NULL, NULL, '{"restart": {"from": "default", "value": {"kind": "none"}}, "timeout": {"from": "default", "value": 3600.0}, "interval": {"from": "default", "value": null}, "on_cancel": {"from": "default", "value": "retain"}, "semantics": {"from": "default", "value": "exactly_once"}, "parallelism": {"from": "default", "value": null}, "minimum_pause": {"from": "default", "value": 0.0}, "max_concurrent": {"from": "default", "value": 1}, "tolerable_failures": {"from": "default", "value": null}}', NULL, NULL, 0, NULL, NULL, NULL, NULL);
INSERT INTO epochline.epoch VALUES ('orders', 1, 1, 'ABORTED', 1, 'regular', 'orders', 'run-0', 'here', '7699c327d466b007', 4, NULL, '2026-11-24 03:59:41.097642+00', NULL, '2026-11-24 03:58:41.009777+00', NULL, NULL, '2026-11-24 03:58:41.119644+00', NULL, NULL, NULL, NULL, NULL, 'somebody stopped it', '{"restart": {"from": "default", "value": {"kind": "none"}}, "timeout": {"from": "default", "value": 3600.0}, "interval": {"from": "default", "value": null}, "on_cancel": {"from": "default", "value": "retain"}, "semantics": {"from": "default", "value": "exactly_once"}, "parallelism": {"from": "default", "value": null}, "minimum_pause": {"from": "default", "value": 0.0}, "max_concurrent": {"from": "default", "value": 1}, "tolerable_failures": {"from": "default", "value": null}}', NULL, NULL, 1, NULL, NULL, NULL, NULL);
INSERT INTO epochline.epoch VALUES ('orders', 2, 1, 'COMMITTED', 1, 'regular', 'orders', 'run-1', 'here', '7699c327d466b007', 6, NULL, '2026-11-24 03:59:41.348691+00', NULL, '2026-11-24 03:58:41.294193+00', '2026-11-24 03:58:41.468313+00', '2026-11-24 03:58:41.533275+00', NULL, 6, 6, 0, 0, 6, NULL, '{"restart": {"from": "default", "value": {"kind": "none"}}, "timeout": {"from": "default", "value": 3600.0}, "interval": {"from": "default", "value": null}, "on_cancel": {"from": "default", "value": "retain"}, "semantics": {"from": "default", "value": "exactly_once"}, "parallelism": {"from": "default", "value": null}, "minimum_pause": {"from": "default", "value": 0.0}, "max_concurrent": {"from": "default", "value": 1}, "tolerable_failures": {"from": "default", "value": null}}', NULL, NULL, 0, NULL, NULL, NULL, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, 0, 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, 0, 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 2, 'orders', 'id-of-orders', 0, 0, 4, 0, 4, 4, 0, 0, 0, 3, 1, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 2, 'orders', 'id-of-orders', 1, 0, 2, 0, 2, 2, 0, 0, 0, 1, 1, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 3, 'orders', 'id-of-orders', 0, 4, 8, 0, 4, 4, 0, 0, 4, 7, 1, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 3, 'orders', 'id-of-orders', 1, 2, 4, 0, 2, 2, 0, 0, 2, 3, 1, NULL);
INSERT INTO epochline.planned_target VALUES ('orders', 1, 'orders', '[["value", "text"]]');
INSERT INTO epochline.planned_target VALUES ('orders', 2, 'orders', '[["value", "text"]]');
INSERT INTO epochline.planned_target VALUES ('orders', 3, 'orders', '[["value", "text"]]');
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (1, 'orders', 1, 1, '858864ed-e9f5-4132-a734-22753f50efdb', 'orders', 'run-0', 'here', '2026-11-24 03:58:41.065103+00', NULL, NULL, '2026-11-24 03:58:41.11831+00', '2026-11-24 03:58:41.11831+00', NULL, 'somebody stopped it', NULL, NULL);
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (2, 'orders', 2, 1, 'cc463949-2360-4634-9e8e-2296bdd64084', 'orders', 'run-1', 'here', '2026-11-24 03:58:41.326586+00', '2026-11-24 03:58:41.387492+00', '2026-11-24 03:58:41.467622+00', NULL, '2026-11-24 03:58:41.532875+00', 6, NULL, NULL, NULL);
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (3, 'orders', 3, 1, 'db60cffc-6f78-4856-9faf-dc866518d5e5', 'orders', 'run-2', 'here', '2026-11-24 03:58:41.736133+00', '2026-11-24 03:58:41.801235+00', '2026-11-24 03:58:41.876794+00', NULL, NULL, 6, NULL, NULL, NULL);
INSERT INTO epochline.manifest VALUES (2, 'orders', '0198a8f0-0000-7000-8000-000000000001', 2, 6, '2026-11-24 03:58:41.387492+00', NULL);
INSERT INTO epochline.manifest VALUES (2, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 2, 0, '2026-11-24 03:58:41.387492+00', NULL);
INSERT INTO epochline.manifest VALUES (3, 'orders', '0198a8f0-0000-7000-8000-000000000001', 2, 6, '2026-11-24 03:58:41.801235+00', NULL);
INSERT INTO epochline.manifest VALUES (3, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 2, 0, '2026-11-24 03:58:41.801235+00', NULL);
INSERT INTO epochline.part VALUES (2, 'orders', '0198a8f0-0000-7000-8000-000000000001', 0, 4, '{}', '2026-11-24 03:58:41.361217+00');
INSERT INTO epochline.part VALUES (2, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 0, 0, '{"seen": [{"topic": "orders", "digest": "1", "newest": null, "passed": 4, "skipped": 0, "received": 4, "partition": 0, "last_offset": 3, "quarantined": 0, "first_offset": 0}]}', '2026-11-24 03:58:41.361217+00');
INSERT INTO epochline.part VALUES (2, 'orders', '0198a8f0-0000-7000-8000-000000000001', 1, 2, '{}', '2026-11-24 03:58:41.37645+00');
INSERT INTO epochline.part VALUES (2, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 1, 0, '{"seen": [{"topic": "orders", "digest": "1", "newest": null, "passed": 2, "skipped": 0, "received": 2, "partition": 1, "last_offset": 1, "quarantined": 0, "first_offset": 0}]}', '2026-11-24 03:58:41.37645+00');
INSERT INTO epochline.part VALUES (3, 'orders', '0198a8f0-0000-7000-8000-000000000001', 0, 4, '{}', '2026-11-24 03:58:41.768909+00');
INSERT INTO epochline.part VALUES (3, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 0, 0, '{"seen": [{"topic": "orders", "digest": "1", "newest": null, "passed": 4, "skipped": 0, "received": 4, "partition": 0, "last_offset": 7, "quarantined": 0, "first_offset": 4}]}', '2026-11-24 03:58:41.768909+00');
INSERT INTO epochline.part VALUES (3, 'orders', '0198a8f0-0000-7000-8000-000000000001', 1, 2, '{}', '2026-11-24 03:58:41.785016+00');
INSERT INTO epochline.part VALUES (3, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 1, 0, '{"seen": [{"topic": "orders", "digest": "1", "newest": null, "passed": 2, "skipped": 0, "received": 2, "partition": 1, "last_offset": 3, "quarantined": 0, "first_offset": 2}]}', '2026-11-24 03:58:41.785016+00');
INSERT INTO epochline.staging VALUES (1, 'orders', 'stg_orders_2a28a411d7_e1_a1', '2026-11-24 03:58:41.180109+00');
INSERT INTO epochline.staging VALUES (1, '_quarantine', 'stg__quarantine_26211791f4_e1_a1', '2026-11-24 03:58:41.180228+00');
INSERT INTO epochline.staging VALUES (2, 'orders', 'stg_orders_2a28a411d7_e2_a1', '2026-11-24 03:58:41.532504+00');
INSERT INTO epochline.staging VALUES (2, '_quarantine', 'stg__quarantine_26211791f4_e2_a1', '2026-11-24 03:58:41.53253+00');
INSERT INTO epochline.staging VALUES (3, 'orders', 'stg_orders_2a28a411d7_e3_a1', NULL);
INSERT INTO epochline.staging VALUES (3, '_quarantine', 'stg__quarantine_26211791f4_e3_a1', NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, NULL, 0, NULL, 'startup earliest', 0, '2026-11-24 03:58:40.985685+00', NULL, NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, NULL, 0, NULL, 'startup earliest', 0, '2026-11-24 03:58:40.985685+00', NULL, NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, 0, 4, 2, 'epoch', 0, '2026-11-24 03:58:41.498698+00', NULL, NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, 0, 2, 2, 'epoch', 0, '2026-11-24 03:58:41.498698+00', NULL, NULL);
INSERT INTO epochline.receipt VALUES ('orders', 2, 'orders', 2, 6, '{}', '2026-11-24 03:58:41.498698+00', NULL, '2026-11-24 03:58:41.498698+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.target VALUES ('public', 'orders', 'orders', 'orders', '2026-11-24 03:58:41.009777+00');
INSERT INTO epochline_staging.stg_orders_2a28a411d7_e3_a1 VALUES ('orders-0@4', 'orders', 0, 4, 0);
INSERT INTO epochline_staging.stg_orders_2a28a411d7_e3_a1 VALUES ('orders-0@5', 'orders', 0, 5, 0);
INSERT INTO epochline_staging.stg_orders_2a28a411d7_e3_a1 VALUES ('orders-0@6', 'orders', 0, 6, 0);
INSERT INTO epochline_staging.stg_orders_2a28a411d7_e3_a1 VALUES ('orders-0@7', 'orders', 0, 7, 0);
INSERT INTO epochline_staging.stg_orders_2a28a411d7_e3_a1 VALUES ('orders-1@2', 'orders', 1, 2, 0);
INSERT INTO epochline_staging.stg_orders_2a28a411d7_e3_a1 VALUES ('orders-1@3', 'orders', 1, 3, 0);
INSERT INTO public.orders VALUES ('orders-0@0', 'orders', 0, 0, 0, 2);
INSERT INTO public.orders VALUES ('orders-0@1', 'orders', 0, 1, 0, 2);
INSERT INTO public.orders VALUES ('orders-0@2', 'orders', 0, 2, 0, 2);
INSERT INTO public.orders VALUES ('orders-0@3', 'orders', 0, 3, 0, 2);
INSERT INTO public.orders VALUES ('orders-1@0', 'orders', 1, 0, 0, 2);
INSERT INTO public.orders VALUES ('orders-1@1', 'orders', 1, 1, 0, 2);
SELECT pg_catalog.setval('epochline.attempt_attempt_id_seq', 3, true);
