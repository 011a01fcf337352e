"""What the ledger's login must be allowed to do with a target."""

from __future__ import annotations

from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.statements import run

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
    found = run(connection, "missing_rights", schema=schema, table=table, privileges=wanted)
    return list(found.scalars())
