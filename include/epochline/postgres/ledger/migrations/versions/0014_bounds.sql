-- What the seal found of an epoch whose declaration has bounds, and who approved it. Without bounds approval is NULL.
ALTER TABLE epochline.epoch
    ADD COLUMN judged_attempt integer,
    -- How the epoch differs from its bounds, in words.
    ADD COLUMN outside text,
    -- Its numbers, with which later epochs are compared.
    ADD COLUMN measured jsonb,
    ADD COLUMN decided_by text,
    ADD COLUMN decided_at timestamptz,
    ADD COLUMN decided_reason text,
    ADD CONSTRAINT known_approval CHECK (approval IN ('inside', 'awaited', 'approved')),
    -- A verdict and an approval hold for the attempt whose rows were judged, and for no later one.
    ADD CONSTRAINT approval_of_its_attempt CHECK (approval IS NULL OR judged_attempt IS NOT DISTINCT FROM attempt),
    ADD CONSTRAINT approved_by_somebody
        CHECK (approval <> 'approved' OR num_nonnulls(decided_by, decided_at, decided_reason) = 3),
    ADD CONSTRAINT commits_no_awaited CHECK (state <> 'COMMITTED' OR approval IS DISTINCT FROM 'awaited');

UPDATE epochline.alembic_version SET oldest_version = '0.2.0';
