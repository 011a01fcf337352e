-- A re-opened epoch has its restarts again (N1): those of before the abort do not count.
-- A column with a constant default rewrites no row.
ALTER TABLE epochline.epoch
    ADD COLUMN attempts_before integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT attempts_go_on CHECK (attempts_before BETWEEN 0 AND attempt);
