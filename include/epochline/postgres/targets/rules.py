"""What a target asks of single values beside their type (labels of enums, NOT NULL), and which records it refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class, named as psycopg2 should have

from epochline.declare.names import QUARANTINE, split_table
from epochline.protocol.refused import Refused, by_partition
from epochline.protocol.staging import StagedTable

_COLUMNS = """
SELECT a.attname, a.attnotnull,
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_catalog.pg_enum e
        WHERE e.enumtypid = a.atttypid)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""

_REFUSED = """
SELECT f.topic, f.partition, f."offset", f.reason
FROM epochline.refused_row f
JOIN epochline.epoch e ON (e.pipeline, e.epoch_id) = (f.pipeline, f.epoch_id)
WHERE f.pipeline = %(pipeline)s AND f."offset" IS NOT NULL
  AND (f.epoch_id = %(epoch_id)s OR e.kind <> 'requeue' AND f.epoch_id < %(epoch_id)s
       AND f.generation = %(generation)s AND EXISTS (
       SELECT FROM epochline.planned_range r
       WHERE (r.pipeline, r.epoch_id) = (f.pipeline, %(epoch_id)s)
         AND (r.topic_id, r.partition) = (f.topic_id, f.partition)
         AND f."offset" >= r.start_offset AND f."offset" < r.until_offset))
ORDER BY f.refused_id
"""
"""A requeue has no planned range: it tries again what was set aside before, and leaves out what it met itself."""


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


def refused_records(cursor: Cursor, pipeline: str, epoch_id: int, generation: int) -> Refused:
    """The records that a target refused, in this epoch or in an earlier one, and that this epoch leaves out."""
    cursor.execute(_REFUSED, {"pipeline": pipeline, "epoch_id": epoch_id, "generation": generation})
    return by_partition(cursor.fetchall())
