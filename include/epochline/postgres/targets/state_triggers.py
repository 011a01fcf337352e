"""The triggers of a state table. They keep its number of keys and its digest in the ledger."""

from __future__ import annotations

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import FOLLOWED, WRITER, split_table
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run

_ROWS = {
    "insert": "REFERENCING NEW TABLE AS new_rows",
    "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "REFERENCING OLD TABLE AS old_rows",
}


def follow(connection: Connection, table: str) -> None:
    """Create the triggers of an empty state table, and let Spark jobs read the table."""
    schema, name = split_table(table)
    where = sql.Identifier(schema, name)
    run(connection, "follow_state_table", schema=schema, table=name)
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
    if run(connection, "role_exists", role=WRITER).scalar_one():
        for rights in ("USAGE ON SCHEMA {}", "SELECT ON {}"):
            what = sql.Identifier(schema) if "SCHEMA" in rights else where
            execute_sql(connection, sql.SQL(f"GRANT {rights} TO {{}}").format(what, sql.Identifier(WRITER)))
