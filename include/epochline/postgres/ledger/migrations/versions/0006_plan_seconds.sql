-- How long a plan asked the ledger and Kafka before it wrote its epoch, after the minimum pause, by the planning process's
-- clock; NULL for an operator's epoch, and for epochs that were planned before this migration.
ALTER TABLE epochline.epoch ADD COLUMN plan_seconds double precision CHECK (plan_seconds >= 0);
