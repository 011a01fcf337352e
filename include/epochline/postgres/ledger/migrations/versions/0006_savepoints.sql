-- Savepoints (C12, C13): where a pipeline stood after an epoch, under a name, until somebody deletes it. The state is
-- copied, the target is not: it goes back by what its epochs left behind.
CREATE TABLE epochline.savepoint (
    pipeline         text NOT NULL,  -- of another database, where it was imported
    name             text NOT NULL CHECK (name <> ''),
    epoch_id         bigint NOT NULL,
    generation       integer NOT NULL,
    cluster_id       text,
    watermark        timestamptz,
    declaration      jsonb NOT NULL,
    made_by          text NOT NULL CHECK (made_by <> ''),
    reason           text NOT NULL CHECK (reason <> ''),
    made_at          timestamptz NOT NULL DEFAULT now(),
    imported_at      timestamptz,  -- where it came from a file: the epochs it names are another database's
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

-- What an epoch replaced in an upsert or add target, while the declaration says that it is kept.
CREATE TABLE epochline.before_image (
    pipeline   text NOT NULL,
    epoch_id   bigint NOT NULL,
    sink       text NOT NULL,
    table_name text NOT NULL UNIQUE,
    PRIMARY KEY (pipeline, epoch_id, sink),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);

-- A restore is an epoch of its own that reads nothing: it leaves heads, state and watermark as the savepoint has them.
-- What it undid stays in the ledger.
ALTER TABLE epochline.epoch
    ADD COLUMN undone_by bigint,
    -- A replay reads another epoch's ranges once more, and takes its place where it is promoted: that one is undone.
    ADD COLUMN replays   bigint,
    ADD FOREIGN KEY (pipeline, replays) REFERENCES epochline.epoch,
    ADD CHECK ((replays IS NOT NULL) = (kind = 'replay')),
    ADD CHECK (undone_by IS NULL OR state = 'COMMITTED'),
    ADD FOREIGN KEY (pipeline, undone_by) REFERENCES epochline.epoch,
    DROP CONSTRAINT known_kind,
    ADD CONSTRAINT known_kind
        CHECK (kind IN ('regular', 'backfill', 'requeue', 'extend_back', 'idle', 'restore', 'replay'));

-- Of an origin that a savepoint gave: what was known of event time there.
ALTER TABLE epochline.committed_range
    ADD COLUMN newest_event_time timestamptz,
    ADD COLUMN read_at           timestamptz;

CREATE OR REPLACE VIEW epochline.event_times AS
SELECT h.pipeline, h.topic, h.topic_id, h.partition,
       coalesce(t.newest_event_time, o.newest_event_time) AS newest_event_time,
       coalesce(t.planned_at, o.read_at) AS read_at
FROM epochline.heads h
JOIN epochline.committed_range o
    ON (o.pipeline, o.generation, o.topic_id, o.partition) = (h.pipeline, h.generation, h.topic_id, h.partition)
   AND o.start_offset IS NULL
LEFT JOIN LATERAL (
    SELECT r.newest_event_time, e.planned_at
    FROM epochline.planned_range r JOIN epochline.epoch e USING (pipeline, epoch_id)
    WHERE r.pipeline = h.pipeline AND r.topic_id = h.topic_id AND r.partition = h.partition
      AND r.newest_event_time IS NOT NULL AND e.state = 'COMMITTED' AND e.undone_by IS NULL
    ORDER BY r.epoch_id DESC LIMIT 1) t ON true;

CREATE OR REPLACE VIEW epochline.epochs AS
SELECT pipeline, generation, epoch_id, state, attempt, kind, dag_id, run_id, planned_at, pre_committed_at,
       committed_at, aborted_at, records_read, records_passed, records_quarantined, rows_written, approval, error,
       records_skipped, record_limit, note, declaration_hash, lease_until, settings, interval_start, interval_end,
       aborts, watermark, records_too_late, undone_by, replays
FROM epochline.epoch;

CREATE VIEW epochline.savepoints AS
SELECT s.pipeline, s.name, s.epoch_id, s.generation, s.watermark, s.made_by, s.reason, s.made_at, s.imported_at,
       (SELECT sum(t.keys) FROM epochline.savepoint_state t
        WHERE (t.pipeline, t.name) = (s.pipeline, s.name))::bigint AS keys
FROM epochline.savepoint s;
