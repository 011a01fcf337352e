-- The class of an error and the command that goes on after it, apart from its message; and plans that failed before they
-- wrote an epoch.

ALTER TABLE epochline.attempt ADD COLUMN error_class text, ADD COLUMN error_command text, ADD COLUMN failed_at timestamptz;
ALTER TABLE epochline.epoch ADD COLUMN error_class text, ADD COLUMN error_command text;

-- The command that goes on, where it is not `resume`.
ALTER TABLE epochline.pipeline ADD COLUMN paused_command text;

-- What earlier versions wrote as one text.
UPDATE epochline.attempt
SET error_class = substring(error FROM '^(\w+): '),
    error_command = substring(error FROM 'To go on, run `epochline ([^`]+)`[.)]*(?:;|$)'),
    failed_at = coalesce(ended_at, clock_timestamp())
WHERE error ~ '^\w+(Error|Exception|Exit|Interrupt|Timeout): ';
UPDATE epochline.epoch e SET error_class = a.error_class, error_command = a.error_command
FROM epochline.attempt a
WHERE (a.pipeline, a.epoch_id, a.attempt) = (e.pipeline, e.epoch_id, e.attempt) AND e.state = 'ABORTED';
UPDATE epochline.pipeline
SET paused_command = substring(paused_reason FROM 'To go on, run `epochline ((?:accept-ledger|adopt-topic) [^`]+)`[.)]*$')
WHERE paused_at IS NOT NULL;

-- The newest plan of a pipeline that failed, until a plan succeeds: its run has no epoch to keep the reason.
CREATE TABLE epochline.plan_failure (
    pipeline text PRIMARY KEY,
    dag_id text NOT NULL,
    run_id text NOT NULL,
    -- Runs, not tries: a repeat within a run counts once.
    runs integer NOT NULL DEFAULT 1,
    first_failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    error text NOT NULL,
    error_class text NOT NULL,
    error_command text
);
