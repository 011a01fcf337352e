-- The target of the pipeline raw_value. Epochline fills value; the table's defaults fill the rest at the commit.
-- Ids may have gaps, because trials and rolled back commits use some up.
CREATE SCHEMA IF NOT EXISTS examples;
GRANT USAGE ON SCHEMA examples TO epochline_owner;
CREATE TABLE IF NOT EXISTS examples.t_test (
    id          bigserial PRIMARY KEY,
    value       varchar(255) NOT NULL,
    insert_time timestamp NOT NULL DEFAULT now()
);
