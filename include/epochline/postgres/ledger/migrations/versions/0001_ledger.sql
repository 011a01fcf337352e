-- The ledger. Every rule that can be a constraint is one; the code only ever asks politely first.

CREATE SCHEMA IF NOT EXISTS epochline;
CREATE SCHEMA IF NOT EXISTS epochline_staging;

-- What a pipeline was declared to be, by the hash of the declaration. Spark reads the declaration from here,
-- so that an attempt runs exactly what was planned.
CREATE TABLE epochline.declaration (
    hash          text PRIMARY KEY,
    pipeline      text NOT NULL,
    body          jsonb NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now()
);

-- One row per pipeline: its row lock serialises plans, its counter gives epoch ids that are never used again.
CREATE TABLE epochline.pipeline (
    pipeline      text PRIMARY KEY,
    generation    integer NOT NULL DEFAULT 1 CHECK (generation > 0),
    last_epoch_id bigint NOT NULL DEFAULT 0 CHECK (last_epoch_id >= 0),
    cluster_id    text,
    created_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE epochline.epoch (
    pipeline            text NOT NULL REFERENCES epochline.pipeline,
    epoch_id            bigint NOT NULL CHECK (epoch_id > 0),
    generation          integer NOT NULL,
    -- PLANNED -> PRE_COMMITTED | ABORTED; PRE_COMMITTED -> COMMITTED | ABORTED; ABORTED -> PLANNED
    state               text NOT NULL CHECK (state IN ('PLANNED', 'PRE_COMMITTED', 'COMMITTED', 'ABORTED')),
    attempt             integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    kind                text NOT NULL DEFAULT 'regular',
    dag_id              text NOT NULL,
    run_id              text NOT NULL,
    host                text NOT NULL,
    declaration_hash    text NOT NULL REFERENCES epochline.declaration,
    record_limit        bigint,
    note                text,
    lease_until         timestamptz NOT NULL,
    approval            text,
    planned_at          timestamptz NOT NULL DEFAULT now(),
    pre_committed_at    timestamptz,
    committed_at        timestamptz,
    aborted_at          timestamptz,
    records_read        bigint,
    records_passed      bigint,
    records_skipped     bigint,
    records_quarantined bigint,
    rows_written        bigint,
    error               text,
    PRIMARY KEY (pipeline, epoch_id),
    CHECK ((state = 'COMMITTED') = (committed_at IS NOT NULL)),
    CHECK ((state = 'ABORTED') = (aborted_at IS NOT NULL)),
    CHECK (state <> 'PRE_COMMITTED' OR pre_committed_at IS NOT NULL),
    CHECK (state NOT IN ('PRE_COMMITTED', 'COMMITTED')
           OR records_read = records_passed + records_skipped + records_quarantined)  -- INV-9
);
-- At most one epoch of a pipeline is on its way.
CREATE UNIQUE INDEX one_unfinished_epoch ON epochline.epoch (pipeline)
    WHERE state IN ('PLANNED', 'PRE_COMMITTED');
CREATE INDEX epoch_of_run ON epochline.epoch (pipeline, dag_id, run_id, epoch_id DESC);

-- INV-3: the range every attempt of the epoch reads. Written with the epoch and never changed; the counts
-- are filled in by the seal.
CREATE TABLE epochline.planned_range (
    pipeline            text NOT NULL,
    epoch_id            bigint NOT NULL,
    topic               text NOT NULL,
    topic_id            text NOT NULL,
    partition           integer NOT NULL CHECK (partition >= 0),
    start_offset        bigint NOT NULL CHECK (start_offset >= 0),
    until_offset        bigint NOT NULL,
    leader_epoch        integer,
    records_read        bigint,
    records_passed      bigint,
    records_skipped     bigint,
    records_quarantined bigint,
    first_offset        bigint,
    last_offset         bigint,
    source_digest       numeric(20),
    PRIMARY KEY (pipeline, epoch_id, topic_id, partition),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch ON DELETE CASCADE,
    CHECK (until_offset > start_offset),
    CHECK (records_read = records_passed + records_skipped + records_quarantined),
    CHECK (records_read <= until_offset - start_offset)
);

CREATE FUNCTION epochline.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is written once', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER intent_is_written_once
    BEFORE UPDATE OF pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset
    ON epochline.planned_range FOR EACH ROW
    WHEN ((OLD.pipeline, OLD.epoch_id, OLD.topic, OLD.topic_id, OLD.partition, OLD.start_offset, OLD.until_offset)
          IS DISTINCT FROM
          (NEW.pipeline, NEW.epoch_id, NEW.topic, NEW.topic_id, NEW.partition, NEW.start_offset, NEW.until_offset))
    EXECUTE FUNCTION epochline.refuse_change();

-- INV-1: the chain. Written by a commit, a declared loss and the first plan alone. The origin is the row with
-- start NULL and until = origin; every other row starts where another one ended, and nothing starts or ends twice.
CREATE TABLE epochline.committed_range (
    pipeline     text NOT NULL REFERENCES epochline.pipeline,
    generation   integer NOT NULL,
    topic        text NOT NULL,
    topic_id     text NOT NULL,
    partition    integer NOT NULL CHECK (partition >= 0),
    start_offset bigint,
    until_offset bigint NOT NULL CHECK (until_offset >= 0),
    epoch_id     bigint,
    chosen_by    text NOT NULL,
    leader_epoch integer,
    committed_at timestamptz NOT NULL DEFAULT now(),
    CHECK (until_offset > start_offset),
    CHECK ((start_offset IS NULL) = (epoch_id IS NULL) OR chosen_by = 'declared loss'),
    CONSTRAINT nothing_starts_twice UNIQUE NULLS NOT DISTINCT (pipeline, generation, topic_id, partition, start_offset),
    CONSTRAINT nothing_ends_twice UNIQUE (pipeline, generation, topic_id, partition, until_offset),
    CONSTRAINT starts_where_one_ended
        FOREIGN KEY (pipeline, generation, topic_id, partition, start_offset)
        REFERENCES epochline.committed_range (pipeline, generation, topic_id, partition, until_offset)
        DEFERRABLE INITIALLY IMMEDIATE,
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);
CREATE INDEX committed_range_of_epoch ON epochline.committed_range (pipeline, epoch_id);
-- No constraint would miss the newest range of a chain; what is committed stays written.
CREATE TRIGGER committed_is_written_once
    BEFORE UPDATE OR DELETE ON epochline.committed_range FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();

-- INV-4: one row per try. Writers hold its row FOR KEY SHARE, seal and fence FOR UPDATE.
CREATE TABLE epochline.attempt (
    attempt_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text NOT NULL,
    epoch_id    bigint NOT NULL,
    attempt     integer NOT NULL CHECK (attempt > 0),
    token       uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    dag_id      text NOT NULL,
    run_id      text NOT NULL,
    host        text NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    job_ended_at timestamptz,        -- the job's end mark
    sealed_at   timestamptz,
    fenced_at   timestamptz,
    ended_at    timestamptz,
    rows_staged bigint,
    error       text,
    UNIQUE (pipeline, epoch_id, attempt),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch ON DELETE CASCADE
);
CREATE UNIQUE INDEX one_live_attempt ON epochline.attempt (pipeline, epoch_id) WHERE fenced_at IS NULL;

-- The staging tables of an attempt, so that nothing is dropped or left by guessing from names.
CREATE TABLE epochline.staging (
    attempt_id  bigint NOT NULL REFERENCES epochline.attempt ON DELETE CASCADE,
    sink        text NOT NULL,
    table_name  text NOT NULL UNIQUE,
    dropped_at  timestamptz,
    PRIMARY KEY (attempt_id, sink)
);

-- One row per Spark partition and sink, inserted by the transaction that copied its rows.
CREATE TABLE epochline.part (
    attempt_id      bigint NOT NULL REFERENCES epochline.attempt ON DELETE CASCADE,
    sink            text NOT NULL,
    write_id        uuid NOT NULL,
    spark_partition integer NOT NULL,
    rows            bigint NOT NULL CHECK (rows >= 0),
    message         jsonb NOT NULL DEFAULT '{}',
    inserted_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (attempt_id, sink, write_id, spark_partition)
);

-- What the driver says it wrote, one row per sink, an empty sink included.
CREATE TABLE epochline.manifest (
    attempt_id bigint NOT NULL REFERENCES epochline.attempt ON DELETE CASCADE,
    sink       text NOT NULL,
    write_id   uuid NOT NULL,
    parts      integer NOT NULL CHECK (parts >= 0),
    rows       bigint NOT NULL CHECK (rows >= 0),
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (attempt_id, sink)
);

-- A write of an attempt that was no longer the live one, and was refused. One row per session of the database.
CREATE TABLE epochline.fenced_write (
    attempt_id  bigint NOT NULL REFERENCES epochline.attempt ON DELETE CASCADE,
    backend_pid integer NOT NULL,
    host        text NOT NULL,
    what        text NOT NULL,
    refused_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (attempt_id, backend_pid)
);

-- Records kept instead of dropped, in the same transaction as the rows of their epoch.
CREATE TABLE epochline.quarantined_record (
    pipeline         text NOT NULL REFERENCES epochline.pipeline,
    generation       integer NOT NULL,
    epoch_id         bigint NOT NULL,
    topic            text NOT NULL,
    topic_id         text NOT NULL,
    partition        integer NOT NULL,
    "offset"         bigint NOT NULL,
    record_timestamp timestamptz,
    key              bytea,
    value            bytea,
    headers          jsonb,
    reason           text NOT NULL,
    quarantined_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, generation, topic_id, partition, "offset"),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);

-- Who may write a target. A second pipeline on one table would break every balance.
CREATE TABLE epochline.target (
    schema_name text NOT NULL,
    table_name  text NOT NULL,
    pipeline    text NOT NULL REFERENCES epochline.pipeline,
    sink        text NOT NULL,
    claimed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (schema_name, table_name)
);

-- The target's columns as the plan saw them: the commit refuses a table that changed since.
CREATE TABLE epochline.planned_target (
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    sink     text NOT NULL,
    columns  jsonb NOT NULL,
    PRIMARY KEY (pipeline, epoch_id, sink),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch ON DELETE CASCADE
);

-- Views for people. Columns are only ever added.
CREATE VIEW epochline.epochs AS
SELECT pipeline, generation, epoch_id, state, attempt, kind, dag_id, run_id, planned_at, pre_committed_at,
       committed_at, aborted_at, records_read, records_passed, records_quarantined, rows_written, approval, error,
       records_skipped, record_limit, note, declaration_hash, lease_until
FROM epochline.epoch;

CREATE VIEW epochline.offsets AS
SELECT r.pipeline, e.generation, r.epoch_id, r.topic, r.topic_id, r.partition, r.start_offset, r.until_offset,
       e.state, r.records_read, r.records_passed, r.records_skipped, r.records_quarantined, r.first_offset,
       r.last_offset, r.leader_epoch
FROM epochline.planned_range r JOIN epochline.epoch e USING (pipeline, epoch_id);

CREATE VIEW epochline.heads AS
SELECT c.pipeline, c.generation, c.topic, c.topic_id, c.partition, o.until_offset AS origin_offset,
       c.until_offset AS next_offset, c.epoch_id, c.committed_at
FROM (SELECT DISTINCT ON (pipeline, generation, topic_id, partition) *
      FROM epochline.committed_range
      ORDER BY pipeline, generation, topic_id, partition, until_offset DESC) c
JOIN epochline.committed_range o USING (pipeline, generation, topic_id, partition)
JOIN epochline.pipeline p ON p.pipeline = c.pipeline AND p.generation = c.generation
WHERE o.start_offset IS NULL;

CREATE VIEW epochline.attempts AS
SELECT a.pipeline, a.epoch_id, a.attempt,
       CASE WHEN a.fenced_at IS NOT NULL THEN 'FENCED'
            WHEN a.ended_at IS NOT NULL THEN 'COMMITTED'
            WHEN a.sealed_at IS NOT NULL THEN 'SEALED'
            ELSE 'RUNNING' END AS state,
       a.run_id, a.host, a.started_at, a.ended_at,
       coalesce(a.rows_staged, (SELECT sum(p.rows) FROM epochline.part p WHERE p.attempt_id = a.attempt_id), 0)::bigint
           AS rows_staged,
       (SELECT count(*) FROM epochline.fenced_write f WHERE f.attempt_id = a.attempt_id) AS fenced_writes,
       a.error
FROM epochline.attempt a;

CREATE VIEW epochline.quarantine AS
SELECT pipeline, epoch_id, topic, partition, "offset", key, value, reason, quarantined_at, generation,
       record_timestamp, headers
FROM epochline.quarantined_record;
