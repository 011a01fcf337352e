-- Several sinks in one epoch (C3, E6). Tables show an epoch with its commit; topics, files and other sinks follow by
-- roll-forward. A receipt says of each committed epoch and sink whether it is shown there.

-- What a sink's seal left for its commit; NULL for tables.
ALTER TABLE epochline.manifest ADD COLUMN body jsonb;

-- Written by the commit; shown_at is noted when the sink shows the epoch.
CREATE TABLE epochline.receipt (
    pipeline    text NOT NULL,
    epoch_id    bigint NOT NULL,
    sink        text NOT NULL,
    attempt_id  bigint NOT NULL REFERENCES epochline.attempt,
    rows        bigint NOT NULL CHECK (rows >= 0),
    body        jsonb NOT NULL DEFAULT '{}',
    due_at      timestamptz NOT NULL DEFAULT now(),
    tried_at    timestamptz,
    shown_at    timestamptz,
    seconds     double precision,
    told_by     text,  -- run whose task told others of it
    heard_at    timestamptz,
    PRIMARY KEY (pipeline, epoch_id, sink),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch,
    CHECK (shown_at IS NOT NULL OR (seconds IS NULL AND told_by IS NULL)),
    CHECK (told_by IS NOT NULL OR heard_at IS NULL)
);
CREATE INDEX due_receipts ON epochline.receipt (pipeline, epoch_id) WHERE shown_at IS NULL;
CREATE INDEX receipts_of_sink ON epochline.receipt (pipeline, sink, epoch_id) WHERE shown_at IS NOT NULL;
CREATE INDEX unheard_receipts ON epochline.receipt (pipeline, epoch_id) WHERE heard_at IS NULL;

-- What is shown stays shown: no sink takes a record back.
CREATE TRIGGER shown_is_written_once
    BEFORE UPDATE ON epochline.receipt FOR EACH ROW
    WHEN (OLD.shown_at IS NOT NULL
          AND (OLD.shown_at, OLD.rows, OLD.attempt_id) IS DISTINCT FROM (NEW.shown_at, NEW.rows, NEW.attempt_id))
    EXECUTE FUNCTION epochline.refuse_change();

CREATE VIEW epochline.receipts AS
SELECT r.pipeline, e.generation, r.epoch_id, r.sink,
       CASE WHEN r.shown_at IS NOT NULL THEN 'SHOWN' WHEN r.tried_at IS NOT NULL THEN 'OPEN' ELSE 'DUE' END AS state,
       r.rows, r.due_at, r.tried_at, r.shown_at, r.seconds, a.token, e.undone_by
FROM epochline.receipt r
JOIN epochline.epoch e USING (pipeline, epoch_id)
JOIN epochline.attempt a USING (attempt_id);

-- Which epochs a consumer took, each once: the row comes with the consumer's own work, in its transaction.
CREATE TABLE epochline.consumer_cursor (
    consumer text NOT NULL,
    pipeline text NOT NULL,
    sink     text NOT NULL,
    epoch_id bigint NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, pipeline, sink, epoch_id)
);

-- The next epoch that a sink shows and the consumer has not taken, in order; NULL where there is none. Whoever asks at
-- the same time for the same consumer waits until this transaction ends.
CREATE FUNCTION epochline.take_epoch(consumer text, pipeline text, sink text) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE
    next_epoch bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(format('epochline.take_epoch %s %s %s', $1, $2, $3), 0));
    -- In the order of ids; an epoch that this sink shows later than a higher one does not exist: sinks show in order.
    SELECT min(r.epoch_id) INTO next_epoch FROM epochline.receipts r
    WHERE r.pipeline = $2 AND r.sink = $3 AND r.state = 'SHOWN' AND r.undone_by IS NULL
      AND r.epoch_id > coalesce((SELECT max(c.epoch_id) FROM epochline.consumer_cursor c
                                 WHERE c.consumer = $1 AND c.pipeline = $2 AND c.sink = $3), 0);
    IF next_epoch IS NOT NULL THEN
        INSERT INTO epochline.consumer_cursor (consumer, pipeline, sink, epoch_id) VALUES ($1, $2, $3, next_epoch);
    END IF;
    RETURN next_epoch;
END $$;

COMMENT ON TABLE epochline.receipt IS 'Of each committed epoch and sink, whether the sink shows it.';
COMMENT ON TABLE epochline.consumer_cursor IS 'Which epochs each consumer took, by take_epoch.';
