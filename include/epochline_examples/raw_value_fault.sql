-- The fault: a division by zero after a row with the value 15 is inserted.
-- It is raised after staging and before the seal. To turn it off: DROP TRIGGER fault_at_15 ON examples.t_test;
CREATE OR REPLACE FUNCTION examples.fault_at_15() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.value = '15' THEN
        PERFORM 1 / 0;
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER fault_at_15 AFTER INSERT ON examples.t_test FOR EACH ROW EXECUTE FUNCTION examples.fault_at_15();
