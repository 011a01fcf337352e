"""Reads the open windows that an epoch may change, as a DataFrame. The cost depends on these windows alone (C8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor  # noqa: N812 - it is a class
from psycopg2.extras import execute_values
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.declare.columns import END, START, parse_type
from epochline.declare.names import split_table
from epochline.failpoints import failpoint
from epochline.spark.connection import transaction
from epochline.spark.parse_frame import quoted
from epochline.spark.state import StateReader

_FROM, _TO = "_from", "_to"
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReader:
    """Looks up open windows; runs on executors and may be repeated."""

    rows: StateReader
    key: tuple[str, ...]
    lateness: timedelta

    def touched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the windows of each key that overlap its time span.

        Args:
            batches: key, ``_from``, ``_to``; each key once.
        """
        for batch in batches:
            if batch.num_rows:
                with (
                    transaction(self.rows.dsn, self.rows.ticket.application_name) as session,
                    session.cursor() as cursor,
                ):
                    failpoint("windows.touched")
                    yield self._look_up(cursor, batch)

    def closing(self, before: datetime | None, after: datetime) -> Iterator[pa.RecordBatch]:
        """Yield the windows that end between two watermarks, and the windows whose lateness ends by the second."""
        statement = sql.SQL(
            "SELECT {} FROM {} t WHERE t.{end} <= {after}"
            " AND (t.{end} > coalesce({before}::timestamptz, '-infinity') OR t.{end} <= {after} - {lateness})"
        ).format(
            self.rows.selected, self._table,
            end=sql.Identifier(END), after=sql.Literal(after), before=sql.Literal(before),
            lateness=sql.Literal(self.lateness),
        )  # fmt: skip
        name = self.rows.ticket.application_name
        # A server-side cursor, because after a long pause all open windows may end at once.
        with transaction(self.rows.dsn, name) as session, session.cursor("closing") as cursor:
            failpoint("windows.closing")
            cursor.execute(statement)
            while rows := cursor.fetchmany(_AT_ONCE):
                yield self.rows.as_batch(rows)

    @property
    def _table(self) -> sql.Composable:
        return sql.Identifier(*split_table(self.rows.table))

    def _look_up(self, cursor: Cursor, spans: pa.RecordBatch) -> pa.RecordBatch:
        key = self.key
        cast = [*(str(parse_type(self.rows.columns[name])) for name in key), "timestamptz", "timestamptz"]
        overlaps = sql.SQL("t.{} < k._to AND t.{} > k._from").format(sql.Identifier(START), sql.Identifier(END))
        names = (*key, _FROM, _TO)
        values = [tuple(row[name] for name in names) for row in spans.to_pylist()]
        rows = execute_values(
            cursor, self.rows.joined(cursor, names, key, overlaps), values,
            template=f"({', '.join(f'CAST(%s AS {kind})' for kind in cast)})", page_size=_AT_ONCE, fetch=True,
        )  # fmt: skip
        return self.rows.as_batch(rows)


def read_windows(placed: DataFrame, reader: WindowReader, before: datetime | None, after: datetime | None) -> DataFrame:
    """Read the open windows that records may join and those that the epoch closes or drops, each once.

    Args:
        placed: key, start and end of a window of each record.
        reader: reads the open windows.
        before: watermark of the previous epoch.
        after: watermark of this epoch.
    """
    schema = from_arrow_schema(reader.rows.schema)
    key: list[Column] = [F.col(quoted(name)) for name in reader.key]
    spans = placed.groupBy(*key).agg(F.min(START).alias(_FROM), F.max(END).alias(_TO)).where(F.col(_FROM).isNotNull())
    types = {one.name: one.dataType for one in schema}
    spans = spans.select(*(F.col(quoted(name)).cast(types[name]).alias(name) for name in reader.key), _FROM, _TO)

    def touched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reader.touched(batches)

    found = spans.mapInArrow(touched, schema)
    if after is None:
        return found
    until = after

    def closing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        return reader.closing(before, until)

    one_row = placed.sparkSession.range(1).coalesce(1)
    return found.unionByName(one_row.mapInArrow(closing, schema)).dropDuplicates([*reader.key, START])
