"""Whether publications of the database let the statements of a commit change a target's rows.

PostgreSQL refuses UPDATE and DELETE of a published table whose replica identity the publication cannot use: there is
none, or a row filter or a list of columns does not fit it. EXPLAIN makes the same check and touches no row, so the
server itself is asked, in the plan already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.declare.table import PostgresTable
from epochline.declare.topic import Outbox
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run

Change = Literal["UPDATE", "DELETE"]
_BY_PUBLICATION = ("55000", "42P10")
"""SQLSTATEs of the refusal: no replica identity; a row filter or a list of columns that does not fit."""

_BY_MODE: dict[str, tuple[Change, ...]] = {
    "upsert": ("UPDATE", "DELETE"),
    "add": ("UPDATE",),
    "replace": ("DELETE",),
}


def changes_of(sink: PostgresTable) -> tuple[Change, ...]:
    """What the commits of a sink, and the end of a publication of its outbox, do to rows that are there."""
    if isinstance(sink, Outbox):
        return ("DELETE",)
    return _BY_MODE.get(sink.mode, ())


def refused_by_publication(
    connection: Connection, sink: PostgresTable, columns: Sequence[str], changes: Sequence[Change]
) -> str | None:
    """Why a publication would make these changes of a target fail, with what mends it; None if they would pass.

    Args:
        connection: in any transaction.
        sink: whose table.
        columns: of the target, of which one is updated.
        changes: what is to be done to its rows.
    """
    schema, name = split_table(sink.table)
    if not changes or not columns or not run(connection, "publishes_changes").scalar_one():
        return None
    table, column = sql.Identifier(schema, name), sql.Identifier(columns[0])
    statements = {
        "UPDATE": sql.SQL("EXPLAIN UPDATE {} SET {column} = {column}").format(table, column=column),
        "DELETE": sql.SQL("EXPLAIN DELETE FROM {}").format(table),
    }
    for change in changes:
        error = _refusal(connection, statements[change])
        if error is not None:
            lacking = run(connection, "tables_without_identity", schema=schema, table=name).scalars().all()
            alter = "; ".join(f"ALTER TABLE {one} REPLICA IDENTITY FULL" for one in lacking or [f"{schema}.{name}"])
            parts = [error.diag.message_primary, error.diag.message_detail]
            said = ". ".join(one.rstrip(".") for one in parts if one)
            return f"a publication of this database lets nobody {change} its rows: {said}. Run {alter}; or change it."
    return None


def _refusal(connection: Connection, statement: sql.Composable) -> psycopg2.Error | None:
    execute_sql(connection, sql.SQL("SAVEPOINT published"))
    refusal = None
    try:
        execute_sql(connection, statement)
    except psycopg2.Error as error:
        if error.pgcode is None:
            raise
        # Any other refusal, as of a missing right, is told by a check of its own.
        refusal = error if error.pgcode in _BY_PUBLICATION else None
        execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT published"))
    execute_sql(connection, sql.SQL("RELEASE SAVEPOINT published"))
    return refusal
