-- How long unread records are safe, how far behind each epoch was, and which epochs were recovered.

-- How long Kafka keeps the records of a log: the topic's own settings, -1 for no limit, NULL until Kafka was asked.
-- caught_up_at is the last time at which Kafka said of the log that it ended where today's head is or before it: every
-- unread record was written later.
ALTER TABLE epochline.log_end
    ADD COLUMN cleanup_policy  text,
    ADD COLUMN retention_ms    bigint,
    ADD COLUMN retention_bytes bigint,
    ADD COLUMN caught_up_at    timestamptz;
COMMENT ON TABLE epochline.log_end IS 'Where each log began and ended when Kafka was last asked, and how long Kafka keeps its records.';

-- Where the log ended when the epoch was planned; NULL for epochs that were planned before this migration.
ALTER TABLE epochline.planned_range ADD COLUMN last_stable bigint;

-- Epochs that were committed after an attempt had failed, among many that needed one attempt.
CREATE INDEX recovered_epoch ON epochline.epoch (pipeline, epoch_id DESC) WHERE state = 'COMMITTED' AND attempt > 1;
