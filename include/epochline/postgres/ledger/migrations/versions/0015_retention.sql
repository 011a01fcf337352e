-- What the janitor deletes by age, and what an operator erases for a person.

-- 0.2.0 goes on: an erased record counts as requeued by the epoch that quarantined it, so that no version reads it again.
UPDATE epochline.alembic_version SET oldest_version = '0.2.0';

-- The row of an erased record stays for the counts (INV-9). Its reason says when, by whom and why it was erased.
ALTER TABLE epochline.quarantined_record
    ADD COLUMN erased_at timestamptz,
    ADD COLUMN erased_by text,  -- an operator; NULL: its retention
    ADD CONSTRAINT erased_has_no_bytes
        CHECK (erased_at IS NULL OR num_nonnulls(key, value, headers) = 0 AND requeued_by IS NOT NULL) NOT VALID;
CREATE INDEX quarantined_bytes ON epochline.quarantined_record (pipeline, quarantined_at) WHERE erased_at IS NULL;

-- When the before-images of an epoch were dropped for their age. The row stays, so that a restore can say it.
ALTER TABLE epochline.before_image ADD COLUMN erased_at timestamptz;

-- When the rows about an attempt's parts and staging were deleted: they are not missing.
ALTER TABLE epochline.attempt ADD COLUMN parts_deleted_at timestamptz;
CREATE INDEX attempt_with_parts ON epochline.attempt (pipeline, epoch_id) WHERE parts_deleted_at IS NULL;

-- Key and order of a deleted row, with the time of its newest tombstone. For keys that were deleted earlier, the time of
-- this migration. A default that is no function of the row rewrites no table.
DO $$
DECLARE
    side regclass;
BEGIN
    FOR side IN
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'epochline' AND c.relkind = 'r' AND c.relname ~ '^deleted_[0-9a-f]{10}$'
    LOOP
        EXECUTE format('ALTER TABLE %s ADD COLUMN _epochline_deleted_at timestamptz DEFAULT now()', side);
    END LOOP;
END $$;

-- Refused rows contain values, so that an erasure changes them and the janitor deletes them.
DROP TRIGGER refused_is_written_once ON epochline.refused_row;
CREATE TRIGGER refused_is_written_once
    BEFORE UPDATE OR DELETE ON epochline.refused_row FOR EACH ROW
    WHEN (coalesce(current_setting('epochline.erasing', true), '') <> 'on')
    EXECUTE FUNCTION epochline.refuse_change();

-- The places of rows that an operator erased from targets: never a value. at_epoch is the last committed epoch of that
-- moment. A row without a record has no position, and one without lineage no epoch.
CREATE TABLE epochline.erased_row (
    erased_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    said      text NOT NULL,  -- when, by whom and why
    pipeline  text NOT NULL,
    sink      text NOT NULL,
    at_epoch  bigint NOT NULL,
    epoch_id  bigint,
    topic     text,
    partition integer,
    "offset"  bigint,
    rows      bigint NOT NULL CHECK (rows > 0)
);
CREATE INDEX erased_rows ON epochline.erased_row (pipeline, sink, epoch_id);
