-- Actions of operators, settings of epochs, and failures.

-- name: pipeline_status
-- Whether a pipeline is paused or dropped.
SELECT paused_at, paused_by, paused_reason, paused_command, dropped_at, dropped_by, dropped_reason
FROM epochline.pipeline WHERE pipeline = %(pipeline)s

-- name: pause_pipeline
-- Pause a pipeline, unless it is paused.
UPDATE epochline.pipeline
SET paused_at = clock_timestamp(), paused_by = %(by)s, paused_reason = %(reason)s, paused_command = %(command)s
WHERE pipeline = %(pipeline)s AND paused_at IS NULL

-- name: resume_pipeline
-- Resume a pipeline.
UPDATE epochline.pipeline SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_command = NULL
WHERE pipeline = %(pipeline)s

-- name: drop_pipeline
-- Drop a pipeline. Its history stays.
UPDATE epochline.pipeline SET dropped_at = clock_timestamp(), dropped_by = %(by)s, dropped_reason = %(reason)s
WHERE pipeline = %(pipeline)s AND dropped_at IS NULL

-- name: begin_generation
-- Start a generation.
UPDATE epochline.pipeline SET generation = generation + 1, cluster_id = coalesce(%(cluster_id)s, cluster_id)
WHERE pipeline = %(pipeline)s RETURNING generation, last_epoch_id, cluster_id

-- name: write_action
-- Record an action.
INSERT INTO epochline.action (pipeline, action, epoch_id, actor, reason, before, after)
VALUES (%(pipeline)s, %(action)s, %(epoch_id)s, %(actor)s, %(reason)s, CAST(%(before)s AS jsonb),
        CAST(%(after)s AS jsonb))
RETURNING action_id, acted_at

-- name: actions
-- The actions on a pipeline, the oldest first.
SELECT action_id, pipeline, action, epoch_id, actor, reason, before, after, acted_at
FROM epochline.action WHERE pipeline = %(pipeline)s ORDER BY action_id

-- name: keep_settings
-- Store the settings of an epoch.
UPDATE epochline.epoch SET settings = CAST(%(settings)s AS jsonb)
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s

-- name: pause_left
-- How much of the pause after the last commit is left; zero before the first commit.
SELECT greatest(interval '0', max(committed_at) + make_interval(secs => %(pause)s) - clock_timestamp())
FROM epochline.epoch WHERE pipeline = %(pipeline)s AND state = 'COMMITTED'

-- name: interval_left
-- How much of the interval after the last plan of the schedule is left; zero before the first one.
SELECT greatest(interval '0', max(planned_at) + make_interval(secs => %(interval)s) - clock_timestamp())
FROM epochline.epoch WHERE pipeline = %(pipeline)s AND kind IN ('regular', 'idle')

-- name: errors_of_attempts
-- The errors of an epoch's attempts since it was last planned, the newest first.
SELECT error_class, error FROM epochline.attempt
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND attempt > %(before)s ORDER BY attempt DESC LIMIT 10

-- name: keep_plan_failure
-- Store why a run has no epoch. A repeat by the same run counts once.
INSERT INTO epochline.plan_failure AS f (pipeline, dag_id, run_id, error, error_class, error_command)
VALUES (%(pipeline)s, %(dag_id)s, %(run_id)s, %(error)s, %(error_class)s, %(command)s)
ON CONFLICT (pipeline) DO UPDATE
SET dag_id = EXCLUDED.dag_id, run_id = EXCLUDED.run_id, failed_at = EXCLUDED.failed_at, error = EXCLUDED.error,
    error_class = EXCLUDED.error_class, error_command = EXCLUDED.error_command,
    runs = f.runs + ((f.dag_id, f.run_id) IS DISTINCT FROM (EXCLUDED.dag_id, EXCLUDED.run_id))::integer

-- name: note_plan
-- A plan succeeded: forget why earlier ones failed.
WITH forgotten AS (DELETE FROM epochline.plan_failure WHERE pipeline = %(pipeline)s)
UPDATE epochline.pipeline SET last_plan_at = clock_timestamp() WHERE pipeline = %(pipeline)s

-- name: failed_attempts
-- The number of attempts that failed recently: their job reported an error, or they were fenced before they were
-- sealed because nothing was heard of them.
SELECT count(*) FROM epochline.attempt
WHERE pipeline = %(pipeline)s AND sealed_at IS NULL AND (fenced_at IS NOT NULL OR error IS NOT NULL)
  AND coalesce(ended_at, clock_timestamp()) > clock_timestamp() - make_interval(secs => %(interval)s)

-- name: aborts
-- The number of aborts since the last commit and since the last automatic pause, and of all aborts. That pause records
-- how many there were, so that a resume resets the count. Replays are left out: an operator who only looks at a replay
-- aborts it.
WITH last AS (
    SELECT (SELECT max(epoch_id) FROM epochline.epoch
            WHERE pipeline = %(pipeline)s AND state = 'COMMITTED') AS committed,
           (SELECT max((after->>'aborts')::bigint) FROM epochline.action
            WHERE pipeline = %(pipeline)s) AS at_pause
)
SELECT least(coalesce(sum(aborts) FILTER (WHERE epoch_id > coalesce(last.committed, 0)), 0),
             coalesce(sum(aborts), 0) - coalesce(max(last.at_pause), 0))::bigint AS in_a_row,
       coalesce(sum(aborts), 0)::bigint AS ever
FROM epochline.epoch, last WHERE pipeline = %(pipeline)s AND kind <> 'replay'
