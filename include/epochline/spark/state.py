"""The state that an epoch's records touch, as a DataFrame: asked for by key, at the cost of the keys met (C8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class, named as psycopg2 should have
from psycopg2.extras import execute_values
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.arrow.cast.types import record_schema
from epochline.declare.columns import parse_type
from epochline.declare.functions import load_function
from epochline.declare.names import split_table
from epochline.errors import DeclarationError, EpochFencedError
from epochline.failpoints import failpoint
from epochline.protocol.staging import StagingTicket
from epochline.spark.connection import transaction
from epochline.spark.parse_frame import quoted

_KEYS_AT_ONCE = 1000
_NOTHING = sql.SQL("true")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReader:
    """Looks up the rows of one state table for the keys of a Spark partition; runs on executors, once or again."""

    ticket: StagingTicket
    table: str
    key: tuple[str, ...]
    columns: Mapping[str, str]
    dsn: str = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the transform is given: all that are declared."""
        return record_schema(self.columns)

    @property
    def selected(self) -> sql.Composable:
        """The same of a table ``t`` as SQL, and the epoch that wrote the row last."""
        columns = [
            sql.SQL("t.{}::text" if pa.types.is_string(one.type) else "t.{}").format(sql.Identifier(one.name))
            for one in self.schema
        ]
        return sql.SQL(", ").join([*columns, sql.SQL("t._epoch")])

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows that there are for each batch of keys.

        Raises:
            EpochFencedError: a row is of this epoch or a later one: another attempt of it was committed.
            LedgerUnavailableError: PostgreSQL is gone; a repeat helps.
        """
        for batch in batches:
            if batch.num_rows:
                with transaction(self.dsn, self.ticket.application_name) as session, session.cursor() as cursor:
                    failpoint("state.read")
                    yield self._look_up(cursor, batch)

    def _look_up(self, cursor: Cursor, keys: pa.RecordBatch) -> pa.RecordBatch:
        cast = ", ".join(f"CAST(%s AS {parse_type(self.columns[name])})" for name in self.key)
        values = [tuple(row[name] for name in self.key) for row in keys.to_pylist()]
        rows = execute_values(
            cursor, self.joined(cursor, self.key, self.key), values,
            template=f"({cast})", page_size=_KEYS_AT_ONCE, fetch=True,
        )  # fmt: skip
        return self.as_batch(rows)

    def joined(self, cursor: Cursor, values: Sequence[str], key: Sequence[str], also: sql.Composable = _NOTHING) -> str:
        """The statement that joins the table, as ``t``, with rows ``k`` of values, as `execute_values` takes it.

        Args:
            cursor: who will run it.
            values: names of the columns of ``k``.
            key: those that are equal in both.
            also: a further condition.
        """
        same = [sql.SQL("{} = {}").format(sql.Identifier("t", name), sql.Identifier("k", name)) for name in key]
        table = sql.Identifier(*split_table(self.table))
        head = sql.SQL("SELECT {} FROM {} t JOIN (VALUES ").format(self.selected, table)
        tail = sql.SQL(") AS k ({}) ON {}").format(
            sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(" AND ").join([*same, also])
        )
        # A quoted name may hold a % of its own.
        return "%s".join(part.as_string(cursor).replace("%", "%%") for part in (head, tail))

    def as_batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        """Rows that were `selected`, without the epoch.

        Raises:
            EpochFencedError: a row is of this epoch or a later one: another attempt of it was committed.
        """
        newest = max((row[-1] for row in rows), default=0)
        if newest >= self.ticket.epoch_id:
            raise EpochFencedError(
                f"{self.ticket}: state {self.table} is of epoch {newest} already; another attempt was committed"
            )
        arrays = [pa.array([_plain(row[at]) for row in rows], one.type) for at, one in enumerate(self.schema)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def read_state(records: DataFrame, reader: StateReader, keys: str | None) -> DataFrame:
    """The state of the keys that the records have, each key once; keys with a NULL have none.

    Args:
        records: the parsed records.
        reader: of one state table.
        keys: the function that makes the keys of the records, where one is declared.

    Raises:
        DeclarationError: the frame of ``keys`` lacks a column of the key.
    """
    if keys is not None:
        made: Callable[[DataFrame], DataFrame] = load_function(keys)
        records = made(records)
    missing = [name for name in reader.key if name not in records.columns]
    if missing:
        raise DeclarationError(f"state {reader.table}: {keys} gives no {', '.join(missing)}; it has {records.columns}")
    key_types = from_arrow_schema(record_schema({name: reader.columns[name] for name in reader.key}))
    met = records.select(*(F.col(quoted(one.name)).cast(one.dataType).alias(one.name) for one in key_types))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reader.read(batches)

    return met.na.drop().distinct().mapInArrow(run, from_arrow_schema(reader.schema))


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value
