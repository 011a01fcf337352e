-- The fault: each attempt to write counts fails. To turn it off: DROP TRIGGER fault_of_counts ON examples.t_wordcount;
CREATE OR REPLACE FUNCTION examples.fault_of_counts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the word count fails';
END $$;
CREATE OR REPLACE TRIGGER fault_of_counts BEFORE INSERT ON examples.t_wordcount
    FOR EACH STATEMENT EXECUTE FUNCTION examples.fault_of_counts();
