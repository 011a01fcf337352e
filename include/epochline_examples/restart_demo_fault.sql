-- The fault: the program throws at every fifth number, at every try.
-- To turn it off: DROP TRIGGER fault_at_every_fifth ON examples.t_restart;
CREATE OR REPLACE FUNCTION examples.fault_at_every_fifth() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.number % 5 = 0 THEN
        RAISE EXCEPTION 'the program throws at every fifth number';
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER fault_at_every_fifth AFTER INSERT ON examples.t_restart
    FOR EACH ROW EXECUTE FUNCTION examples.fault_at_every_fifth();
