-- Migrations and roles.

-- name: lock_migrations
-- Wait for other migrations of this database, until this transaction ends.
SELECT pg_advisory_xact_lock(%(key)s)

-- name: create_ledger_schema
-- Create the schema of the ledger.
CREATE SCHEMA epochline

-- name: has_ledger
-- Whether this database has a ledger.
SELECT to_regclass('epochline.alembic_version') IS NOT NULL

-- name: ledger_revision
-- The revision of the ledger.
SELECT version_num FROM epochline.alembic_version

-- name: make_revision_table
-- Create the table of the ledger's revision. It has the name that Alembic, which made it first, gave it.
CREATE TABLE epochline.alembic_version (version_num varchar(32) CONSTRAINT alembic_version_pkc PRIMARY KEY)

-- name: keep_revision
-- Record the revision of the ledger.
WITH before AS (DELETE FROM epochline.alembic_version)
INSERT INTO epochline.alembic_version (version_num) VALUES (%(revision)s)

-- name: definition_sha256
-- The version of a file of definitions that this database has.
SELECT sha256 FROM epochline.definition WHERE name = %(file)s

-- name: keep_definition
-- Record the version of a file of definitions.
INSERT INTO epochline.definition (name, sha256) VALUES (%(file)s, %(sha256)s)
ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256, applied_at = clock_timestamp()

-- name: arrange_roles
-- Create roles and grant to them; the statements that are left to a DBA.
SELECT statement FROM epochline.arrange_roles() AS statement

-- name: lacks_inspector
-- Whether a login may read the ledger's views, and may not take the role that sees quarantined bytes.
SELECT EXISTS (SELECT FROM pg_roles r
               WHERE r.rolname = %(login)s AND pg_has_role(r.oid, to_regrole('epochline_reader'), 'USAGE')
                 AND NOT pg_has_role(r.oid, to_regrole('epochline_inspector'), 'SET'))

-- name: owner_may_own
-- Whether a new table can be given to the owner role: the role exists and may create tables in the schema.
SELECT coalesce(pg_has_role(to_regrole('epochline_owner'), 'SET')
                AND has_schema_privilege(to_regrole('epochline_owner'), CAST(%(schema)s AS text), 'CREATE'), false)

-- name: writer_may_stage
-- Whether the writer role may use the staging schema.
SELECT coalesce(has_schema_privilege(to_regrole('epochline_writer'), 'epochline_staging', 'USAGE'), false)

-- name: writer_is_known
-- Whether this database has a ledger that the writer's login may read. Uses only the catalog.
SELECT current_user AS login, to_regnamespace('epochline') IS NOT NULL AS ledger,
       coalesce(has_schema_privilege(to_regnamespace('epochline'), 'USAGE'), false)
           AND coalesce(has_schema_privilege(to_regnamespace('epochline_staging'), 'USAGE'), false) AS may_read

-- name: writer_rights
-- What the writer's login sees of an attempt, and whether it may write the staging table.
SELECT current_user AS login,
       (SELECT token::text FROM epochline.attempt WHERE attempt_id = %(attempt_id)s) AS token,
       coalesce(has_table_privilege(to_regclass(%(staging)s), 'INSERT'), false) AS may_stage

-- name: ledger_rights
-- The token of an attempt, and whether the ledger's login may end sessions of the writer's login.
SELECT token::text AS token,
       coalesce(pg_has_role(to_regrole(quote_ident(%(login)s)), 'USAGE'), false)
           OR pg_has_role('pg_signal_backend', 'USAGE') AS may_end_sessions
FROM epochline.attempt WHERE attempt_id = %(attempt_id)s
