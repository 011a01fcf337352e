-- Event time (E5, E11, X21). The job notes the watermark by which it closed windows with its end mark, so that an epoch
-- leaves the very one that its results were made by.
ALTER TABLE epochline.attempt
    ADD COLUMN watermark        timestamptz,
    ADD COLUMN records_too_late bigint CHECK (records_too_late >= 0);
ALTER TABLE epochline.epoch
    ADD COLUMN watermark        timestamptz,
    ADD COLUMN records_too_late bigint CHECK (records_too_late >= 0),
    DROP CONSTRAINT known_kind,
    ADD CONSTRAINT known_kind CHECK (kind IN ('regular', 'backfill', 'requeue', 'extend_back', 'idle'));

-- The newest event time that was read of the partition, up to and with this epoch.
ALTER TABLE epochline.planned_range ADD COLUMN newest_event_time timestamptz;
CREATE INDEX event_time_of_partition ON epochline.planned_range (pipeline, topic_id, partition, epoch_id DESC)
    WHERE newest_event_time IS NOT NULL;

-- What is known of event time in each partition that has a head; read_at: when the last epoch with a record of it was
-- planned.
CREATE VIEW epochline.event_times AS
SELECT h.pipeline, h.topic, h.topic_id, h.partition, t.newest_event_time, t.planned_at AS read_at
FROM epochline.heads h LEFT JOIN LATERAL (
    SELECT r.newest_event_time, e.planned_at
    FROM epochline.planned_range r JOIN epochline.epoch e USING (pipeline, epoch_id)
    WHERE r.pipeline = h.pipeline AND r.topic_id = h.topic_id AND r.partition = h.partition
      AND r.newest_event_time IS NOT NULL AND e.state = 'COMMITTED'
    ORDER BY r.epoch_id DESC LIMIT 1) t ON true;

CREATE OR REPLACE VIEW epochline.epochs AS
SELECT pipeline, generation, epoch_id, state, attempt, kind, dag_id, run_id, planned_at, pre_committed_at,
       committed_at, aborted_at, records_read, records_passed, records_quarantined, rows_written, approval, error,
       records_skipped, record_limit, note, declaration_hash, lease_until, settings, interval_start, interval_end,
       aborts, watermark, records_too_late
FROM epochline.epoch;

CREATE OR REPLACE VIEW epochline.offsets AS
SELECT r.pipeline, e.generation, r.epoch_id, r.topic, r.topic_id, r.partition, r.start_offset, r.until_offset,
       e.state, r.records_read, r.records_passed, r.records_skipped, r.records_quarantined, r.first_offset,
       r.last_offset, r.leader_epoch, r.newest_event_time
FROM epochline.planned_range r JOIN epochline.epoch e USING (pipeline, epoch_id);

-- As in migration 0003; a writer also notes watermarks and reads event times.
CREATE OR REPLACE FUNCTION epochline.arrange_roles() RETURNS SETOF text LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    roles     CONSTANT text[] := ARRAY['epochline_owner', 'epochline_writer', 'epochline_reader'];
    step      integer;
    statement text;
    relation  record;
BEGIN
    FOR step IN 1..3 LOOP
        FOR statement IN
            SELECT format('CREATE ROLE %I NOLOGIN', role) FROM unnest(roles) role
            WHERE step = 1 AND to_regrole(role) IS NULL
            UNION ALL
            -- Also the path on which an owner may end a writer's sessions, where the writer itself is the login.
            SELECT 'GRANT epochline_writer TO epochline_owner'
            WHERE step = 2
              AND pg_has_role(to_regrole('epochline_owner'), to_regrole('epochline_writer'), 'USAGE') IS NOT TRUE
            UNION ALL
            SELECT format('GRANT epochline_owner TO %I', current_user)
            WHERE step = 2 AND pg_has_role(to_regrole('epochline_owner'), 'USAGE') IS NOT TRUE
            UNION ALL
            -- TEMPORARY: an audit keeps what it read from Kafka in tables of its session.
            SELECT format('GRANT %s ON DATABASE %I TO %I', wanted, current_database(), role)
            FROM (SELECT role, 'CONNECT' FROM unnest(roles) role
                  UNION ALL SELECT 'epochline_owner', 'TEMPORARY') AS rights (role, wanted)
            WHERE step = 3 AND has_database_privilege(to_regrole(role), current_database(), wanted) IS NOT TRUE
        LOOP
            IF step = 3 AND NOT (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database
                                 WHERE datname = current_database()) THEN
                -- Run by another than the owner it would only warn, and do nothing.
                RETURN NEXT statement || ';';
                CONTINUE;
            END IF;
            BEGIN
                EXECUTE statement;
            EXCEPTION
                -- The migration of another database was faster.
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege OR undefined_object THEN RETURN NEXT statement || ';';
            END;
        END LOOP;
    END LOOP;

    -- Grants are for the owner of the schema to give; whoever else calls this changes nothing here.
    IF (SELECT bool_or(to_regrole(role) IS NULL) FROM unnest(roles) role)
       OR NOT (SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'epochline') THEN
        RETURN;
    END IF;
    GRANT USAGE, CREATE ON SCHEMA epochline, epochline_staging TO epochline_owner;
    GRANT USAGE ON SCHEMA epochline, epochline_staging TO epochline_writer;
    GRANT USAGE ON SCHEMA epochline TO epochline_reader;
    FOR relation IN
        SELECT c.oid::regclass AS name, c.relkind = 'v' AS is_view,
               CASE WHEN c.relname = 'quarantine' AND c.relkind = 'v' THEN
                   (SELECT format('(%s)', string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum))
                    FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                      AND a.attname NOT IN ('key', 'value', 'headers', 'reason'))
               ELSE '' END AS columns
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'epochline' AND c.relkind IN ('r', 'p', 'v') AND c.relname <> 'alembic_version'
          AND pg_has_role(c.relowner, 'USAGE')
    LOOP
        IF relation.is_view THEN
            EXECUTE format('GRANT SELECT ON %s TO epochline_owner', relation.name);
            EXECUTE format('GRANT SELECT %s ON %s TO epochline_reader', relation.columns, relation.name);
        ELSE
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO epochline_owner', relation.name);
        END IF;
    END LOOP;
    GRANT SELECT ON epochline.alembic_version TO epochline_owner;

    GRANT SELECT ON epochline.epoch, epochline.declaration, epochline.planned_range, epochline.planned_target,
        epochline.attempt, epochline.part, epochline.requeue_claim, epochline.quarantined_record, epochline.event_times
        TO epochline_writer;
    -- One column that may be updated is what SELECT … FOR KEY SHARE asks for as well.
    GRANT UPDATE (job_ended_at, error, watermark, records_too_late) ON epochline.attempt TO epochline_writer;
    -- DELETE: the job takes back the counts of its parse tasks when it ends. Without a real part the seal refuses.
    GRANT INSERT, DELETE ON epochline.part TO epochline_writer;
    GRANT INSERT ON epochline.manifest TO epochline_writer;
    GRANT INSERT, SELECT ON epochline.fenced_write TO epochline_writer;
END $$;
