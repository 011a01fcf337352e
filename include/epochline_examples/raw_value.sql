-- The target of the pipeline raw_value. Epochline fills value; the table itself gives the rest, in the commit.
-- Ids may have gaps: a trial or a commit that was taken back has used some up.
CREATE TABLE IF NOT EXISTS t_test (
    id          bigserial PRIMARY KEY,
    value       varchar(255) NOT NULL,
    insert_time timestamp NOT NULL DEFAULT now()
);
