-- When a plan last succeeded, also with nothing to read: a pipeline whose schedule stopped is told from one that idles.
-- The ends of logs do not tell: a DAG stores them for all pipelines. NULL until the first plan after this migration.
ALTER TABLE epochline.pipeline ADD COLUMN last_plan_at timestamptz;
