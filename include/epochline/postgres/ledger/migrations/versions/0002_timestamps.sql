-- How long records waited (G7). The seal writes both with the counts. Epochs that were sealed before have NULL.
-- Columns without a default rewrite no row; the constraint reads the table once.
ALTER TABLE epochline.planned_range
    ADD COLUMN oldest_timestamp timestamptz,
    ADD COLUMN newest_timestamp timestamptz,
    ADD CONSTRAINT timestamps_are_a_span
        CHECK ((oldest_timestamp IS NULL) = (newest_timestamp IS NULL) AND oldest_timestamp <= newest_timestamp);
