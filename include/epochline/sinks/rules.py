"""What a target's columns ask of every single value beside their type: labels of enums, and NOT NULL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class, named as psycopg2 should have

from epochline.layout import StagedTable
from epochline.names import QUARANTINE, split_table

_COLUMNS = """
SELECT a.attname, a.attnotnull,
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_catalog.pg_enum e
        WHERE e.enumtypid = a.atttypid)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""


def with_rules(cursor: Cursor, tables: Iterable[StagedTable]) -> tuple[StagedTable, ...]:
    """The staging tables with the rules that their targets have now.

    A value that breaks one is its record's error; without the rules it would fail COPY, or the seal, for all.

    Args:
        cursor: in any transaction.
        tables: of an attempt; the quarantine stays as it is.
    """
    return tuple(table if table.sink == QUARANTINE else _with_rules(cursor, table) for table in tables)


def _with_rules(cursor: Cursor, table: StagedTable) -> StagedTable:
    cursor.execute(_COLUMNS, split_table(table.sink))
    found = [row for row in cursor.fetchall() if row[0] in table.columns]
    return replace(
        table,
        not_null=frozenset(name for name, not_null, _ in found if not_null),
        labels={name: tuple(labels) for name, _, labels in found if labels is not None},
    )
