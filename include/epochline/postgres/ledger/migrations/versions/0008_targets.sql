-- The tables that epochs wrote: another table of the same name lacks their rows.
ALTER TABLE epochline.target
    ADD COLUMN relation       oid,     -- the table that was claimed; NULL for a folder
    ADD COLUMN deleted_keys   oid,     -- its table of deleted keys
    ADD COLUMN accepted_epoch bigint;  -- an operator accepted the table as it was after this epoch
UPDATE epochline.target t SET relation = c.oid
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) = (t.schema_name, t.table_name);

-- A publication of all tables refuses UPDATE and DELETE where a table has no replica identity.
ALTER TABLE epochline.committed_range REPLICA IDENTITY USING INDEX nothing_ends_twice;
DO $$
DECLARE
    made regclass;
BEGIN
    FOR made IN
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname IN ('epochline', 'epochline_outbox') AND c.relkind = 'r' AND c.relreplident = 'd'
          AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)
          AND pg_has_role(c.relowner, 'USAGE')
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', made);
    END LOOP;
END $$;
