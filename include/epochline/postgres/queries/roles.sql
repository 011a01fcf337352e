-- Migrations and roles.

-- name: lock_migrations
-- Wait for other migrations of this database, until this transaction ends.
SELECT pg_advisory_xact_lock(%(key)s)

-- name: has_ledger
-- Whether this database has a ledger, even if this login may not read it.
SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'epochline' AND c.relname = 'alembic_version')

-- name: ledger_revision
-- The revision of the ledger.
SELECT version_num FROM epochline.alembic_version

-- name: make_revision_table
-- Create the table of the ledger's revision. It has the name that Alembic, which made it first, gave it.
CREATE TABLE epochline.alembic_version (version_num varchar(32) CONSTRAINT alembic_version_pkc PRIMARY KEY)

-- name: keep_revision
-- Record the revision of the ledger.
WITH known AS (UPDATE epochline.alembic_version SET version_num = %(revision)s RETURNING version_num)
INSERT INTO epochline.alembic_version (version_num) SELECT %(revision)s WHERE NOT EXISTS (SELECT FROM known)

-- name: definition_sha256
-- The version of a file of definitions that this database has.
SELECT sha256 FROM epochline.definition WHERE name = %(file)s

-- name: keep_definition
-- Record the version of a file of definitions.
INSERT INTO epochline.definition (name, sha256) VALUES (%(file)s, %(sha256)s)
ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256, applied_at = clock_timestamp()

-- name: missing_roles
-- Those of these roles that the server lacks.
SELECT role FROM unnest(%(roles)s) AS role WHERE to_regrole(role) IS NULL

-- name: missing_memberships
-- The memberships that are missing. An owner has that of the writer role to end the sessions of a login that is the
-- writer role itself.
SELECT role, member
FROM (VALUES (%(writer)s, %(owner)s), (%(reader)s, %(inspector)s), (%(owner)s, current_user::text)) AS wanted (role, member)
WHERE pg_has_role(to_regrole(quote_ident(member)), to_regrole(role), 'USAGE') IS NOT TRUE

-- name: missing_database_rights
-- The rights in this database that roles lack, and whether this login may grant them: without ownership of the database,
-- GRANT only warns and changes nothing. TEMPORARY: an audit stores the records that it read in temporary tables.
SELECT role, allowed, datname AS database, pg_has_role(datdba, 'USAGE') AS may_grant
FROM (SELECT role, 'CONNECT' FROM unnest(%(roles)s) AS role UNION ALL SELECT %(owner)s, 'TEMPORARY') AS wanted (role, allowed),
     pg_database
WHERE datname = current_database() AND has_database_privilege(to_regrole(role), datname, allowed) IS NOT TRUE

-- name: schemas_without_rights
-- The schemas of those of these tables that are missing, where this login may not make the table. On the schemas of the
-- ledger it also has to grant.
SELECT wanted.schema, min(pg_get_userbyid(n.nspowner)) AS owner, current_user AS login
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS wanted (schema, "table") LEFT JOIN pg_namespace n ON n.nspname = wanted.schema
WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = wanted."table")
  AND CASE WHEN n.oid IS NULL THEN NOT has_database_privilege(current_database(), 'CREATE')
           WHEN wanted.schema = ANY (%(of_ledger)s) THEN NOT pg_has_role(n.nspowner, 'USAGE')
           ELSE NOT (has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE')) END
GROUP BY wanted.schema ORDER BY wanted.schema

-- name: grant_to_roles
-- Grant what the roles may do on the ledger, if this login may.
SELECT epochline.grant_to_roles()

-- name: missing_viewer_roles
-- The roles that an existing login of the pages lacks, with the option of their GRANT. It sees quarantined bytes only
-- after SET ROLE.
SELECT role, option
FROM (VALUES (%(reader)s, 'USAGE', ''), (%(inspector)s, 'SET', ' WITH INHERIT FALSE')) AS wanted (role, how, option), pg_roles r
WHERE r.rolname = %(login)s AND pg_has_role(r.oid, to_regrole(role), how) IS NOT TRUE

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
-- The token of an attempt, if one is given, and whether the ledger's login may end sessions of the writer's login.
SELECT (SELECT token::text FROM epochline.attempt WHERE attempt_id = %(attempt_id)s) AS token,
       coalesce(pg_has_role(to_regrole(quote_ident(%(login)s)), 'USAGE'), false)
           OR pg_has_role('pg_signal_backend', 'USAGE') AS may_end_sessions

-- name: may_run_epochs
-- Whether this login may plan epochs and create their staging, as the owner role and the login that migrated may. Uses
-- only the catalog.
SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'INSERT')
       AND has_schema_privilege('epochline_staging', 'CREATE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'epochline' AND c.relname = 'epoch'
