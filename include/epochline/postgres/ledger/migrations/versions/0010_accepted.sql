-- A ledger that went back in time, as from a backup, and the operator's word that it counts (trap 25): epochs that a
-- consumer group or a sink shows, and that this ledger does not know.
CREATE TABLE epochline.accepted_epoch (
    accepted_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text NOT NULL REFERENCES epochline.pipeline,
    shown_by    text NOT NULL,     -- the consumer group, or the sink
    generation  integer NOT NULL,
    epoch_id    bigint NOT NULL,
    token       uuid,              -- NULL where a version wrote it that kept none
    reached     jsonb,             -- the offsets up to which a sink shows every record; NULL for a consumer group
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX accepted_epochs ON epochline.accepted_epoch (pipeline, token);
CREATE TRIGGER accepted_is_written_once
    BEFORE UPDATE OR DELETE ON epochline.accepted_epoch FOR EACH ROW EXECUTE FUNCTION epochline.refuse_change();
