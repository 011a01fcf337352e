-- What became of the rows that were staged for an upsert; NULL for every other sink, and for receipts from before.
ALTER TABLE epochline.receipt
    ADD COLUMN inserted bigint,
    ADD COLUMN updated bigint,
    ADD COLUMN deleted bigint,
    ADD COLUMN superseded bigint,
    ADD COLUMN unchanged bigint,
    ADD CONSTRAINT every_row_is_accounted_for
        CHECK (num_nulls(inserted, updated, deleted, superseded, unchanged) IN (0, 5)
               AND coalesce(inserted + updated + deleted + superseded + unchanged = rows, true));

CREATE OR REPLACE VIEW epochline.receipts AS
SELECT r.pipeline, e.generation, r.epoch_id, r.sink,
       CASE WHEN r.shown_at IS NOT NULL THEN 'SHOWN' WHEN r.tried_at IS NOT NULL THEN 'OPEN' ELSE 'DUE' END AS state,
       r.rows, r.due_at, r.tried_at, r.shown_at, r.seconds, a.token, e.undone_by,
       r.inserted, r.updated, r.deleted, r.superseded, r.unchanged
FROM epochline.receipt r
JOIN epochline.epoch e USING (pipeline, epoch_id)
JOIN epochline.attempt a USING (attempt_id);
