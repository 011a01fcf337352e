-- Functions of the ledger that are no part of a constraint.

-- The number that a row adds to the digest of its table. md5 gives the same result in every version of PostgreSQL and
-- on every machine; PostgreSQL's own hash functions do not.
CREATE OR REPLACE FUNCTION epochline.row_digest(row_text text)
RETURNS numeric LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ('x' || substr(md5(row_text), 1, 16))::bit(64)::bigint::numeric;

-- Trigger of a state table for INSERT, UPDATE and DELETE: keep its number of keys and its digest. The text of a row
-- depends on settings of the session, which are fixed here.
CREATE OR REPLACE FUNCTION epochline.follow_state() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
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

-- Trigger of a state table for TRUNCATE.
CREATE OR REPLACE FUNCTION epochline.follow_state_truncated() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
BEGIN
    UPDATE epochline.state_table SET keys = 0, digest = 0
    WHERE schema_name = TG_TABLE_SCHEMA AND table_name = TG_TABLE_NAME;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION epochline.follow_state_truncated() FROM PUBLIC;

-- Row trigger of a state table for sessions that replicate. A subscription fires no statement trigger, so the next check
-- reads the whole table.
CREATE OR REPLACE FUNCTION epochline.follow_state_replicated() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
BEGIN
    UPDATE epochline.state_table SET trace = NULL
    WHERE schema_name = TG_TABLE_SCHEMA AND table_name = TG_TABLE_NAME AND trace IS NOT NULL;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION epochline.follow_state_replicated() FROM PUBLIC;

-- Count the keys of a table and sum its digest, by reading the whole table.
CREATE OR REPLACE FUNCTION epochline.state_digest(
    schema_name text, table_name text, OUT keys bigint, OUT digest numeric)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, YMD' SET "IntervalStyle" = 'postgres'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
BEGIN
    EXECUTE format('SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) FROM %I.%I r',
                   schema_name, table_name) INTO keys, digest;
END $$;

-- Take the next epoch that a sink shows and the consumer has not taken; NULL if there is none. A second call for the
-- same consumer waits until the transaction of the first one ends.
CREATE OR REPLACE FUNCTION epochline.take_epoch(consumer text, pipeline text, sink text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    next_epoch bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(format('epochline.take_epoch %s %s %s', $1, $2, $3), 0));
    -- Sinks show epochs in the order of their ids, so no epoch with a lower id can appear later.
    SELECT min(r.epoch_id) INTO next_epoch FROM epochline.receipts r
    WHERE r.pipeline = $2 AND r.sink = $3 AND r.state = 'SHOWN' AND r.undone_by IS NULL
      AND r.epoch_id > coalesce((SELECT max(c.epoch_id) FROM epochline.consumer_cursor c
                                 WHERE c.consumer = $1 AND c.pipeline = $2 AND c.sink = $3), 0);
    IF next_epoch IS NOT NULL THEN
        INSERT INTO epochline.consumer_cursor (consumer, pipeline, sink, epoch_id) VALUES ($1, $2, $3, next_epoch);
    END IF;
    RETURN next_epoch;
END $$;

-- The only row of a query that an author declared, as JSON, which keeps two columns of one name. A STABLE function runs
-- no statement but queries, and ends no transaction.
CREATE OR REPLACE FUNCTION epochline.only_row(query text) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    found json;
BEGIN
    EXECUTE query INTO STRICT found;
    RETURN found;
END $$;
