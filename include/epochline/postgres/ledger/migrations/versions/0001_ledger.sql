-- The tables of the ledger. Every rule that a constraint can express is a constraint; the code checks it first for the
-- sake of a better message. Views, functions and roles are in files of their own, which every change of them replaces.

-- The schemas epochline and epochline_staging exist: a DBA may have made them, and CREATE SCHEMA IF NOT EXISTS needs the
-- right to create schemas even then.

-- The version of each file of views, functions and roles that this database has (epochline.postgres.ledger.migrate).
CREATE TABLE epochline.definition (
    name       text PRIMARY KEY,
    sha256     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- Trigger functions. They belong to the constraints, and triggers of the tables below need them.

CREATE FUNCTION epochline.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is written once', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;

-- The origin of a chain may move back, never forward: an extend-back epoch commits the range in between. The chain's
-- foreign key, checked at the end of the transaction, demands that some range ends at the old origin.
CREATE FUNCTION epochline.refuse_change_of_chain() RETURNS trigger LANGUAGE plpgsql AS $$
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

-- Pipelines and epochs.

-- Declarations of pipelines, by hash. The Spark job reads its declaration from here, so that an attempt runs exactly
-- what was planned.
CREATE TABLE epochline.declaration (
    hash          text PRIMARY KEY,
    pipeline      text NOT NULL,
    body          jsonb NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now()
);

-- One row per pipeline. Its row lock serialises plans; its counter gives each epoch id once.
CREATE TABLE epochline.pipeline (
    pipeline       text PRIMARY KEY,
    generation     integer NOT NULL DEFAULT 1 CHECK (generation > 0),
    last_epoch_id  bigint NOT NULL DEFAULT 0 CHECK (last_epoch_id >= 0),
    cluster_id     text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    -- A paused pipeline plans no epoch. A dropped pipeline keeps its name, because its history refers to it.
    paused_at      timestamptz,
    paused_by      text,
    paused_reason  text,
    dropped_at     timestamptz,
    dropped_by     text,
    dropped_reason text,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    CHECK ((dropped_at IS NULL) = (dropped_by IS NULL))
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
    -- The settings of the plan, each with its origin.
    settings            jsonb NOT NULL DEFAULT '{}',
    -- The interval of a backfill run.
    interval_start      timestamptz,
    interval_end        timestamptz,
    -- How often the epoch was aborted. A re-opened epoch that is aborted again has failed twice.
    aborts              integer NOT NULL DEFAULT 0 CHECK (aborts >= 0),
    -- Copied by the seal from the attempt: the epoch keeps the watermark that closed its windows.
    watermark           timestamptz,
    records_too_late    bigint CHECK (records_too_late >= 0),
    -- The restore or replay that took this epoch's rows out of the target.
    undone_by           bigint,
    -- A replay reads the ranges of another epoch again. Its commit undoes that epoch.
    replays             bigint,
    PRIMARY KEY (pipeline, epoch_id),
    FOREIGN KEY (pipeline, undone_by) REFERENCES epochline.epoch,
    FOREIGN KEY (pipeline, replays) REFERENCES epochline.epoch,
    CONSTRAINT known_kind
        CHECK (kind IN ('regular', 'backfill', 'requeue', 'extend_back', 'idle', 'restore', 'replay')),
    CHECK ((state = 'COMMITTED') = (committed_at IS NOT NULL)),
    CHECK ((state = 'ABORTED') = (aborted_at IS NOT NULL)),
    CHECK (state <> 'PRE_COMMITTED' OR pre_committed_at IS NOT NULL),
    CHECK (state NOT IN ('PRE_COMMITTED', 'COMMITTED')
           OR records_read = records_passed + records_skipped + records_quarantined),  -- INV-9
    CHECK ((interval_start IS NULL) = (interval_end IS NULL)),
    CHECK ((replays IS NOT NULL) = (kind = 'replay')),
    CHECK (undone_by IS NULL OR state = 'COMMITTED')
);
-- A pipeline has at most one unfinished epoch.
CREATE UNIQUE INDEX one_unfinished_epoch ON epochline.epoch (pipeline)
    WHERE state IN ('PLANNED', 'PRE_COMMITTED');
CREATE INDEX epoch_of_run ON epochline.epoch (pipeline, dag_id, run_id, epoch_id DESC);

-- INV-3: the range that every attempt of the epoch reads. The plan writes it and nothing changes it; the seal adds the
-- counts.
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
    -- The newest event time that was read from the partition by this epoch or an earlier one.
    newest_event_time   timestamptz,
    PRIMARY KEY (pipeline, epoch_id, topic_id, partition),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch ON DELETE CASCADE,
    CHECK (until_offset > start_offset),
    CHECK (records_read = records_passed + records_skipped + records_quarantined),
    CHECK (records_read <= until_offset - start_offset)
);
CREATE INDEX event_time_of_partition ON epochline.planned_range (pipeline, topic_id, partition, epoch_id DESC)
    WHERE newest_event_time IS NOT NULL;
CREATE TRIGGER intent_is_written_once
    BEFORE UPDATE OF pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset
    ON epochline.planned_range FOR EACH ROW
    WHEN ((OLD.pipeline, OLD.epoch_id, OLD.topic, OLD.topic_id, OLD.partition, OLD.start_offset, OLD.until_offset)
          IS DISTINCT FROM
          (NEW.pipeline, NEW.epoch_id, NEW.topic, NEW.topic_id, NEW.partition, NEW.start_offset, NEW.until_offset))
    EXECUTE FUNCTION epochline.refuse_change();

-- The columns of each target as the plan found them. The commit refuses a table that changed since.
CREATE TABLE epochline.planned_target (
    pipeline text NOT NULL,
    epoch_id bigint NOT NULL,
    sink     text NOT NULL,
    columns  jsonb NOT NULL,
    PRIMARY KEY (pipeline, epoch_id, sink),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch ON DELETE CASCADE
);

-- INV-1: the chain. Written only by a commit, a declared loss, a restore and the first plan of a generation. The origin
-- is the row with start NULL and until = origin. Every other row starts where another row ends, and no two rows start
-- or end at the same offset.
CREATE TABLE epochline.committed_range (
    pipeline          text NOT NULL REFERENCES epochline.pipeline,
    generation        integer NOT NULL,
    topic             text NOT NULL,
    topic_id          text NOT NULL,
    partition         integer NOT NULL CHECK (partition >= 0),
    start_offset      bigint,
    until_offset      bigint NOT NULL CHECK (until_offset >= 0),
    epoch_id          bigint,
    chosen_by         text NOT NULL,
    leader_epoch      integer,
    committed_at      timestamptz NOT NULL DEFAULT now(),
    -- What a savepoint knew of event time; only in the origin that a restore wrote.
    newest_event_time timestamptz,
    read_at           timestamptz,
    CHECK (until_offset > start_offset),
    -- A generation that continues a log carries the committed part of that log over as one range from the origin to the
    -- head. So the origin stays where it was, and extend-back starts there.
    CONSTRAINT an_epoch_committed_it
        CHECK ((start_offset IS NULL) = (epoch_id IS NULL) OR chosen_by IN ('declared loss', 'carried over')),
    CONSTRAINT nothing_starts_twice UNIQUE NULLS NOT DISTINCT (pipeline, generation, topic_id, partition, start_offset),
    CONSTRAINT nothing_ends_twice UNIQUE (pipeline, generation, topic_id, partition, until_offset),
    CONSTRAINT starts_where_one_ended
        FOREIGN KEY (pipeline, generation, topic_id, partition, start_offset)
        REFERENCES epochline.committed_range (pipeline, generation, topic_id, partition, until_offset)
        DEFERRABLE INITIALLY IMMEDIATE,
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);
CREATE INDEX committed_range_of_epoch ON epochline.committed_range (pipeline, epoch_id);
-- No constraint would notice that the newest range of a chain is gone.
CREATE TRIGGER committed_is_written_once
    BEFORE UPDATE OR DELETE ON epochline.committed_range
    FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change_of_chain();

-- Attempts.

-- INV-4: one row per attempt. Writers lock the row FOR KEY SHARE; the seal and the fence lock it FOR UPDATE.
CREATE TABLE epochline.attempt (
    attempt_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline         text NOT NULL,
    epoch_id         bigint NOT NULL,
    attempt          integer NOT NULL CHECK (attempt > 0),
    token            uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    dag_id           text NOT NULL,
    run_id           text NOT NULL,
    host             text NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT now(),
    job_ended_at     timestamptz,  -- the job's end mark
    sealed_at        timestamptz,
    fenced_at        timestamptz,
    ended_at         timestamptz,
    rows_staged      bigint,
    error            text,
    -- Written by the job with its end mark: the watermark by which it closed windows.
    watermark        timestamptz,
    records_too_late bigint CHECK (records_too_late >= 0),
    UNIQUE (pipeline, epoch_id, attempt),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch ON DELETE CASCADE
);
CREATE UNIQUE INDEX one_live_attempt ON epochline.attempt (pipeline, epoch_id) WHERE fenced_at IS NULL;

-- The staging tables of each attempt, so that no table is dropped or kept because of its name alone.
CREATE TABLE epochline.staging (
    attempt_id  bigint NOT NULL REFERENCES epochline.attempt ON DELETE CASCADE,
    sink        text NOT NULL,
    table_name  text NOT NULL UNIQUE,
    dropped_at  timestamptz,
    PRIMARY KEY (attempt_id, sink)
);

-- One row per Spark partition and sink, inserted by the transaction that copied the partition's rows.
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

-- What the Spark driver counted: one row per sink, a sink without rows included.
CREATE TABLE epochline.manifest (
    attempt_id bigint NOT NULL REFERENCES epochline.attempt ON DELETE CASCADE,
    sink       text NOT NULL,
    write_id   uuid NOT NULL,
    parts      integer NOT NULL CHECK (parts >= 0),
    rows       bigint NOT NULL CHECK (rows >= 0),
    written_at timestamptz NOT NULL DEFAULT now(),
    -- What the seal of an external sink left for its commit; NULL for a table.
    body       jsonb,
    PRIMARY KEY (attempt_id, sink)
);

-- Refused writes of attempts that were no longer live. One row per database session.
CREATE TABLE epochline.fenced_write (
    attempt_id  bigint NOT NULL REFERENCES epochline.attempt ON DELETE CASCADE,
    backend_pid integer NOT NULL,
    host        text NOT NULL,
    what        text NOT NULL,
    refused_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (attempt_id, backend_pid)
);

-- Rows that a target refused although each value fits its column: by a check, a foreign key, a unique index or a
-- trigger. If the row comes from one record, later attempts set that record aside in the quarantine. No view shows this
-- table: reason and row contain values, as quarantined records do.
CREATE TABLE epochline.refused_row (
    refused_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline   text NOT NULL,
    epoch_id   bigint NOT NULL,
    attempt    integer NOT NULL,
    generation integer NOT NULL,
    sink       text NOT NULL,
    topic      text,
    topic_id   text,
    partition  integer,
    "offset"   bigint,
    "row"      jsonb,
    reason     text NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT a_record_or_none CHECK (num_nonnulls(topic, topic_id, partition, "offset") IN (0, 4)),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);
CREATE INDEX refused_records ON epochline.refused_row (pipeline, generation, topic_id, partition, "offset");
CREATE TRIGGER refused_is_written_once
    BEFORE UPDATE OR DELETE ON epochline.refused_row FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();

-- Quarantine.

-- Records that were set aside, written in the transaction that commits the other records of their epoch. A record is
-- requeued at most once.
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
    requeued_by      bigint,
    requeued_at      timestamptz,
    PRIMARY KEY (pipeline, generation, topic_id, partition, "offset"),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch,
    FOREIGN KEY (pipeline, requeued_by) REFERENCES epochline.epoch,
    CHECK ((requeued_by IS NULL) = (requeued_at IS NULL))
);

-- A requeue epoch has no range: it claims quarantined records. The abort of the epoch deletes its claims.
CREATE TABLE epochline.requeue_claim (
    pipeline   text NOT NULL,
    epoch_id   bigint NOT NULL,
    generation integer NOT NULL,
    topic_id   text NOT NULL,
    partition  integer NOT NULL,
    "offset"   bigint NOT NULL,
    PRIMARY KEY (pipeline, epoch_id, generation, topic_id, partition, "offset"),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch,
    FOREIGN KEY (pipeline, generation, topic_id, partition, "offset") REFERENCES epochline.quarantined_record
);

-- Targets and receipts.

-- The pipeline that may write each target. A second pipeline on one table would break every count.
CREATE TABLE epochline.target (
    schema_name text NOT NULL,
    table_name  text NOT NULL,
    pipeline    text NOT NULL REFERENCES epochline.pipeline,
    sink        text NOT NULL,
    claimed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (schema_name, table_name)
);

-- Rows that an epoch replaced in an upsert or add target, kept for as long as the declaration asks for.
CREATE TABLE epochline.before_image (
    pipeline   text NOT NULL,
    epoch_id   bigint NOT NULL,
    sink       text NOT NULL,
    table_name text NOT NULL UNIQUE,
    PRIMARY KEY (pipeline, epoch_id, sink),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);

-- A table shows an epoch with its commit; topics, files and other external sinks show it later. The commit writes the
-- receipt; shown_at is the time at which the sink showed the epoch.
CREATE TABLE epochline.receipt (
    pipeline        text NOT NULL,
    epoch_id        bigint NOT NULL,
    sink            text NOT NULL,
    attempt_id      bigint NOT NULL REFERENCES epochline.attempt,
    rows            bigint NOT NULL CHECK (rows >= 0),
    body            jsonb NOT NULL DEFAULT '{}',
    due_at          timestamptz NOT NULL DEFAULT now(),
    tried_at        timestamptz,
    shown_at        timestamptz,
    seconds         double precision,
    announced_by    text,  -- the run whose task announced the epoch
    acknowledged_at timestamptz,
    -- How the staged rows of an upsert were applied; NULL for every other sink.
    inserted        bigint,
    updated         bigint,
    deleted         bigint,
    superseded      bigint,
    unchanged       bigint,
    PRIMARY KEY (pipeline, epoch_id, sink),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch,
    CHECK (shown_at IS NOT NULL OR (seconds IS NULL AND announced_by IS NULL)),
    CHECK (announced_by IS NOT NULL OR acknowledged_at IS NULL),
    CONSTRAINT every_row_is_accounted_for
        CHECK (num_nulls(inserted, updated, deleted, superseded, unchanged) IN (0, 5)
               AND coalesce(inserted + updated + deleted + superseded + unchanged = rows, true))
);
CREATE INDEX due_receipts ON epochline.receipt (pipeline, epoch_id) WHERE shown_at IS NULL;
CREATE INDEX receipts_of_sink ON epochline.receipt (pipeline, sink, epoch_id) WHERE shown_at IS NOT NULL;
CREATE INDEX unacknowledged_receipts ON epochline.receipt (pipeline, epoch_id) WHERE acknowledged_at IS NULL;
-- No sink takes a record back.
CREATE TRIGGER shown_is_written_once
    BEFORE UPDATE ON epochline.receipt FOR EACH ROW
    WHEN (OLD.shown_at IS NOT NULL
          AND (OLD.shown_at, OLD.rows, OLD.attempt_id) IS DISTINCT FROM (NEW.shown_at, NEW.rows, NEW.attempt_id))
    EXECUTE FUNCTION epochline.refuse_change();
COMMENT ON TABLE epochline.receipt IS 'Whether each sink shows each committed epoch.';

-- The epochs that each consumer took, each once. A consumer inserts the row in the transaction of its own work.
CREATE TABLE epochline.consumer_cursor (
    consumer text NOT NULL,
    pipeline text NOT NULL,
    sink     text NOT NULL,
    epoch_id bigint NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, pipeline, sink, epoch_id)
);
COMMENT ON TABLE epochline.consumer_cursor IS 'Epochs that each consumer took with take_epoch.';

-- State.

-- Triggers of each state table keep the number of its keys and the sum of a digest over its rows. They run for every
-- writer, at the cost of the rows that a statement touches. A commit records both numbers in state_version; if they
-- differ later, somebody else wrote the table.
CREATE TABLE epochline.state_table (
    schema_name text    NOT NULL,
    table_name  text    NOT NULL,
    keys        bigint  NOT NULL DEFAULT 0,
    digest      numeric NOT NULL DEFAULT 0,
    relation    oid     NOT NULL,  -- the table that was counted
    PRIMARY KEY (schema_name, table_name)
);
COMMENT ON TABLE epochline.state_table IS 'Current number of keys and digest of each state table.';

CREATE TABLE epochline.state_version (
    pipeline    text        NOT NULL REFERENCES epochline.pipeline,
    state       text        NOT NULL,
    epoch_id    bigint      NOT NULL,
    keys        bigint      NOT NULL,
    digest      numeric     NOT NULL,
    written_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, state, epoch_id),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);
COMMENT ON TABLE epochline.state_version IS 'Number of keys and digest of each state table after each epoch.';

-- Savepoints.

-- The position of a pipeline after an epoch, under a name, until an operator deletes it. A savepoint copies the state.
-- It does not copy the target: a restore takes back what the later epochs wrote.
CREATE TABLE epochline.savepoint (
    pipeline         text NOT NULL,  -- may be a pipeline of another database, if the savepoint was imported
    name             text NOT NULL CHECK (name <> ''),
    epoch_id         bigint NOT NULL,
    generation       integer NOT NULL,
    cluster_id       text,
    watermark        timestamptz,
    declaration      jsonb NOT NULL,
    made_by          text NOT NULL CHECK (made_by <> ''),
    reason           text NOT NULL CHECK (reason <> ''),
    made_at          timestamptz NOT NULL DEFAULT now(),
    imported_at      timestamptz,  -- set if it came from a file: its epoch ids are those of another database
    PRIMARY KEY (pipeline, name)
);

CREATE TABLE epochline.savepoint_head (
    pipeline          text NOT NULL,
    name              text NOT NULL,
    topic             text NOT NULL,
    topic_id          text NOT NULL,
    partition         integer NOT NULL CHECK (partition >= 0),
    next_offset       bigint NOT NULL CHECK (next_offset >= 0),
    leader_epoch      integer,
    newest_event_time timestamptz,
    read_at           timestamptz,
    PRIMARY KEY (pipeline, name, topic_id, partition),
    FOREIGN KEY (pipeline, name) REFERENCES epochline.savepoint ON DELETE CASCADE
);

CREATE TABLE epochline.savepoint_state (
    pipeline   text NOT NULL,
    name       text NOT NULL,
    state      text NOT NULL,
    table_name text NOT NULL UNIQUE,
    keys       bigint NOT NULL,
    digest     numeric NOT NULL,
    PRIMARY KEY (pipeline, name, state),
    FOREIGN KEY (pipeline, name) REFERENCES epochline.savepoint ON DELETE CASCADE
);

-- Operators.

-- Every action of an operator, with the situation before and after it. Written in the action's own transaction.
CREATE TABLE epochline.action (
    action_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline  text NOT NULL REFERENCES epochline.pipeline,
    action    text NOT NULL,
    epoch_id  bigint,
    actor     text NOT NULL CHECK (actor <> ''),
    reason    text NOT NULL CHECK (reason <> ''),
    before    jsonb NOT NULL,
    after     jsonb NOT NULL,
    acted_at  timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);
CREATE INDEX action_of_pipeline ON epochline.action (pipeline, action_id DESC);
CREATE TRIGGER action_is_written_once
    BEFORE UPDATE OR DELETE ON epochline.action FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();

-- Epochs that a consumer group or a sink shows and the ledger does not know, because the ledger was restored from an
-- older backup. An operator accepted that the ledger counts.
CREATE TABLE epochline.accepted_epoch (
    accepted_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text NOT NULL REFERENCES epochline.pipeline,
    shown_by    text NOT NULL,     -- the consumer group or the sink
    generation  integer NOT NULL,
    epoch_id    bigint NOT NULL,
    token       uuid,              -- NULL if what the sink shows names no attempt
    reached     jsonb,             -- the offsets up to which a sink shows every record; NULL for a consumer group
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX accepted_epochs ON epochline.accepted_epoch (pipeline, token);
CREATE TRIGGER accepted_is_written_once
    BEFORE UPDATE OR DELETE ON epochline.accepted_epoch FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();
