"""What lets a commit change a target's rows: the rights of the ledger's login, and publications of the database.

PostgreSQL refuses UPDATE and DELETE of a published table whose replica identity the publication cannot use: there is
none, or a row filter or a list of columns does not fit it. EXPLAIN makes the same check and touches no row, so the
server itself is asked, in the plan already.
"""

from collections.abc import Sequence

import psycopg2
from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.declare.table import PostgresTable
from epochline.declare.topic import Outbox
from epochline.postgres.queries.composed import change
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.catalog import Target

_RIGHTS = {
    "append": ("INSERT",),
    "replace": ("INSERT", "DELETE"),
    "upsert": ("SELECT", "INSERT", "UPDATE"),
    "add": ("SELECT", "INSERT", "UPDATE"),
}
_CHANGES = {"upsert": ("UPDATE", "DELETE"), "add": ("UPDATE",), "replace": ("DELETE",)}
"""What the commits of each mode do to rows that are there."""

_EXPLAINED = {
    "UPDATE": "EXPLAIN UPDATE {table} SET {column} = {column}",
    "DELETE": "EXPLAIN DELETE FROM {table}",
}
_BY_PUBLICATION = ("55000", "42P10")
"""SQLSTATEs of the refusal: no replica identity; a row filter or a list of columns that does not fit."""


def missing_rights(
    connection: Connection, sink: PostgresTable, *, columns: Sequence[str], deletes: bool = False
) -> list[str]:
    """The GRANTs that this login lacks to fill columns of a target, with their sequences; usually empty.

    If the rows to apply contain tombstones, it ``deletes`` as well. A login may have the right to some columns alone.
    """
    schema, table = split_table(sink.table)
    # Before the first plan, the table is searched for rows of another pipeline; and every seal searches for repeats.
    reads = ["SELECT"] if (sink.carried_lineage or sink.key) and "SELECT" not in _RIGHTS[sink.mode] else []
    wanted = [*reads, *_RIGHTS[sink.mode], *["DELETE"] * deletes]
    updated = [name for name in (sink.measures or columns) if name not in sink.key]
    values = {"privileges": wanted, "inserted": list(columns), "updated": updated}
    return list(run(connection, "missing_rights", schema=schema, table=table, **values).scalars())


def refused_by_publication(
    connection: Connection, sink: PostgresTable, target: Target, *, deletes: bool = False
) -> str | None:
    """Why a publication would make changes of a target fail, with what mends it; None if they would pass.

    The changes are those that commits of the sink, and the end of a publication of its outbox, make to rows that are
    there, and deletes if something else deletes rows.
    """
    changes = ("DELETE",) if isinstance(sink, Outbox) else _CHANGES.get(sink.mode, ())
    writable = [name for name, column in target.columns.items() if column.writable]
    if not (changes or deletes) or not writable or not run(connection, "publishes_changes").scalar_one():
        return None
    # A column outside the key, if there is one.
    column = min(writable, key=lambda name: name in sink.key)
    for kind in dict.fromkeys([*changes, *["DELETE"] * deletes]):
        error = _refusal(connection, _EXPLAINED[kind], target, column)
        if error is not None:
            where = {"schema": target.schema, "table": target.name}
            lacking = run(connection, "tables_without_identity", **where).scalars().all()
            tables = lacking or [".".join(target.place)]
            alter = "; ".join(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in tables)
            parts = [error.diag.message_primary, error.diag.message_detail]
            said = ". ".join(part.rstrip(".") for part in parts if part)
            return f"a publication of this database lets nobody {kind} its rows: {said}. Run {alter}; or change it."
    return None


def _refusal(connection: Connection, statement: str, target: Target, column: str) -> psycopg2.Error | None:
    change(connection, "SAVEPOINT published")
    refusal = None
    try:
        change(connection, statement, table=target.identifier, column=column)
    except psycopg2.Error as error:
        if error.pgcode is None:
            raise
        # Any other refusal, as of a missing right, is told by a check of its own.
        refusal = error if error.pgcode in _BY_PUBLICATION else None
        change(connection, "ROLLBACK TO SAVEPOINT published")
    change(connection, "RELEASE SAVEPOINT published")
    return refusal
