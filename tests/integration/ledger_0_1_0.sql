-- A database as release 0.1.0 left it: pg_dump's text, without comments and settings of the session.
-- It holds an aborted, a committed and a sealed epoch of the pipeline `orders`, written by the code of that release.
SET check_function_bodies = false;
CREATE SCHEMA epochline;
CREATE SCHEMA epochline_staging;
COMMENT ON SCHEMA public IS 'standard public schema';
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
CREATE FUNCTION epochline.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% is written once', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE FUNCTION epochline.refuse_change_of_chain() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.start_offset IS NULL AND NEW.start_offset IS NULL
       AND NEW.until_offset < OLD.until_offset
       AND (NEW.pipeline, NEW.generation, NEW.topic, NEW.topic_id, NEW.partition)
           = (OLD.pipeline, OLD.generation, OLD.topic, OLD.topic_id, OLD.partition)
       AND NEW.epoch_id IS NULL THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% is written once', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
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
CREATE TABLE epochline.accepted_epoch (
    accepted_id bigint NOT NULL,
    pipeline text NOT NULL,
    shown_by text NOT NULL,
    generation integer NOT NULL,
    epoch_id bigint NOT NULL,
    token uuid,
    reached jsonb,
    accepted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE epochline.accepted_epoch ALTER COLUMN accepted_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME epochline.accepted_epoch_accepted_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE epochline.action (
    action_id bigint NOT NULL,
    pipeline text NOT NULL,
    action text NOT NULL,
    epoch_id bigint,
    actor text NOT NULL,
    reason text NOT NULL,
    before jsonb NOT NULL,
    after jsonb NOT NULL,
    acted_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT action_actor_check CHECK ((actor <> ''::text)),
    CONSTRAINT action_reason_check CHECK ((reason <> ''::text))
);
ALTER TABLE epochline.action ALTER COLUMN action_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME epochline.action_action_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
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
CREATE TABLE epochline.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE epochline.attempt (
    attempt_id bigint NOT NULL,
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    attempt integer NOT NULL,
    token uuid DEFAULT gen_random_uuid() NOT NULL,
    dag_id text NOT NULL,
    run_id text NOT NULL,
    host text NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    job_ended_at timestamp with time zone,
    sealed_at timestamp with time zone,
    fenced_at timestamp with time zone,
    ended_at timestamp with time zone,
    rows_staged bigint,
    error text,
    watermark timestamp with time zone,
    records_too_late bigint,
    CONSTRAINT attempt_attempt_check CHECK ((attempt > 0)),
    CONSTRAINT attempt_records_too_late_check CHECK ((records_too_late >= 0))
);
ALTER TABLE epochline.attempt ALTER COLUMN attempt_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME epochline.attempt_attempt_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE epochline.fenced_write (
    attempt_id bigint NOT NULL,
    backend_pid integer NOT NULL,
    host text NOT NULL,
    what text NOT NULL,
    refused_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE epochline.part (
    attempt_id bigint NOT NULL,
    sink text NOT NULL,
    write_id uuid NOT NULL,
    spark_partition integer NOT NULL,
    rows bigint NOT NULL,
    message jsonb DEFAULT '{}'::jsonb NOT NULL,
    inserted_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT part_rows_check CHECK ((rows >= 0))
);
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
CREATE TABLE epochline.before_image (
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    sink text NOT NULL,
    table_name text NOT NULL
);
CREATE TABLE epochline.committed_range (
    pipeline text NOT NULL,
    generation integer NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    start_offset bigint,
    until_offset bigint NOT NULL,
    epoch_id bigint,
    chosen_by text NOT NULL,
    leader_epoch integer,
    committed_at timestamp with time zone DEFAULT now() NOT NULL,
    newest_event_time timestamp with time zone,
    read_at timestamp with time zone,
    CONSTRAINT an_epoch_committed_it CHECK ((((start_offset IS NULL) = (epoch_id IS NULL)) OR (chosen_by = ANY (ARRAY['declared loss'::text, 'carried over'::text])))),
    CONSTRAINT committed_range_check CHECK ((until_offset > start_offset)),
    CONSTRAINT committed_range_partition_check CHECK ((partition >= 0)),
    CONSTRAINT committed_range_until_offset_check CHECK ((until_offset >= 0))
);
CREATE TABLE epochline.pipeline (
    pipeline text NOT NULL,
    generation integer DEFAULT 1 NOT NULL,
    last_epoch_id bigint DEFAULT 0 NOT NULL,
    cluster_id text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    paused_at timestamp with time zone,
    paused_by text,
    paused_reason text,
    dropped_at timestamp with time zone,
    dropped_by text,
    dropped_reason text,
    CONSTRAINT pipeline_check CHECK (((paused_at IS NULL) = (paused_by IS NULL))),
    CONSTRAINT pipeline_check1 CHECK (((dropped_at IS NULL) = (dropped_by IS NULL))),
    CONSTRAINT pipeline_generation_check CHECK ((generation > 0)),
    CONSTRAINT pipeline_last_epoch_id_check CHECK ((last_epoch_id >= 0))
);
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
CREATE TABLE epochline.consumer_cursor (
    consumer text NOT NULL,
    pipeline text NOT NULL,
    sink text NOT NULL,
    epoch_id bigint NOT NULL,
    taken_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
COMMENT ON TABLE epochline.consumer_cursor IS 'Epochs that each consumer took with take_epoch.';
CREATE TABLE epochline.declaration (
    hash text NOT NULL,
    pipeline text NOT NULL,
    body jsonb NOT NULL,
    first_seen_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE epochline.definition (
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE epochline.epoch (
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    generation integer NOT NULL,
    state text NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    kind text DEFAULT 'regular'::text NOT NULL,
    dag_id text NOT NULL,
    run_id text NOT NULL,
    host text NOT NULL,
    declaration_hash text NOT NULL,
    record_limit bigint,
    note text,
    lease_until timestamp with time zone NOT NULL,
    approval text,
    planned_at timestamp with time zone DEFAULT now() NOT NULL,
    pre_committed_at timestamp with time zone,
    committed_at timestamp with time zone,
    aborted_at timestamp with time zone,
    records_read bigint,
    records_passed bigint,
    records_skipped bigint,
    records_quarantined bigint,
    rows_written bigint,
    error text,
    settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    interval_start timestamp with time zone,
    interval_end timestamp with time zone,
    aborts integer DEFAULT 0 NOT NULL,
    watermark timestamp with time zone,
    records_too_late bigint,
    undone_by bigint,
    replays bigint,
    CONSTRAINT epoch_aborts_check CHECK ((aborts >= 0)),
    CONSTRAINT epoch_attempt_check CHECK ((attempt >= 0)),
    CONSTRAINT epoch_check CHECK (((state = 'COMMITTED'::text) = (committed_at IS NOT NULL))),
    CONSTRAINT epoch_check1 CHECK (((state = 'ABORTED'::text) = (aborted_at IS NOT NULL))),
    CONSTRAINT epoch_check2 CHECK (((state <> 'PRE_COMMITTED'::text) OR (pre_committed_at IS NOT NULL))),
    CONSTRAINT epoch_check3 CHECK (((state <> ALL (ARRAY['PRE_COMMITTED'::text, 'COMMITTED'::text])) OR (records_read = ((records_passed + records_skipped) + records_quarantined)))),
    CONSTRAINT epoch_check4 CHECK (((interval_start IS NULL) = (interval_end IS NULL))),
    CONSTRAINT epoch_check5 CHECK (((replays IS NOT NULL) = (kind = 'replay'::text))),
    CONSTRAINT epoch_check6 CHECK (((undone_by IS NULL) OR (state = 'COMMITTED'::text))),
    CONSTRAINT epoch_epoch_id_check CHECK ((epoch_id > 0)),
    CONSTRAINT epoch_records_too_late_check CHECK ((records_too_late >= 0)),
    CONSTRAINT epoch_state_check CHECK ((state = ANY (ARRAY['PLANNED'::text, 'PRE_COMMITTED'::text, 'COMMITTED'::text, 'ABORTED'::text]))),
    CONSTRAINT known_kind CHECK ((kind = ANY (ARRAY['regular'::text, 'backfill'::text, 'requeue'::text, 'extend_back'::text, 'idle'::text, 'restore'::text, 'replay'::text])))
);
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
CREATE TABLE epochline.planned_range (
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    start_offset bigint NOT NULL,
    until_offset bigint NOT NULL,
    leader_epoch integer,
    records_read bigint,
    records_passed bigint,
    records_skipped bigint,
    records_quarantined bigint,
    first_offset bigint,
    last_offset bigint,
    source_digest numeric(20,0),
    newest_event_time timestamp with time zone,
    CONSTRAINT planned_range_check CHECK ((until_offset > start_offset)),
    CONSTRAINT planned_range_check1 CHECK ((records_read = ((records_passed + records_skipped) + records_quarantined))),
    CONSTRAINT planned_range_check2 CHECK ((records_read <= (until_offset - start_offset))),
    CONSTRAINT planned_range_partition_check CHECK ((partition >= 0)),
    CONSTRAINT planned_range_start_offset_check CHECK ((start_offset >= 0))
);
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
CREATE TABLE epochline.manifest (
    attempt_id bigint NOT NULL,
    sink text NOT NULL,
    write_id uuid NOT NULL,
    parts integer NOT NULL,
    rows bigint NOT NULL,
    written_at timestamp with time zone DEFAULT now() NOT NULL,
    body jsonb,
    CONSTRAINT manifest_parts_check CHECK ((parts >= 0)),
    CONSTRAINT manifest_rows_check CHECK ((rows >= 0))
);
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
CREATE TABLE epochline.planned_target (
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    sink text NOT NULL,
    columns jsonb NOT NULL
);
CREATE TABLE epochline.quarantined_record (
    pipeline text NOT NULL,
    generation integer NOT NULL,
    epoch_id bigint NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    record_timestamp timestamp with time zone,
    key bytea,
    value bytea,
    headers jsonb,
    reason text NOT NULL,
    quarantined_at timestamp with time zone DEFAULT now() NOT NULL,
    requeued_by bigint,
    requeued_at timestamp with time zone,
    CONSTRAINT quarantined_record_check CHECK (((requeued_by IS NULL) = (requeued_at IS NULL)))
);
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
CREATE TABLE epochline.receipt (
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    sink text NOT NULL,
    attempt_id bigint NOT NULL,
    rows bigint NOT NULL,
    body jsonb DEFAULT '{}'::jsonb NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    tried_at timestamp with time zone,
    shown_at timestamp with time zone,
    seconds double precision,
    announced_by text,
    acknowledged_at timestamp with time zone,
    inserted bigint,
    updated bigint,
    deleted bigint,
    superseded bigint,
    unchanged bigint,
    CONSTRAINT every_row_is_accounted_for CHECK (((num_nulls(inserted, updated, deleted, superseded, unchanged) = ANY (ARRAY[0, 5])) AND COALESCE((((((inserted + updated) + deleted) + superseded) + unchanged) = rows), true))),
    CONSTRAINT receipt_check CHECK (((shown_at IS NOT NULL) OR ((seconds IS NULL) AND (announced_by IS NULL)))),
    CONSTRAINT receipt_check1 CHECK (((announced_by IS NOT NULL) OR (acknowledged_at IS NULL))),
    CONSTRAINT receipt_rows_check CHECK ((rows >= 0))
);
COMMENT ON TABLE epochline.receipt IS 'Whether each sink shows each committed epoch.';
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
CREATE TABLE epochline.refused_row (
    refused_id bigint NOT NULL,
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    attempt integer NOT NULL,
    generation integer NOT NULL,
    sink text NOT NULL,
    topic text,
    topic_id text,
    partition integer,
    "offset" bigint,
    "row" jsonb,
    reason text NOT NULL,
    refused_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT a_record_or_none CHECK ((num_nonnulls(topic, topic_id, partition, "offset") = ANY (ARRAY[0, 4])))
);
ALTER TABLE epochline.refused_row ALTER COLUMN refused_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME epochline.refused_row_refused_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE epochline.requeue_claim (
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    generation integer NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL
);
CREATE TABLE epochline.savepoint (
    pipeline text NOT NULL,
    name text NOT NULL,
    epoch_id bigint NOT NULL,
    generation integer NOT NULL,
    cluster_id text,
    watermark timestamp with time zone,
    declaration jsonb NOT NULL,
    made_by text NOT NULL,
    reason text NOT NULL,
    made_at timestamp with time zone DEFAULT now() NOT NULL,
    imported_at timestamp with time zone,
    CONSTRAINT savepoint_made_by_check CHECK ((made_by <> ''::text)),
    CONSTRAINT savepoint_name_check CHECK ((name <> ''::text)),
    CONSTRAINT savepoint_reason_check CHECK ((reason <> ''::text))
);
CREATE TABLE epochline.savepoint_head (
    pipeline text NOT NULL,
    name text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    leader_epoch integer,
    newest_event_time timestamp with time zone,
    read_at timestamp with time zone,
    CONSTRAINT savepoint_head_next_offset_check CHECK ((next_offset >= 0)),
    CONSTRAINT savepoint_head_partition_check CHECK ((partition >= 0))
);
CREATE TABLE epochline.savepoint_state (
    pipeline text NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    table_name text NOT NULL,
    keys bigint NOT NULL,
    digest numeric NOT NULL
);
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
CREATE TABLE epochline.staging (
    attempt_id bigint NOT NULL,
    sink text NOT NULL,
    table_name text NOT NULL,
    dropped_at timestamp with time zone
);
CREATE TABLE epochline.state_version (
    pipeline text NOT NULL,
    state text NOT NULL,
    epoch_id bigint NOT NULL,
    keys bigint NOT NULL,
    digest numeric NOT NULL,
    written_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
COMMENT ON TABLE epochline.state_version IS 'Number of keys and digest of each state table after each epoch.';
CREATE VIEW epochline.state AS
 SELECT pipeline,
    state,
    epoch_id,
    keys,
    digest,
    written_at
   FROM epochline.state_version v;
CREATE TABLE epochline.state_table (
    schema_name text NOT NULL,
    table_name text NOT NULL,
    keys bigint DEFAULT 0 NOT NULL,
    digest numeric DEFAULT 0 NOT NULL,
    relation oid NOT NULL
);
COMMENT ON TABLE epochline.state_table IS 'Current number of keys and digest of each state table.';
CREATE TABLE epochline.target (
    schema_name text NOT NULL,
    table_name text NOT NULL,
    pipeline text NOT NULL,
    sink text NOT NULL,
    claimed_at timestamp with time zone DEFAULT now() NOT NULL
);
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
INSERT INTO epochline.alembic_version VALUES ('0001');
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (1, 'orders', 1, 1, '858864ed-e9f5-4132-a734-22753f50efdb', 'orders', 'run-0', 'here', '2026-11-24 03:58:41.065103+00', NULL, NULL, '2026-11-24 03:58:41.11831+00', '2026-11-24 03:58:41.11831+00', NULL, 'somebody stopped it', NULL, NULL);
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (2, 'orders', 2, 1, 'cc463949-2360-4634-9e8e-2296bdd64084', 'orders', 'run-1', 'here', '2026-11-24 03:58:41.326586+00', '2026-11-24 03:58:41.387492+00', '2026-11-24 03:58:41.467622+00', NULL, '2026-11-24 03:58:41.532875+00', 6, NULL, NULL, NULL);
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (3, 'orders', 3, 1, 'db60cffc-6f78-4856-9faf-dc866518d5e5', 'orders', 'run-2', 'here', '2026-11-24 03:58:41.736133+00', '2026-11-24 03:58:41.801235+00', '2026-11-24 03:58:41.876794+00', NULL, NULL, 6, NULL, NULL, NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, NULL, 0, NULL, 'startup earliest', 0, '2026-11-24 03:58:40.985685+00', NULL, NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, NULL, 0, NULL, 'startup earliest', 0, '2026-11-24 03:58:40.985685+00', NULL, NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, 0, 4, 2, 'epoch', 0, '2026-11-24 03:58:41.498698+00', NULL, NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, 0, 2, 2, 'epoch', 0, '2026-11-24 03:58:41.498698+00', NULL, NULL);
INSERT INTO epochline.declaration VALUES ('7699c327d466b007', 'orders', '{"name": "orders", "tags": ["epochline"], "parse": {"kind": "text", "column": "value"}, "sinks": [{"key": [], "mode": "append", "table": "orders", "select": null, "columns": {"value": "text"}, "lineage": true, "measures": [], "order_by": [], "tombstone": null, "aggregated": false}], "record": {}, "source": {"topics": ["orders"], "pattern": null, "startup": "earliest", "connection": "epochline_kafka", "gaps_expected": false, "records_per_epoch": 1000000}, "explode": null, "profile": null, "schedule": null, "settings": {"restart": null, "timeout": null, "interval": null, "on_cancel": null, "semantics": null, "parallelism": null, "minimum_pause": null, "max_concurrent": null, "tolerable_failures": null, "fail_on_epoch_error": null}, "transform": null, "spark_conf": {}, "bad_records": "quarantine", "lock_timeout": "PT30S", "spark_connection": "spark_default", "writer_connection": null, "postgres_connection": "epochline_postgres", "commit_statement_timeout": "PT15M"}', '2026-11-24 03:58:41.009777+00');
INSERT INTO epochline.definition VALUES ('functions', '9610c220dd6be4069bf1a453d75378e62e7fb1ddfba615032f1228a320559ad2', '2026-11-24 03:58:40.553481+00');
INSERT INTO epochline.definition VALUES ('views', '5877f6a17b50f4d80485daf86c2cf94b14401f4ab1fcf692ce7ffe209eb92d81', '2026-11-24 03:58:40.553481+00');
INSERT INTO epochline.definition VALUES ('roles', 'bef8d71558ad71e7b4e3046ca482353ea2b4ec0c87bfd903f53c541e96188d19', '2026-11-24 03:58:40.553481+00');
INSERT INTO epochline.epoch VALUES ('orders', 3, 1, 'PRE_COMMITTED', 1, 'regular', 'orders', 'run-2', 'here', '7699c327d466b007', 6, NULL, '2026-11-24 03:59:41.755934+00', NULL, '2026-11-24 03:58:41.696268+00', '2026-11-24 03:58:41.87737+00', NULL, NULL, 6, 6, 0, 0, NULL, NULL, '{"restart": {"from": "default", "value": {"kind": "none"}}, "timeout": {"from": "default", "value": 3600.0}, "interval": {"from": "default", "value": null}, "on_cancel": {"from": "default", "value": "retain"}, "semantics": {"from": "default", "value": "exactly_once"}, "parallelism": {"from": "default", "value": null}, "minimum_pause": {"from": "default", "value": 0.0}, "max_concurrent": {"from": "default", "value": 1}, "tolerable_failures": {"from": "default", "value": null}}', NULL, NULL, 0, NULL, NULL, NULL, NULL);
INSERT INTO epochline.epoch VALUES ('orders', 1, 1, 'ABORTED', 1, 'regular', 'orders', 'run-0', 'here', '7699c327d466b007', 4, NULL, '2026-11-24 03:59:41.097642+00', NULL, '2026-11-24 03:58:41.009777+00', NULL, NULL, '2026-11-24 03:58:41.119644+00', NULL, NULL, NULL, NULL, NULL, 'somebody stopped it', '{"restart": {"from": "default", "value": {"kind": "none"}}, "timeout": {"from": "default", "value": 3600.0}, "interval": {"from": "default", "value": null}, "on_cancel": {"from": "default", "value": "retain"}, "semantics": {"from": "default", "value": "exactly_once"}, "parallelism": {"from": "default", "value": null}, "minimum_pause": {"from": "default", "value": 0.0}, "max_concurrent": {"from": "default", "value": 1}, "tolerable_failures": {"from": "default", "value": null}}', NULL, NULL, 1, NULL, NULL, NULL, NULL);
INSERT INTO epochline.epoch VALUES ('orders', 2, 1, 'COMMITTED', 1, 'regular', 'orders', 'run-1', 'here', '7699c327d466b007', 6, NULL, '2026-11-24 03:59:41.348691+00', NULL, '2026-11-24 03:58:41.294193+00', '2026-11-24 03:58:41.468313+00', '2026-11-24 03:58:41.533275+00', NULL, 6, 6, 0, 0, 6, NULL, '{"restart": {"from": "default", "value": {"kind": "none"}}, "timeout": {"from": "default", "value": 3600.0}, "interval": {"from": "default", "value": null}, "on_cancel": {"from": "default", "value": "retain"}, "semantics": {"from": "default", "value": "exactly_once"}, "parallelism": {"from": "default", "value": null}, "minimum_pause": {"from": "default", "value": 0.0}, "max_concurrent": {"from": "default", "value": 1}, "tolerable_failures": {"from": "default", "value": null}}', NULL, NULL, 0, NULL, NULL, NULL, NULL);
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
INSERT INTO epochline.pipeline VALUES ('orders', 1, 3, 'fake', '2026-11-24 03:58:40.931439+00', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, 0, 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, 0, 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 2, 'orders', 'id-of-orders', 0, 0, 4, 0, 4, 4, 0, 0, 0, 3, 1, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 2, 'orders', 'id-of-orders', 1, 0, 2, 0, 2, 2, 0, 0, 0, 1, 1, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 3, 'orders', 'id-of-orders', 0, 4, 8, 0, 4, 4, 0, 0, 4, 7, 1, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 3, 'orders', 'id-of-orders', 1, 2, 4, 0, 2, 2, 0, 0, 2, 3, 1, NULL);
INSERT INTO epochline.planned_target VALUES ('orders', 1, 'orders', '[["value", "text"]]');
INSERT INTO epochline.planned_target VALUES ('orders', 2, 'orders', '[["value", "text"]]');
INSERT INTO epochline.planned_target VALUES ('orders', 3, 'orders', '[["value", "text"]]');
INSERT INTO epochline.receipt VALUES ('orders', 2, 'orders', 2, 6, '{}', '2026-11-24 03:58:41.498698+00', NULL, '2026-11-24 03:58:41.498698+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.staging VALUES (1, 'orders', 'stg_orders_2a28a411d7_e1_a1', '2026-11-24 03:58:41.180109+00');
INSERT INTO epochline.staging VALUES (1, '_quarantine', 'stg__quarantine_26211791f4_e1_a1', '2026-11-24 03:58:41.180228+00');
INSERT INTO epochline.staging VALUES (2, 'orders', 'stg_orders_2a28a411d7_e2_a1', '2026-11-24 03:58:41.532504+00');
INSERT INTO epochline.staging VALUES (2, '_quarantine', 'stg__quarantine_26211791f4_e2_a1', '2026-11-24 03:58:41.53253+00');
INSERT INTO epochline.staging VALUES (3, 'orders', 'stg_orders_2a28a411d7_e3_a1', NULL);
INSERT INTO epochline.staging VALUES (3, '_quarantine', 'stg__quarantine_26211791f4_e3_a1', NULL);
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
SELECT pg_catalog.setval('epochline.accepted_epoch_accepted_id_seq', 1, false);
SELECT pg_catalog.setval('epochline.action_action_id_seq', 1, false);
SELECT pg_catalog.setval('epochline.attempt_attempt_id_seq', 3, true);
SELECT pg_catalog.setval('epochline.refused_row_refused_id_seq', 1, false);
ALTER TABLE ONLY epochline.accepted_epoch
    ADD CONSTRAINT accepted_epoch_pkey PRIMARY KEY (accepted_id);
ALTER TABLE ONLY epochline.action
    ADD CONSTRAINT action_pkey PRIMARY KEY (action_id);
ALTER TABLE ONLY epochline.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY epochline.attempt
    ADD CONSTRAINT attempt_pipeline_epoch_id_attempt_key UNIQUE (pipeline, epoch_id, attempt);
ALTER TABLE ONLY epochline.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (attempt_id);
ALTER TABLE ONLY epochline.attempt
    ADD CONSTRAINT attempt_token_key UNIQUE (token);
ALTER TABLE ONLY epochline.before_image
    ADD CONSTRAINT before_image_pkey PRIMARY KEY (pipeline, epoch_id, sink);
ALTER TABLE ONLY epochline.before_image
    ADD CONSTRAINT before_image_table_name_key UNIQUE (table_name);
ALTER TABLE ONLY epochline.consumer_cursor
    ADD CONSTRAINT consumer_cursor_pkey PRIMARY KEY (consumer, pipeline, sink, epoch_id);
ALTER TABLE ONLY epochline.declaration
    ADD CONSTRAINT declaration_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY epochline.definition
    ADD CONSTRAINT definition_pkey PRIMARY KEY (name);
ALTER TABLE ONLY epochline.epoch
    ADD CONSTRAINT epoch_pkey PRIMARY KEY (pipeline, epoch_id);
ALTER TABLE ONLY epochline.fenced_write
    ADD CONSTRAINT fenced_write_pkey PRIMARY KEY (attempt_id, backend_pid);
ALTER TABLE ONLY epochline.manifest
    ADD CONSTRAINT manifest_pkey PRIMARY KEY (attempt_id, sink);
ALTER TABLE ONLY epochline.committed_range
    ADD CONSTRAINT nothing_ends_twice UNIQUE (pipeline, generation, topic_id, partition, until_offset);
ALTER TABLE ONLY epochline.committed_range
    ADD CONSTRAINT nothing_starts_twice UNIQUE NULLS NOT DISTINCT (pipeline, generation, topic_id, partition, start_offset);
ALTER TABLE ONLY epochline.part
    ADD CONSTRAINT part_pkey PRIMARY KEY (attempt_id, sink, write_id, spark_partition);
ALTER TABLE ONLY epochline.pipeline
    ADD CONSTRAINT pipeline_pkey PRIMARY KEY (pipeline);
ALTER TABLE ONLY epochline.planned_range
    ADD CONSTRAINT planned_range_pkey PRIMARY KEY (pipeline, epoch_id, topic_id, partition);
ALTER TABLE ONLY epochline.planned_target
    ADD CONSTRAINT planned_target_pkey PRIMARY KEY (pipeline, epoch_id, sink);
ALTER TABLE ONLY epochline.quarantined_record
    ADD CONSTRAINT quarantined_record_pkey PRIMARY KEY (pipeline, generation, topic_id, partition, "offset");
ALTER TABLE ONLY epochline.receipt
    ADD CONSTRAINT receipt_pkey PRIMARY KEY (pipeline, epoch_id, sink);
ALTER TABLE ONLY epochline.refused_row
    ADD CONSTRAINT refused_row_pkey PRIMARY KEY (refused_id);
ALTER TABLE ONLY epochline.requeue_claim
    ADD CONSTRAINT requeue_claim_pkey PRIMARY KEY (pipeline, epoch_id, generation, topic_id, partition, "offset");
ALTER TABLE ONLY epochline.savepoint_head
    ADD CONSTRAINT savepoint_head_pkey PRIMARY KEY (pipeline, name, topic_id, partition);
ALTER TABLE ONLY epochline.savepoint
    ADD CONSTRAINT savepoint_pkey PRIMARY KEY (pipeline, name);
ALTER TABLE ONLY epochline.savepoint_state
    ADD CONSTRAINT savepoint_state_pkey PRIMARY KEY (pipeline, name, state);
ALTER TABLE ONLY epochline.savepoint_state
    ADD CONSTRAINT savepoint_state_table_name_key UNIQUE (table_name);
ALTER TABLE ONLY epochline.staging
    ADD CONSTRAINT staging_pkey PRIMARY KEY (attempt_id, sink);
ALTER TABLE ONLY epochline.staging
    ADD CONSTRAINT staging_table_name_key UNIQUE (table_name);
ALTER TABLE ONLY epochline.state_table
    ADD CONSTRAINT state_table_pkey PRIMARY KEY (schema_name, table_name);
ALTER TABLE ONLY epochline.state_version
    ADD CONSTRAINT state_version_pkey PRIMARY KEY (pipeline, state, epoch_id);
ALTER TABLE ONLY epochline.target
    ADD CONSTRAINT target_pkey PRIMARY KEY (schema_name, table_name);
CREATE INDEX accepted_epochs ON epochline.accepted_epoch USING btree (pipeline, token);
CREATE INDEX action_of_pipeline ON epochline.action USING btree (pipeline, action_id DESC);
CREATE INDEX committed_range_of_epoch ON epochline.committed_range USING btree (pipeline, epoch_id);
CREATE INDEX due_receipts ON epochline.receipt USING btree (pipeline, epoch_id) WHERE (shown_at IS NULL);
CREATE INDEX epoch_of_run ON epochline.epoch USING btree (pipeline, dag_id, run_id, epoch_id DESC);
CREATE INDEX event_time_of_partition ON epochline.planned_range USING btree (pipeline, topic_id, partition, epoch_id DESC) WHERE (newest_event_time IS NOT NULL);
CREATE UNIQUE INDEX one_live_attempt ON epochline.attempt USING btree (pipeline, epoch_id) WHERE (fenced_at IS NULL);
CREATE UNIQUE INDEX one_unfinished_epoch ON epochline.epoch USING btree (pipeline) WHERE (state = ANY (ARRAY['PLANNED'::text, 'PRE_COMMITTED'::text]));
CREATE INDEX receipts_of_sink ON epochline.receipt USING btree (pipeline, sink, epoch_id) WHERE (shown_at IS NOT NULL);
CREATE INDEX refused_records ON epochline.refused_row USING btree (pipeline, generation, topic_id, partition, "offset");
CREATE INDEX unacknowledged_receipts ON epochline.receipt USING btree (pipeline, epoch_id) WHERE (acknowledged_at IS NULL);
CREATE TRIGGER accepted_is_written_once BEFORE DELETE OR UPDATE ON epochline.accepted_epoch FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();
CREATE TRIGGER action_is_written_once BEFORE DELETE OR UPDATE ON epochline.action FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();
CREATE TRIGGER committed_is_written_once BEFORE DELETE OR UPDATE ON epochline.committed_range FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change_of_chain();
CREATE TRIGGER intent_is_written_once BEFORE UPDATE OF pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset ON epochline.planned_range FOR EACH ROW WHEN ((((((((old.pipeline IS DISTINCT FROM new.pipeline) OR (old.epoch_id IS DISTINCT FROM new.epoch_id)) OR (old.topic IS DISTINCT FROM new.topic)) OR (old.topic_id IS DISTINCT FROM new.topic_id)) OR (old.partition IS DISTINCT FROM new.partition)) OR (old.start_offset IS DISTINCT FROM new.start_offset)) OR (old.until_offset IS DISTINCT FROM new.until_offset))) EXECUTE FUNCTION epochline.refuse_change();
CREATE TRIGGER refused_is_written_once BEFORE DELETE OR UPDATE ON epochline.refused_row FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();
CREATE TRIGGER shown_is_written_once BEFORE UPDATE ON epochline.receipt FOR EACH ROW WHEN (((old.shown_at IS NOT NULL) AND (((old.shown_at IS DISTINCT FROM new.shown_at) OR (old.rows IS DISTINCT FROM new.rows)) OR (old.attempt_id IS DISTINCT FROM new.attempt_id)))) EXECUTE FUNCTION epochline.refuse_change();
ALTER TABLE ONLY epochline.accepted_epoch
    ADD CONSTRAINT accepted_epoch_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
ALTER TABLE ONLY epochline.action
    ADD CONSTRAINT action_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.action
    ADD CONSTRAINT action_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
ALTER TABLE ONLY epochline.attempt
    ADD CONSTRAINT attempt_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.before_image
    ADD CONSTRAINT before_image_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.committed_range
    ADD CONSTRAINT committed_range_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.committed_range
    ADD CONSTRAINT committed_range_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
ALTER TABLE ONLY epochline.epoch
    ADD CONSTRAINT epoch_declaration_hash_fkey FOREIGN KEY (declaration_hash) REFERENCES epochline.declaration(hash);
ALTER TABLE ONLY epochline.epoch
    ADD CONSTRAINT epoch_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
ALTER TABLE ONLY epochline.epoch
    ADD CONSTRAINT epoch_pipeline_replays_fkey FOREIGN KEY (pipeline, replays) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.epoch
    ADD CONSTRAINT epoch_pipeline_undone_by_fkey FOREIGN KEY (pipeline, undone_by) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.fenced_write
    ADD CONSTRAINT fenced_write_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES epochline.attempt(attempt_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.manifest
    ADD CONSTRAINT manifest_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES epochline.attempt(attempt_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.part
    ADD CONSTRAINT part_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES epochline.attempt(attempt_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.planned_range
    ADD CONSTRAINT planned_range_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.planned_target
    ADD CONSTRAINT planned_target_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.quarantined_record
    ADD CONSTRAINT quarantined_record_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.quarantined_record
    ADD CONSTRAINT quarantined_record_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
ALTER TABLE ONLY epochline.quarantined_record
    ADD CONSTRAINT quarantined_record_pipeline_requeued_by_fkey FOREIGN KEY (pipeline, requeued_by) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.receipt
    ADD CONSTRAINT receipt_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES epochline.attempt(attempt_id);
ALTER TABLE ONLY epochline.receipt
    ADD CONSTRAINT receipt_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.refused_row
    ADD CONSTRAINT refused_row_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.requeue_claim
    ADD CONSTRAINT requeue_claim_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.requeue_claim
    ADD CONSTRAINT requeue_claim_pipeline_generation_topic_id_partition_offse_fkey FOREIGN KEY (pipeline, generation, topic_id, partition, "offset") REFERENCES epochline.quarantined_record(pipeline, generation, topic_id, partition, "offset");
ALTER TABLE ONLY epochline.savepoint_head
    ADD CONSTRAINT savepoint_head_pipeline_name_fkey FOREIGN KEY (pipeline, name) REFERENCES epochline.savepoint(pipeline, name) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.savepoint_state
    ADD CONSTRAINT savepoint_state_pipeline_name_fkey FOREIGN KEY (pipeline, name) REFERENCES epochline.savepoint(pipeline, name) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.staging
    ADD CONSTRAINT staging_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES epochline.attempt(attempt_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.committed_range
    ADD CONSTRAINT starts_where_one_ended FOREIGN KEY (pipeline, generation, topic_id, partition, start_offset) REFERENCES epochline.committed_range(pipeline, generation, topic_id, partition, until_offset) DEFERRABLE;
ALTER TABLE ONLY epochline.state_version
    ADD CONSTRAINT state_version_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.state_version
    ADD CONSTRAINT state_version_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
ALTER TABLE ONLY epochline.target
    ADD CONSTRAINT target_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
