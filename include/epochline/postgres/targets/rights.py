"""What the ledger's login must be allowed to do with a target."""

from __future__ import annotations

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.composed import execute_sql

_RIGHTS = {
    "append": ("INSERT",),
    "replace": ("INSERT", "DELETE"),
    "upsert": ("SELECT", "INSERT", "UPDATE"),
    "add": ("SELECT", "INSERT", "UPDATE"),
}


def missing_rights(connection: Connection, sink: PostgresTable, *, deletes: bool = False) -> list[str]:
    """What this login may not do and would have to, as the GRANTs that are missing; empty where it may do everything.

    Also the right to use the sequences that fill columns of the table; with ``deletes`` that to delete its rows.
    """
    schema, table = split_table(sink.table)
    # Whether rows of another pipeline are there is asked before the first plan.
    reads = ["SELECT"] if sink.carried_lineage and "SELECT" not in _RIGHTS[sink.mode] else []
    wanted = [*reads, *_RIGHTS[sink.mode], *["DELETE"] * deletes]
    statement = sql.SQL(
        "WITH target AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        "                WHERE n.nspname = {schema} AND c.relname = {table})"
        " SELECT format('GRANT USAGE ON SCHEMA %I', nspname) FROM pg_namespace"
        " WHERE nspname = {schema} AND NOT has_schema_privilege(oid, 'USAGE')"
        " UNION ALL SELECT format('GRANT %s ON %s', kind, oid::regclass) FROM unnest({wanted}) AS kind, target"
        " WHERE NOT CASE WHEN kind = 'DELETE' THEN has_table_privilege(oid, kind)"
        "           ELSE has_any_column_privilege(oid, kind) END"
        " UNION ALL SELECT format('GRANT USAGE ON SEQUENCE %s', seqrelid::regclass)"
        " FROM target JOIN pg_attrdef f ON f.adrelid = target.oid"
        " JOIN pg_depend d ON (d.classid, d.objid, d.refclassid)"
        "                   = ('pg_attrdef'::regclass, f.oid, 'pg_class'::regclass)"
        " JOIN pg_sequence q ON q.seqrelid = d.refobjid WHERE NOT has_sequence_privilege(seqrelid, 'USAGE')"
    ).format(schema=sql.Literal(schema), table=sql.Literal(table), wanted=sql.Literal(wanted))
    return [grant for (grant,) in execute_sql(connection, statement)[1]]
