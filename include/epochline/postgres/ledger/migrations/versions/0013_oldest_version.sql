-- The ledger says which versions of epochline may work on it. Each later migration states the oldest one whose tasks may
-- go on after it; a version that knows a newer migration runs it first.
ALTER TABLE epochline.alembic_version
    ADD COLUMN oldest_version text CONSTRAINT three_numbers CHECK (oldest_version ~ '^\d+\.\d+\.\d+$');

-- 0.1.0 commits without the identity of targets (0008) and the trace of state (0010), which 0.2.0 compares.
UPDATE epochline.alembic_version SET oldest_version = '0.2.0';

-- A version before 0.2.0 asks no ledger whether it may work on it. So the database refuses what each of its tasks writes
-- first. From 0.2.0 on each transaction says its version. A pooler may leave the setting empty behind.
CREATE FUNCTION epochline.refuse_without_version() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'EV001', MESSAGE = format(
        'this session is of epochline 0.1.0 or of no epochline, and the ledger allows epochline %1$s and newer. Nothing '
        'was changed. Install epochline %1$s or newer for every process of Airflow and Spark, and restart them',
        (SELECT oldest_version FROM epochline.alembic_version));
END $$;
REVOKE ALL ON FUNCTION epochline.refuse_without_version() FROM PUBLIC;

DO $$
DECLARE
    guarded text;
BEGIN
    FOREACH guarded IN ARRAY ARRAY['INSERT ON epochline.pipeline', 'INSERT OR UPDATE OF state ON epochline.epoch',
        'INSERT ON epochline.attempt', 'INSERT ON epochline.part', 'INSERT OR UPDATE ON epochline.receipt',
        'INSERT ON epochline.action'] LOOP
        EXECUTE 'CREATE TRIGGER says_its_version BEFORE ' || guarded || ' FOR EACH STATEMENT'
            ' WHEN (coalesce(current_setting(''epochline.version'', true), '''') = '''')'
            ' EXECUTE FUNCTION epochline.refuse_without_version()';
    END LOOP;
END $$;
