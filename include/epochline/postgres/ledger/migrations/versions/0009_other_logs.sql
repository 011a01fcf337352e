-- Logs that became other ones: truncated, put back from a backup, or with holes.

-- In an origin that an adoption wrote: up to this offset the log is the one that earlier generations read. What they
-- committed beyond it was cut off, and other records have its offsets. NULL if nothing was cut off; -1 if nobody knows,
-- because a version before this migration adopted the log at its end.
ALTER TABLE epochline.committed_range ADD COLUMN same_log_until bigint CHECK (same_log_until >= -1);
ALTER TABLE epochline.committed_range DISABLE TRIGGER committed_is_written_once;
UPDATE epochline.committed_range origin SET same_log_until = -1
WHERE origin.start_offset IS NULL AND origin.chosen_by = 'adopted at latest'
  AND EXISTS (SELECT FROM epochline.committed_range c
              WHERE (c.pipeline, c.topic_id, c.partition) = (origin.pipeline, origin.topic_id, origin.partition)
                AND c.generation < origin.generation AND c.start_offset < origin.until_offset);
ALTER TABLE epochline.committed_range ENABLE TRIGGER committed_is_written_once;

-- The writes of the heads to the consumer group, each with a number that the group's metadata show. A row is made before
-- the write; confirmed_at says that Kafka took it, and latest_then which numbers had been given by then. A number that
-- was given later came after it, so that a group that shows this one again went back in time. Rows that a later one
-- replaced are deleted.
CREATE TABLE epochline.mirror (
    pipeline     text NOT NULL REFERENCES epochline.pipeline,
    number       bigint NOT NULL CHECK (number > 0),
    generation   integer NOT NULL,
    epoch_id     bigint NOT NULL,
    topics       text[] NOT NULL,
    begun_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    confirmed_at timestamptz,
    latest_then  bigint,
    PRIMARY KEY (pipeline, number),
    CHECK ((confirmed_at IS NULL) = (latest_then IS NULL))
);
COMMENT ON TABLE epochline.mirror IS 'The last writes of heads to the consumer group, as evidence that Kafka did not go back in time.';

-- Offsets inside a log at which Kafka holds nothing, and which an operator declared lost. An epoch that reads past them
-- balances.
CREATE TABLE epochline.declared_gap (
    pipeline     text NOT NULL REFERENCES epochline.pipeline,
    topic        text NOT NULL,
    topic_id     text NOT NULL,
    partition    integer NOT NULL CHECK (partition >= 0),
    start_offset bigint NOT NULL CHECK (start_offset >= 0),
    until_offset bigint NOT NULL,
    declared_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, topic_id, partition, start_offset),
    CHECK (until_offset > start_offset)
);
COMMENT ON TABLE epochline.declared_gap IS 'Holes in logs that an operator declared lost; epochline.operator_action says who and why.';
