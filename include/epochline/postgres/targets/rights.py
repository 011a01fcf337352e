"""The rights on a target that the ledger's login needs."""

from __future__ import annotations

from collections.abc import Sequence

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


def missing_rights(
    connection: Connection, sink: PostgresTable, *, columns: Sequence[str], deletes: bool = False
) -> list[str]:
    """The GRANTs that this login lacks to write a target, sequences of its columns included; usually empty.

    Args:
        connection: of the login.
        sink: whose table.
        columns: that the commit fills. A login may have the right to some columns alone.
        deletes: the rows to apply contain tombstones, so that the right to delete rows is needed as well.
    """
    schema, table = split_table(sink.table)
    # Before the first plan, the table is searched for rows of another pipeline; and every seal searches for repeats.
    reads = ["SELECT"] if (sink.carried_lineage or sink.key) and "SELECT" not in _RIGHTS[sink.mode] else []
    wanted = [*reads, *_RIGHTS[sink.mode], *["DELETE"] * deletes]
    found = run(
        connection, "missing_rights", schema=schema, table=table, privileges=wanted, inserted=list(columns),
        updated=[name for name in (sink.measures or columns) if name not in sink.key],
    )  # fmt: skip
    return list(found.scalars())
