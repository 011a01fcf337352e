-- What the pages in Airflow need, so that they ask no Kafka and stay quick at a hundred thousand epochs.

-- Where each partition's log began and ended when the last plan asked Kafka. One row per partition; nothing that the
-- protocol decides reads it.
CREATE TABLE epochline.log_end (
    pipeline    text NOT NULL REFERENCES epochline.pipeline,
    topic       text NOT NULL,
    topic_id    text NOT NULL,
    partition   integer NOT NULL CHECK (partition >= 0),
    log_start   bigint NOT NULL CHECK (log_start >= 0),
    last_stable bigint NOT NULL,
    observed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, topic_id, partition)
);
COMMENT ON TABLE epochline.log_end IS 'Where each log began and ended when the last plan asked Kafka.';

-- The last committed epoch, the failures since then, and the number of epochs in each state.
CREATE INDEX epoch_by_state ON epochline.epoch (pipeline, state, epoch_id DESC);
-- The epochs of a rare kind, among many regular ones.
CREATE INDEX epoch_of_rare_kind ON epochline.epoch (pipeline, kind, epoch_id DESC) WHERE kind <> 'regular';
-- The epochs of the last day.
CREATE INDEX epoch_by_plan ON epochline.epoch (planned_at);
-- The view of heads finds each chain by its origin.
CREATE INDEX origin_of_chain ON epochline.committed_range (pipeline, generation, topic_id, partition)
    WHERE start_offset IS NULL;
