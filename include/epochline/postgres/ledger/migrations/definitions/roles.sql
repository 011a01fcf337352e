-- Roles of least privilege. Four roles without a login, the same in every database of the server; logins become their
-- members. New views and tables are granted by rule; what the writer may do is a list.
--
--   epochline_owner   plans, begins, seals, commits and aborts: all rows of the ledger, and staging. It may not alter
--                     the ledger's tables.
--   epochline_writer  does the work of a Spark job: reads its plan, fills staging, inserts parts, manifests and refused
--                     writes.
--   epochline_reader  reads the views. It does not see key, value, headers and reason of a quarantined record, nor a
--                     refused row and its reason, because they may be personal data.
--   epochline_inspector  reads the views, and those columns too. The pages in Airflow take this role for the answers
--                     to users who may edit the pipeline's runs.
--
-- The module epochline.postgres.ledger.roles creates the roles. This function grants to them; a repeat changes nothing.
DROP FUNCTION IF EXISTS epochline.arrange_roles();
CREATE OR REPLACE FUNCTION epochline.grant_to_roles() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    relation record;
BEGIN
    -- Only the owner of the schema may grant on it. For every other caller the function ends here.
    IF (SELECT bool_or(to_regrole(role) IS NULL)
        FROM unnest(ARRAY['epochline_owner', 'epochline_writer', 'epochline_reader', 'epochline_inspector']) role)
       OR NOT (SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'epochline') THEN
        RETURN;
    END IF;
    GRANT USAGE, CREATE ON SCHEMA epochline, epochline_staging TO epochline_owner;
    GRANT USAGE ON SCHEMA epochline, epochline_staging TO epochline_writer;
    GRANT USAGE ON SCHEMA epochline TO epochline_reader;
    FOR relation IN
        SELECT c.oid::regclass AS name, c.relkind = 'v' AS is_view,
               CASE WHEN c.relname IN ('quarantine', 'refused_rows') AND c.relkind = 'v' THEN
                   (SELECT format('(%s)', string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum))
                    FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                      AND a.attname NOT IN ('key', 'value', 'headers', 'reason', 'row'))
               ELSE '' END AS columns
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'epochline' AND c.relkind IN ('r', 'p', 'v')
          AND c.relname NOT IN ('alembic_version', 'definition')
          AND pg_has_role(c.relowner, 'USAGE')
    LOOP
        IF relation.is_view THEN
            EXECUTE format('GRANT SELECT ON %s TO epochline_owner', relation.name);
            EXECUTE format('GRANT SELECT %s ON %s TO epochline_reader', relation.columns, relation.name);
        ELSE
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO epochline_owner', relation.name);
        END IF;
    END LOOP;
    GRANT SELECT ON epochline.quarantine, epochline.refused_rows TO epochline_inspector;
    GRANT SELECT ON epochline.alembic_version, epochline.definition TO epochline_owner;

    GRANT SELECT ON epochline.epoch, epochline.declaration, epochline.planned_range, epochline.planned_target,
        epochline.attempt, epochline.part, epochline.requeue_claim, epochline.quarantined_record, epochline.event_times,
        epochline.refused_row, epochline.versions TO epochline_writer;
    -- SELECT … FOR KEY SHARE needs the right to update at least one column.
    GRANT UPDATE (job_ended_at, error, error_class, error_command, failed_at, watermark, records_too_late)
        ON epochline.attempt TO epochline_writer;
    -- DELETE: at its end the job deletes the counts of its parse tasks. The seal refuses if a real part is missing.
    GRANT INSERT, DELETE ON epochline.part TO epochline_writer;
    GRANT INSERT ON epochline.manifest TO epochline_writer;
    GRANT INSERT, SELECT ON epochline.fenced_write TO epochline_writer;
    GRANT INSERT ON epochline.refused_row TO epochline_writer;
END $$;
REVOKE ALL ON FUNCTION epochline.grant_to_roles() FROM PUBLIC;
