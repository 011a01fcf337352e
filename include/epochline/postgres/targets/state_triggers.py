"""The triggers of a state table, which keep the number of its keys and its digest in the ledger."""

from __future__ import annotations

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import FOLLOWED, WRITER, split_table
from epochline.postgres.queries.composed import execute_sql

_ROWS = {
    "insert": "REFERENCING NEW TABLE AS new_rows",
    "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "REFERENCING OLD TABLE AS old_rows",
}


def follow(connection: Connection, table: str) -> None:
    """Have an empty table followed from now on, and let Spark jobs read it."""
    schema, name = split_table(table)
    where = sql.Identifier(schema, name)
    execute_sql(
        connection,
        sql.SQL("INSERT INTO epochline.state_table (schema_name, table_name, relation) VALUES"
                " (%s, %s, format('%%I.%%I', %s, %s)::regclass) ON CONFLICT (schema_name, table_name)"
                " DO UPDATE SET keys = 0, digest = 0, relation = excluded.relation"),
        (schema, name, schema, name),
    )  # fmt: skip
    for event, rows in _ROWS.items():
        execute_sql(
            connection,
            sql.SQL("CREATE TRIGGER {} AFTER {} ON {} {} FOR EACH STATEMENT EXECUTE FUNCTION epochline.follow_state()")
            .format(sql.Identifier(f"{FOLLOWED}_{event}"), sql.SQL(event.upper()), where, sql.SQL(rows)),
        )  # fmt: skip
    execute_sql(
        connection,
        sql.SQL("CREATE TRIGGER {} AFTER TRUNCATE ON {} EXECUTE FUNCTION epochline.follow_state_truncated()").format(
            sql.Identifier(f"{FOLLOWED}_truncate"), where
        ),
    )
    if execute_sql(connection, sql.SQL("SELECT to_regrole(%s)"), (WRITER,))[1] != [(None,)]:
        for rights in ("USAGE ON SCHEMA {}", "SELECT ON {}"):
            what = sql.Identifier(schema) if "SCHEMA" in rights else where
            execute_sql(connection, sql.SQL(f"GRANT {rights} TO {{}}").format(what, sql.Identifier(WRITER)))
