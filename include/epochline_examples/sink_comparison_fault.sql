-- The fault: the program throws "compare test exception." at the twelfth row since it began or was restarted, as the
-- Flink program does, whose counter is back at zero after each restart. With ten rows in an epoch, the first epoch
-- passes; each later one fails at its second row, and its restart passes. An epoch of twelve rows or more never passes.
-- To turn it off: DROP TRIGGER compare_test_exception ON examples.test_two_step_compare;
CREATE TABLE IF NOT EXISTS examples.compare_run (began timestamptz NOT NULL);
DELETE FROM examples.compare_run;
INSERT INTO examples.compare_run VALUES (clock_timestamp());

CREATE OR REPLACE FUNCTION examples.compare_test_exception() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    -- The rows of this transaction so far. A rollback to a savepoint takes the setting back.
    rows_here bigint := coalesce(nullif(current_setting('examples.compare_rows', true), ''), '0')::bigint + 1;
    rows_before bigint;
BEGIN
    PERFORM set_config('examples.compare_rows', rows_here::text, true);
    SELECT coalesce(sum(e.records_passed), 0) INTO rows_before
    FROM epochline.epochs e
    WHERE e.pipeline = 'sink_comparison' AND e.state = 'COMMITTED' AND e.committed_at > greatest(
        (SELECT began FROM examples.compare_run),
        (SELECT max(a.ended_at) FROM epochline.attempts a WHERE a.pipeline = e.pipeline AND a.error IS NOT NULL));
    IF rows_before + rows_here > 11 THEN
        RAISE EXCEPTION 'compare test exception.';
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER compare_test_exception AFTER INSERT ON examples.test_two_step_compare
    FOR EACH ROW EXECUTE FUNCTION examples.compare_test_exception();
