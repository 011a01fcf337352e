-- A pipeline may be paused (no new epoch is planned) or dropped (its name is kept, so that its history stays true).
ALTER TABLE epochline.pipeline
    ADD COLUMN paused_at      timestamptz,
    ADD COLUMN paused_by      text,
    ADD COLUMN paused_reason  text,
    ADD COLUMN dropped_at     timestamptz,
    ADD COLUMN dropped_by     text,
    ADD COLUMN dropped_reason text,
    ADD CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    ADD CHECK ((dropped_at IS NULL) = (dropped_by IS NULL));

-- Settings in force (C10), the interval of a backfill run, and how often the epoch was aborted (K11: a re-opened
-- epoch that is aborted again has failed twice).
ALTER TABLE epochline.epoch
    ADD COLUMN settings       jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN interval_start timestamptz,
    ADD COLUMN interval_end   timestamptz,
    ADD COLUMN aborts         integer NOT NULL DEFAULT 0 CHECK (aborts >= 0),
    ADD CONSTRAINT known_kind CHECK (kind IN ('regular', 'backfill', 'requeue', 'extend_back')),
    ADD CHECK ((interval_start IS NULL) = (interval_end IS NULL));
UPDATE epochline.epoch SET aborts = 1 WHERE state = 'ABORTED';

-- Whatever an operator did, before and after. Written in the action's own transaction, never changed.
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

-- The chain's origin may move back, and only back: an extend-back epoch commits what lies between. That the old
-- origin is still an end of some range is seen to by the chain's foreign key, checked at the end of the transaction.
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
DROP TRIGGER committed_is_written_once ON epochline.committed_range;
CREATE TRIGGER committed_is_written_once
    BEFORE UPDATE OR DELETE ON epochline.committed_range
    FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change_of_chain();

-- A requeue epoch has no range: it claims quarantined records. A record is requeued once; a claim of an aborted
-- epoch is given back by deleting it.
ALTER TABLE epochline.quarantined_record
    ADD COLUMN requeued_by bigint,
    ADD COLUMN requeued_at timestamptz,
    ADD CHECK ((requeued_by IS NULL) = (requeued_at IS NULL)),
    ADD FOREIGN KEY (pipeline, requeued_by) REFERENCES epochline.epoch;
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

-- Views: columns are only ever added, at the end.
CREATE OR REPLACE VIEW epochline.epochs AS
SELECT pipeline, generation, epoch_id, state, attempt, kind, dag_id, run_id, planned_at, pre_committed_at,
       committed_at, aborted_at, records_read, records_passed, records_quarantined, rows_written, approval, error,
       records_skipped, record_limit, note, declaration_hash, lease_until, settings, interval_start, interval_end,
       aborts
FROM epochline.epoch;

CREATE OR REPLACE VIEW epochline.quarantine AS
SELECT pipeline, epoch_id, topic, partition, "offset", key, value, reason, quarantined_at, generation,
       record_timestamp, headers, requeued_by, requeued_at
FROM epochline.quarantined_record;

CREATE VIEW epochline.actions AS
SELECT action_id, pipeline, action, epoch_id, actor, reason, before, after, acted_at FROM epochline.action;

CREATE VIEW epochline.pipelines AS
SELECT pipeline, generation, last_epoch_id, cluster_id, created_at, paused_at, paused_by, paused_reason, dropped_at,
       dropped_by, dropped_reason
FROM epochline.pipeline;

-- Every link of every chain; those of an earlier generation are superseded: kept, and read no more.
CREATE VIEW epochline.committed_ranges AS
SELECT c.pipeline, c.generation, c.topic, c.topic_id, c.partition, c.start_offset, c.until_offset, c.epoch_id,
       c.chosen_by, c.leader_epoch, c.committed_at, c.generation < p.generation AS superseded
FROM epochline.committed_range c JOIN epochline.pipeline p USING (pipeline);
