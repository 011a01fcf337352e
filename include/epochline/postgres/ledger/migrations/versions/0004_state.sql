-- Keyed state (C1, C8, S14). A state table has triggers that keep, per statement and at the cost of the rows touched,
-- how many keys it holds and the sum of a digest over its rows; whoever writes. A commit notes what it left. Where the
-- two differ, somebody else wrote.

CREATE TABLE epochline.state_table (
    schema_name text    NOT NULL,
    table_name  text    NOT NULL,
    keys        bigint  NOT NULL DEFAULT 0,
    digest      numeric NOT NULL DEFAULT 0,
    relation    oid     NOT NULL,  -- of the table that was counted
    PRIMARY KEY (schema_name, table_name)
);

CREATE TABLE epochline.state_version (
    pipeline    text        NOT NULL REFERENCES epochline.pipeline,
    state       text        NOT NULL,
    epoch_id    bigint      NOT NULL,
    keys        bigint      NOT NULL,
    digest      numeric     NOT NULL,
    written_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, state, epoch_id),
    FOREIGN KEY (pipeline, epoch_id) REFERENCES epochline.epoch
);

-- The text of a row depends on settings of the session: here they are fixed. md5 is the same in every version and on
-- every machine, which hash functions of PostgreSQL's own are not.
CREATE FUNCTION epochline.row_digest(row_text text) RETURNS numeric LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ('x' || substr(md5(row_text), 1, 16))::bit(64)::bigint::numeric;

CREATE FUNCTION epochline.follow_state() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, YMD' SET "IntervalStyle" = 'postgres'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    more_keys bigint  := 0;
    more      numeric := 0;
    of_some   numeric;
    number    bigint;
BEGIN
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) INTO number, of_some FROM new_rows r;
        more_keys := more_keys + number;
        more := more + of_some;
    END IF;
    IF TG_OP IN ('DELETE', 'UPDATE') THEN
        SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) INTO number, of_some FROM old_rows r;
        more_keys := more_keys - number;
        more := more - of_some;
    END IF;
    UPDATE epochline.state_table SET keys = keys + more_keys, digest = digest + more
    WHERE schema_name = TG_TABLE_SCHEMA AND table_name = TG_TABLE_NAME;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION epochline.follow_state() FROM PUBLIC;

CREATE FUNCTION epochline.follow_state_truncated() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
BEGIN
    UPDATE epochline.state_table SET keys = 0, digest = 0
    WHERE schema_name = TG_TABLE_SCHEMA AND table_name = TG_TABLE_NAME;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION epochline.follow_state_truncated() FROM PUBLIC;

CREATE FUNCTION epochline.state_digest(schema_name text, table_name text, OUT keys bigint, OUT digest numeric)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, YMD' SET "IntervalStyle" = 'postgres'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
BEGIN
    EXECUTE format('SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) FROM %I.%I r',
                   schema_name, table_name) INTO keys, digest;
END $$;

CREATE VIEW epochline.state AS
SELECT v.pipeline, v.state, v.epoch_id, v.keys, v.digest, v.written_at FROM epochline.state_version v;

-- A job reads the state of the keys it met.
COMMENT ON TABLE epochline.state_table IS 'What each state table holds now, kept by its triggers.';
COMMENT ON TABLE epochline.state_version IS 'What each epoch left in each state table of its pipeline.';
