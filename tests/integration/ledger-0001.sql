-- A ledger at revision 0001, written by the code of commit 3a845e0 and dumped by pg_dump --inserts: epoch 1 aborted,
-- epoch 2 committed, epoch 3 pre-committed with its staging. What tests/integration/test_upgrade.py begins with.
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA epochline;
CREATE SCHEMA epochline_staging;
CREATE FUNCTION epochline.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% is written once', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
SET default_tablespace = '';
SET default_table_access_method = heap;
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
    CONSTRAINT attempt_attempt_check CHECK ((attempt > 0))
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
    CONSTRAINT committed_range_check CHECK ((until_offset > start_offset)),
    CONSTRAINT committed_range_check1 CHECK ((((start_offset IS NULL) = (epoch_id IS NULL)) OR (chosen_by = 'declared loss'::text))),
    CONSTRAINT committed_range_partition_check CHECK ((partition >= 0)),
    CONSTRAINT committed_range_until_offset_check CHECK ((until_offset >= 0))
);
CREATE TABLE epochline.declaration (
    hash text NOT NULL,
    pipeline text NOT NULL,
    body jsonb NOT NULL,
    first_seen_at timestamp with time zone DEFAULT now() NOT NULL
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
    CONSTRAINT epoch_attempt_check CHECK ((attempt >= 0)),
    CONSTRAINT epoch_check CHECK (((state = 'COMMITTED'::text) = (committed_at IS NOT NULL))),
    CONSTRAINT epoch_check1 CHECK (((state = 'ABORTED'::text) = (aborted_at IS NOT NULL))),
    CONSTRAINT epoch_check2 CHECK (((state <> 'PRE_COMMITTED'::text) OR (pre_committed_at IS NOT NULL))),
    CONSTRAINT epoch_check3 CHECK (((state <> ALL (ARRAY['PRE_COMMITTED'::text, 'COMMITTED'::text])) OR (records_read = ((records_passed + records_skipped) + records_quarantined)))),
    CONSTRAINT epoch_epoch_id_check CHECK ((epoch_id > 0)),
    CONSTRAINT epoch_state_check CHECK ((state = ANY (ARRAY['PLANNED'::text, 'PRE_COMMITTED'::text, 'COMMITTED'::text, 'ABORTED'::text])))
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
    lease_until
   FROM epochline.epoch;
CREATE TABLE epochline.pipeline (
    pipeline text NOT NULL,
    generation integer DEFAULT 1 NOT NULL,
    last_epoch_id bigint DEFAULT 0 NOT NULL,
    cluster_id text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT pipeline_generation_check CHECK ((generation > 0)),
    CONSTRAINT pipeline_last_epoch_id_check CHECK ((last_epoch_id >= 0))
);
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
            committed_range.committed_at
           FROM epochline.committed_range
          ORDER BY committed_range.pipeline, committed_range.generation, committed_range.topic_id, committed_range.partition, committed_range.until_offset DESC) c
     JOIN epochline.committed_range o USING (pipeline, generation, topic_id, partition))
     JOIN epochline.pipeline p ON (((p.pipeline = c.pipeline) AND (p.generation = c.generation))))
  WHERE (o.start_offset IS NULL);
CREATE TABLE epochline.manifest (
    attempt_id bigint NOT NULL,
    sink text NOT NULL,
    write_id uuid NOT NULL,
    parts integer NOT NULL,
    rows bigint NOT NULL,
    written_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT manifest_parts_check CHECK ((parts >= 0)),
    CONSTRAINT manifest_rows_check CHECK ((rows >= 0))
);
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
    CONSTRAINT planned_range_check CHECK ((until_offset > start_offset)),
    CONSTRAINT planned_range_check1 CHECK ((records_read = ((records_passed + records_skipped) + records_quarantined))),
    CONSTRAINT planned_range_check2 CHECK ((records_read <= (until_offset - start_offset))),
    CONSTRAINT planned_range_partition_check CHECK ((partition >= 0)),
    CONSTRAINT planned_range_start_offset_check CHECK ((start_offset >= 0))
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
    r.leader_epoch
   FROM (epochline.planned_range r
     JOIN epochline.epoch e USING (pipeline, epoch_id));
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
    quarantined_at timestamp with time zone DEFAULT now() NOT NULL
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
    headers
   FROM epochline.quarantined_record;
CREATE TABLE epochline.staging (
    attempt_id bigint NOT NULL,
    sink text NOT NULL,
    table_name text NOT NULL,
    dropped_at timestamp with time zone
);
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
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (1, 'orders', 1, 1, '7872c817-7c9a-4879-9e81-d896bf4addd4', 'orders', 'run-0', 'here', '2026-11-21 07:07:49.303944+00', NULL, NULL, '2026-11-21 07:07:49.456168+00', '2026-11-21 07:07:49.456168+00', NULL, 'before the upgrade');
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (2, 'orders', 2, 1, 'd57033ce-2a2b-4b97-805a-b36ade8612b9', 'orders', 'run-1', 'here', '2026-11-21 07:07:50.110569+00', '2026-11-21 07:07:50.423715+00', '2026-11-21 07:07:50.581067+00', NULL, '2026-11-21 07:07:50.788771+00', 6, NULL);
INSERT INTO epochline.attempt OVERRIDING SYSTEM VALUE VALUES (3, 'orders', 3, 1, '7be401f1-2c4f-41c4-b25d-74d36432f103', 'orders', 'run-2', 'here', '2026-11-21 07:07:51.417277+00', '2026-11-21 07:07:51.678878+00', '2026-11-21 07:07:51.848064+00', NULL, NULL, 6, NULL);
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, NULL, 0, NULL, 'startup earliest', 0, '2026-11-21 07:07:49.00093+00');
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, NULL, 0, NULL, 'startup earliest', 0, '2026-11-21 07:07:49.00093+00');
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, 0, 4, 2, 'epoch', 0, '2026-11-21 07:07:50.636025+00');
INSERT INTO epochline.committed_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, 0, 2, 2, 'epoch', 0, '2026-11-21 07:07:50.636025+00');
INSERT INTO epochline.declaration VALUES ('8cb766a5ec9344be', 'orders', '{"name": "orders", "tags": ["epochline"], "parse": {"kind": "text", "column": "value"}, "sinks": [{"key": [], "mode": "append", "table": "orders", "select": null, "columns": {"value": "text"}, "lineage": true, "measures": [], "order_by": [], "tombstone": null, "aggregated": false}], "record": {}, "source": {"topics": ["orders"], "pattern": null, "startup": "earliest", "connection": "epochline_kafka", "gaps_expected": false, "records_per_epoch": 1000000}, "explode": null, "retries": 2, "schedule": null, "transform": null, "spark_conf": {}, "bad_records": "quarantine", "retry_delay": "PT10S", "lock_timeout": "PT30S", "spark_connection": "spark_default", "pre_commit_timeout": "PT1H", "postgres_connection": "epochline_postgres", "commit_statement_timeout": "PT15M"}', '2026-11-21 07:07:49.127939+00');
INSERT INTO epochline.epoch VALUES ('orders', 1, 1, 'ABORTED', 1, 'regular', 'orders', 'run-0', 'here', '8cb766a5ec9344be', 4, NULL, '2026-11-21 07:08:49.393249+00', NULL, '2026-11-21 07:07:49.127939+00', NULL, NULL, '2026-11-21 07:07:49.464841+00', NULL, NULL, NULL, NULL, NULL, 'before the upgrade');
INSERT INTO epochline.epoch VALUES ('orders', 2, 1, 'COMMITTED', 1, 'regular', 'orders', 'run-1', 'here', '8cb766a5ec9344be', 6, NULL, '2026-11-21 07:08:50.221206+00', NULL, '2026-11-21 07:07:49.94278+00', '2026-11-21 07:07:50.582062+00', '2026-11-21 07:07:50.789306+00', NULL, 6, 6, 0, 0, 6, NULL);
INSERT INTO epochline.epoch VALUES ('orders', 3, 1, 'PRE_COMMITTED', 1, 'regular', 'orders', 'run-2', 'here', '8cb766a5ec9344be', 6, NULL, '2026-11-21 07:08:51.515055+00', NULL, '2026-11-21 07:07:51.26993+00', '2026-11-21 07:07:51.849924+00', NULL, NULL, 6, 6, 0, 0, NULL, NULL);
INSERT INTO epochline.manifest VALUES (2, 'orders', '0198a8f0-0000-7000-8000-000000000001', 2, 6, '2026-11-21 07:07:50.423715+00');
INSERT INTO epochline.manifest VALUES (2, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 2, 0, '2026-11-21 07:07:50.423715+00');
INSERT INTO epochline.manifest VALUES (3, 'orders', '0198a8f0-0000-7000-8000-000000000001', 2, 6, '2026-11-21 07:07:51.678878+00');
INSERT INTO epochline.manifest VALUES (3, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 2, 0, '2026-11-21 07:07:51.678878+00');
INSERT INTO epochline.part VALUES (2, 'orders', '0198a8f0-0000-7000-8000-000000000001', 0, 4, '{}', '2026-11-21 07:07:50.296031+00');
INSERT INTO epochline.part VALUES (2, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 0, 0, '{"seen": [{"topic": "orders", "digest": "1", "passed": 4, "skipped": 0, "received": 4, "partition": 0, "last_offset": 3, "quarantined": 0, "first_offset": 0}]}', '2026-11-21 07:07:50.296031+00');
INSERT INTO epochline.part VALUES (2, 'orders', '0198a8f0-0000-7000-8000-000000000001', 1, 2, '{}', '2026-11-21 07:07:50.367389+00');
INSERT INTO epochline.part VALUES (2, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 1, 0, '{"seen": [{"topic": "orders", "digest": "1", "passed": 2, "skipped": 0, "received": 2, "partition": 1, "last_offset": 1, "quarantined": 0, "first_offset": 0}]}', '2026-11-21 07:07:50.367389+00');
INSERT INTO epochline.part VALUES (3, 'orders', '0198a8f0-0000-7000-8000-000000000001', 0, 4, '{}', '2026-11-21 07:07:51.548688+00');
INSERT INTO epochline.part VALUES (3, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 0, 0, '{"seen": [{"topic": "orders", "digest": "1", "passed": 4, "skipped": 0, "received": 4, "partition": 0, "last_offset": 7, "quarantined": 0, "first_offset": 4}]}', '2026-11-21 07:07:51.548688+00');
INSERT INTO epochline.part VALUES (3, 'orders', '0198a8f0-0000-7000-8000-000000000001', 1, 2, '{}', '2026-11-21 07:07:51.617809+00');
INSERT INTO epochline.part VALUES (3, '_quarantine', '0198a8f0-0000-7000-8000-000000000001', 1, 0, '{"seen": [{"topic": "orders", "digest": "1", "passed": 2, "skipped": 0, "received": 2, "partition": 1, "last_offset": 3, "quarantined": 0, "first_offset": 2}]}', '2026-11-21 07:07:51.617809+00');
INSERT INTO epochline.pipeline VALUES ('orders', 1, 3, 'fake', '2026-11-21 07:07:48.844232+00');
INSERT INTO epochline.planned_range VALUES ('orders', 1, 'orders', 'id-of-orders', 0, 0, 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 1, 'orders', 'id-of-orders', 1, 0, 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO epochline.planned_range VALUES ('orders', 2, 'orders', 'id-of-orders', 0, 0, 4, 0, 4, 4, 0, 0, 0, 3, 1);
INSERT INTO epochline.planned_range VALUES ('orders', 2, 'orders', 'id-of-orders', 1, 0, 2, 0, 2, 2, 0, 0, 0, 1, 1);
INSERT INTO epochline.planned_range VALUES ('orders', 3, 'orders', 'id-of-orders', 0, 4, 8, 0, 4, 4, 0, 0, 4, 7, 1);
INSERT INTO epochline.planned_range VALUES ('orders', 3, 'orders', 'id-of-orders', 1, 2, 4, 0, 2, 2, 0, 0, 2, 3, 1);
INSERT INTO epochline.planned_target VALUES ('orders', 1, 'orders', '[["value", "text"]]');
INSERT INTO epochline.planned_target VALUES ('orders', 2, 'orders', '[["value", "text"]]');
INSERT INTO epochline.planned_target VALUES ('orders', 3, 'orders', '[["value", "text"]]');
INSERT INTO epochline.staging VALUES (1, 'orders', 'stg_orders_2a28a411d7_e1_a1', '2026-11-21 07:07:49.640715+00');
INSERT INTO epochline.staging VALUES (1, '_quarantine', 'stg__quarantine_26211791f4_e1_a1', '2026-11-21 07:07:49.641003+00');
INSERT INTO epochline.staging VALUES (2, 'orders', 'stg_orders_2a28a411d7_e2_a1', '2026-11-21 07:07:50.788037+00');
INSERT INTO epochline.staging VALUES (2, '_quarantine', 'stg__quarantine_26211791f4_e2_a1', '2026-11-21 07:07:50.788071+00');
INSERT INTO epochline.staging VALUES (3, 'orders', 'stg_orders_2a28a411d7_e3_a1', NULL);
INSERT INTO epochline.staging VALUES (3, '_quarantine', 'stg__quarantine_26211791f4_e3_a1', NULL);
INSERT INTO epochline.target VALUES ('public', 'orders', 'orders', 'orders', '2026-11-21 07:07:49.127939+00');
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
ALTER TABLE ONLY epochline.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY epochline.attempt
    ADD CONSTRAINT attempt_pipeline_epoch_id_attempt_key UNIQUE (pipeline, epoch_id, attempt);
ALTER TABLE ONLY epochline.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (attempt_id);
ALTER TABLE ONLY epochline.attempt
    ADD CONSTRAINT attempt_token_key UNIQUE (token);
ALTER TABLE ONLY epochline.declaration
    ADD CONSTRAINT declaration_pkey PRIMARY KEY (hash);
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
ALTER TABLE ONLY epochline.staging
    ADD CONSTRAINT staging_pkey PRIMARY KEY (attempt_id, sink);
ALTER TABLE ONLY epochline.staging
    ADD CONSTRAINT staging_table_name_key UNIQUE (table_name);
ALTER TABLE ONLY epochline.target
    ADD CONSTRAINT target_pkey PRIMARY KEY (schema_name, table_name);
CREATE INDEX committed_range_of_epoch ON epochline.committed_range USING btree (pipeline, epoch_id);
CREATE INDEX epoch_of_run ON epochline.epoch USING btree (pipeline, dag_id, run_id, epoch_id DESC);
CREATE UNIQUE INDEX one_live_attempt ON epochline.attempt USING btree (pipeline, epoch_id) WHERE (fenced_at IS NULL);
CREATE UNIQUE INDEX one_unfinished_epoch ON epochline.epoch USING btree (pipeline) WHERE (state = ANY (ARRAY['PLANNED'::text, 'PRE_COMMITTED'::text]));
CREATE TRIGGER committed_is_written_once BEFORE DELETE OR UPDATE ON epochline.committed_range FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();
CREATE TRIGGER intent_is_written_once BEFORE UPDATE OF pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset ON epochline.planned_range FOR EACH ROW WHEN ((((((((old.pipeline IS DISTINCT FROM new.pipeline) OR (old.epoch_id IS DISTINCT FROM new.epoch_id)) OR (old.topic IS DISTINCT FROM new.topic)) OR (old.topic_id IS DISTINCT FROM new.topic_id)) OR (old.partition IS DISTINCT FROM new.partition)) OR (old.start_offset IS DISTINCT FROM new.start_offset)) OR (old.until_offset IS DISTINCT FROM new.until_offset))) EXECUTE FUNCTION epochline.refuse_change();
ALTER TABLE ONLY epochline.attempt
    ADD CONSTRAINT attempt_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.committed_range
    ADD CONSTRAINT committed_range_pipeline_epoch_id_fkey FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch(pipeline, epoch_id);
ALTER TABLE ONLY epochline.committed_range
    ADD CONSTRAINT committed_range_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
ALTER TABLE ONLY epochline.epoch
    ADD CONSTRAINT epoch_declaration_hash_fkey FOREIGN KEY (declaration_hash) REFERENCES epochline.declaration(hash);
ALTER TABLE ONLY epochline.epoch
    ADD CONSTRAINT epoch_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
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
ALTER TABLE ONLY epochline.staging
    ADD CONSTRAINT staging_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES epochline.attempt(attempt_id) ON DELETE CASCADE;
ALTER TABLE ONLY epochline.committed_range
    ADD CONSTRAINT starts_where_one_ended FOREIGN KEY (pipeline, generation, topic_id, partition, start_offset) REFERENCES epochline.committed_range(pipeline, generation, topic_id, partition, until_offset) DEFERRABLE;
ALTER TABLE ONLY epochline.target
    ADD CONSTRAINT target_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES epochline.pipeline(pipeline);
