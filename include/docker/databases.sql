-- Run once, by the image's entry point, when the data folder is made: each database is owned by the role of its name.
-- The passwords come from the server's environment and appear in no command line.
\set ON_ERROR_STOP on
\getenv epochline_password EPOCHLINE_POSTGRES_PASSWORD
\getenv airflow_password AIRFLOW_POSTGRES_PASSWORD

CREATE ROLE epochline LOGIN PASSWORD :'epochline_password';
CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE DATABASE epochline OWNER epochline;
CREATE DATABASE airflow OWNER airflow;
REVOKE CONNECT ON DATABASE epochline FROM PUBLIC;
REVOKE CONNECT ON DATABASE airflow FROM PUBLIC;
