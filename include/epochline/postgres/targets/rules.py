"""The rules of a target for single values (enum labels, NOT NULL), and the records that it refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class, named as psycopg2 should have

from epochline.declare.names import QUARANTINE, split_table
from epochline.postgres.queries.named import statement
from epochline.postgres.targets.shapes import shapes_of, staged_types
from epochline.protocol.refused import Refused, by_partition
from epochline.protocol.staging import StagedTable


def with_rules(cursor: Cursor, tables: Iterable[StagedTable]) -> tuple[StagedTable, ...]:
    """The staging tables with the types that writers fill, and with the current rules of their targets.

    A value that breaks a rule sends its record to the quarantine. Otherwise COPY or the seal would fail for all.

    Args:
        cursor: in any transaction.
        tables: of an attempt; the quarantine's table has no rules.
    """
    return tuple(table if table.sink == QUARANTINE else _with_rules(cursor, table) for table in tables)


def _with_rules(cursor: Cursor, table: StagedTable) -> StagedTable:
    schema, name = split_table(table.sink)
    where = {"schema": schema, "table": name}
    cursor.execute(statement("target_rules"), where)
    every = cursor.fetchall()
    found = [row for row in every if row[0] in table.columns]
    cursor.execute(statement("types_of_table"), where)
    return replace(
        table,
        columns=staged_types(table.columns, shapes_of(cursor.fetchall())),
        not_null=frozenset(name for name, not_null, _, _ in found if not_null),
        labels={name: tuple(labels) for name, _, labels, _ in found if labels is not None},
        generated=frozenset(name for name, _, _, generated in every if generated and table.by_catalog),
    )


def refused_records(cursor: Cursor, pipeline: str, epoch_id: int, generation: int) -> Refused:
    """The records that a target refused in this epoch or an earlier one, and that this epoch sets aside."""
    cursor.execute(statement("refused_records"), {"pipeline": pipeline, "epoch_id": epoch_id, "generation": generation})
    return by_partition(cursor.fetchall())
