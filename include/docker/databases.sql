-- Run once, by the image's entry point, when the data folder is made: each database is owned by the role of its name.
-- The passwords come from the server's environment and appear in no command line.
\set ON_ERROR_STOP on
\getenv epochline_password EPOCHLINE_POSTGRES_PASSWORD
\getenv job_password EPOCHLINE_JOB_PASSWORD
\getenv viewer_password EPOCHLINE_VIEWER_PASSWORD
\getenv airflow_password AIRFLOW_POSTGRES_PASSWORD

CREATE ROLE epochline LOGIN PASSWORD :'epochline_password';
CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
-- A killed scheduler's workers share its session: the lock of a run would last as long as their tasks.
ALTER ROLE airflow SET idle_in_transaction_session_timeout = '30s';
CREATE DATABASE epochline OWNER epochline;
CREATE DATABASE airflow OWNER airflow;
REVOKE ALL ON DATABASE epochline FROM PUBLIC;
REVOKE ALL ON DATABASE airflow FROM PUBLIC;

-- What a DBA does for `epochline migrate`, whose login may make no roles: the roles of least privilege, and logins.
CREATE ROLE epochline_owner NOLOGIN;
CREATE ROLE epochline_writer NOLOGIN;
CREATE ROLE epochline_reader NOLOGIN;
CREATE ROLE epochline_inspector NOLOGIN;
GRANT epochline_writer TO epochline_owner;
GRANT epochline_reader TO epochline_inspector;
GRANT epochline_owner TO epochline;
CREATE ROLE epochline_job LOGIN PASSWORD :'job_password' IN ROLE epochline_writer;
CREATE ROLE epochline_viewer LOGIN PASSWORD :'viewer_password' IN ROLE epochline_reader;
-- The pages in Airflow take the role for one transaction, to show an operator a record in the quarantine.
GRANT epochline_inspector TO epochline_viewer WITH INHERIT FALSE;
-- Or the owner could not end the job's sessions, and a zombie would not be fenced.
GRANT epochline_job TO epochline_owner;
