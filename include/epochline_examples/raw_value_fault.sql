-- The fault: after the row is inserted, if its value is 15, one is divided by zero.
-- It is met when the rows have been staged, before they are sealed. To turn it off: DROP TRIGGER fault_at_15 ON t_test;
CREATE OR REPLACE FUNCTION fault_at_15() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.value = '15' THEN
        PERFORM 1 / 0;
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER fault_at_15 AFTER INSERT ON t_test FOR EACH ROW EXECUTE FUNCTION fault_at_15();
