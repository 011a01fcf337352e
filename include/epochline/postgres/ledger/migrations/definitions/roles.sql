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
-- Create the roles and grant to them; a repeat changes nothing. Returns the statements for which the caller lacks the
-- rights: a DBA runs them, then the function is called again.
CREATE OR REPLACE FUNCTION epochline.arrange_roles() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    roles     CONSTANT text[] := ARRAY['epochline_owner', 'epochline_writer', 'epochline_reader',
                                      'epochline_inspector'];
    step      integer;
    statement text;
    relation  record;
BEGIN
    FOR step IN 1..3 LOOP
        FOR statement IN
            SELECT format('CREATE ROLE %I NOLOGIN', role) FROM unnest(roles) role
            WHERE step = 1 AND to_regrole(role) IS NULL
            UNION ALL
            -- An owner also needs the membership to end the sessions of a login that is the writer role itself.
            SELECT 'GRANT epochline_writer TO epochline_owner'
            WHERE step = 2
              AND pg_has_role(to_regrole('epochline_owner'), to_regrole('epochline_writer'), 'USAGE') IS NOT TRUE
            UNION ALL
            SELECT 'GRANT epochline_reader TO epochline_inspector'
            WHERE step = 2
              AND pg_has_role(to_regrole('epochline_inspector'), to_regrole('epochline_reader'), 'USAGE') IS NOT TRUE
            UNION ALL
            SELECT format('GRANT epochline_owner TO %I', current_user)
            WHERE step = 2 AND pg_has_role(to_regrole('epochline_owner'), 'USAGE') IS NOT TRUE
            UNION ALL
            -- TEMPORARY: an audit stores the records that it read in temporary tables.
            SELECT format('GRANT %s ON DATABASE %I TO %I', wanted, current_database(), role)
            FROM (SELECT role, 'CONNECT' FROM unnest(roles) role
                  UNION ALL SELECT 'epochline_owner', 'TEMPORARY') AS rights (role, wanted)
            WHERE step = 3 AND has_database_privilege(to_regrole(role), current_database(), wanted) IS NOT TRUE
        LOOP
            IF step = 3 AND NOT (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database
                                 WHERE datname = current_database()) THEN
                -- Without ownership of the database, GRANT only warns and changes nothing.
                RETURN NEXT statement || ';';
                CONTINUE;
            END IF;
            BEGIN
                EXECUTE statement;
            EXCEPTION
                -- The migration of another database created it at the same moment.
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege OR undefined_object THEN RETURN NEXT statement || ';';
            END;
        END LOOP;
    END LOOP;

    -- Only the owner of the schema may grant on it. For every other caller the function ends here.
    IF (SELECT bool_or(to_regrole(role) IS NULL) FROM unnest(roles) role)
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
        epochline.refused_row TO epochline_writer;
    -- SELECT … FOR KEY SHARE needs the right to update at least one column.
    GRANT UPDATE (job_ended_at, error, error_class, error_command, failed_at, watermark, records_too_late)
        ON epochline.attempt TO epochline_writer;
    -- DELETE: at its end the job deletes the counts of its parse tasks. The seal refuses if a real part is missing.
    GRANT INSERT, DELETE ON epochline.part TO epochline_writer;
    GRANT INSERT ON epochline.manifest TO epochline_writer;
    GRANT INSERT, SELECT ON epochline.fenced_write TO epochline_writer;
    GRANT INSERT ON epochline.refused_row TO epochline_writer;
END $$;
REVOKE ALL ON FUNCTION epochline.arrange_roles() FROM PUBLIC;
