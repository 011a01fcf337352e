-- Rows leave an outbox in an order that is written down. Those that wait get the order in which they lie.
DO $$
DECLARE
    waiting regclass;
BEGIN
    FOR waiting IN
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'epochline_outbox' AND c.relkind = 'r'
        UNION ALL
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN epochline.staging s ON s.table_name = c.relname
        WHERE n.nspname = 'epochline_staging' AND s.dropped_at IS NULL AND starts_with(s.sink, 'epochline_outbox.')
    LOOP
        EXECUTE format('ALTER TABLE %s ADD COLUMN _part integer NOT NULL DEFAULT 0,'
                       ' ADD COLUMN _seq bigint NOT NULL DEFAULT 0', waiting);
        EXECUTE format('UPDATE %1$s t SET _seq = o.number'
                       ' FROM (SELECT ctid AS place, row_number() OVER (ORDER BY ctid) AS number FROM %1$s) o'
                       ' WHERE t.ctid = o.place', waiting);
        EXECUTE format('ALTER TABLE %s ALTER _part DROP DEFAULT, ALTER _seq DROP DEFAULT,'
                       ' ALTER _part DROP NOT NULL, ALTER _seq DROP NOT NULL', waiting);
    END LOOP;
END $$;
