"""Reads the state and the open windows of the keys in an epoch's records. The cost depends on these keys alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from psycopg2 import sql
from psycopg2.extras import execute_values
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.declare.columns import END, START, ColumnType, parse_type
from epochline.declare.names import split_table
from epochline.declare.specs import load_function
from epochline.errors import DeclarationError, EpochFencedError
from epochline.failpoints import failpoint
from epochline.postgres.ledger.job_session import transaction
from epochline.protocol.staging import StagingTicket
from epochline.spark.part_rows import quoted, spark_schema, table_of
from epochline.spark.source import map_batches

if TYPE_CHECKING:
    from epochline.declare.state import StateTable

_AT_ONCE = 1000
_ANY = sql.SQL("true")

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReader:
    """Looks up rows of one state table by the keys of a Spark partition; runs on executors and may be repeated."""

    ticket: StagingTicket
    table: str
    key: tuple[str, ...]
    columns: Mapping[str, str]
    dsn: str = field(repr=False)
    here: Callable[[], AbstractContextManager[Any]] | None = field(default=None, repr=False)
    """Gives the session by which the driver itself reads; None: executors read, each by a session of its own."""

    @classmethod
    def of(cls, ticket: StagingTicket, state: "StateTable", dsn: str, **more: Any) -> Self:
        """The reader of a declared table."""
        return cls(ticket=ticket, table=state.table, key=state.key, columns=state.columns or {}, dsn=dsn, **more)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the declared columns, which the transform receives."""
        return spark_schema(self.columns)

    def over(self, frame: DataFrame, read: Callable[[Batches], Batches]) -> DataFrame:
        """The rows of the table that a method of this reader gives for the batches of a frame."""
        schema = from_arrow_schema(self.schema)
        if self.here is None:
            return map_batches(frame, read, schema)
        found = table_of(list(read(iter(frame.toArrow().to_batches()))), self.schema)
        return frame.sparkSession.createDataFrame(found, schema)

    def _session(self) -> AbstractContextManager[Any]:
        return transaction(self.dsn, self.ticket.application_name) if self.here is None else self.here()

    def read(self, batches: Batches) -> Batches:
        """Yield the existing rows for each batch of keys.

        Raises:
            EpochFencedError: a row is of this epoch or a later one, so another attempt was committed.
            LedgerUnavailableError: PostgreSQL does not answer; a repeat helps.
        """
        for batch in batches:
            if batch.num_rows:
                failpoint("state.read")
                yield self.look_up(batch, self.key)

    def look_up(
        self, values: pa.RecordBatch, key: Sequence[str], also: sql.Composable = _ANY, **more: str
    ) -> pa.RecordBatch:
        """The rows ``t`` of the table that equal some of the values ``k`` in all columns of the key.

        ``more`` has the types of further columns of the values, by name, which the condition ``also`` compares.
        """
        kinds = {**{name: parse_type(self.columns[name]) for name in key}, **more}
        conditions = [sql.SQL("{} = {}").format(sql.Identifier("t", name), sql.Identifier("k", name)) for name in key]
        head = sql.SQL("SELECT {} JOIN (VALUES ").format(self.selected)
        tail = sql.SQL(") AS k ({}) ON {}").format(
            sql.SQL(", ").join(map(sql.Identifier, kinds)), sql.SQL(" AND ").join([*conditions, also])
        )
        with self._session() as session, session.cursor() as cursor:
            # A quoted name may contain a %.
            statement = "%s".join(part.as_string(cursor).replace("%", "%%") for part in (head, tail))
            rows = execute_values(
                cursor, statement, [tuple(row[name] for name in kinds) for row in values.to_pylist()],
                template=f"({', '.join(f'CAST(%s AS {kind})' for kind in kinds.values())})", page_size=_AT_ONCE,
                fetch=True,
            )  # fmt: skip
        return self.as_batch(rows)

    @property
    def selected(self) -> sql.Composable:
        """SQL for the declared columns of the table as ``t``, the epoch that last wrote the row, and the table."""
        columns = [
            sql.SQL(_selected(parse_type(self.columns[field.name]), field.type)).format(sql.Identifier("t", field.name))
            for field in self.schema
        ]
        table = sql.Identifier(*split_table(self.table))
        return sql.SQL("{}, t._epoch FROM {} t").format(sql.SQL(", ").join(columns), table)

    def as_batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        """Convert rows of the `selected` columns to a batch, without the epoch; raises as `read`."""
        newest = max((row[-1] for row in rows), default=0)
        if newest >= self.ticket.epoch_id:
            raise EpochFencedError(
                f"{self.ticket}: state {self.table} is of epoch {newest} already; another attempt was committed"
            )
        arrays = [pa.array([_plain(row[at]) for row in rows], field.type) for at, field in enumerate(self.schema)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def read_state(records: DataFrame | Mapping[str, DataFrame], reader: StateReader, keys: str | None) -> DataFrame:
    """Read the state of the records' keys, each key once. A key with a NULL has no state.

    ``records`` are the parsed records, by input if there are several sources. ``keys`` names the declared function that
    computes keys from them; without it, the keys are those of each input that has the columns.

    Raises `DeclarationError` if the frame of ``keys`` lacks a column of the key.
    """
    if keys is not None:
        keys_of: Callable[[object], DataFrame] = load_function(keys)
        frames = [keys_of(records)]
        missing = [name for name in reader.key if name not in frames[0].columns]
        if missing:
            raise DeclarationError(
                f"state {reader.table}: {keys} returned no {', '.join(missing)}, only {', '.join(frames[0].columns)}"
            )
    else:
        inputs = records.values() if isinstance(records, Mapping) else [records]
        frames = [frame for frame in inputs if set(reader.key) <= set(frame.columns)]
    key_types = from_arrow_schema(spark_schema({name: reader.columns[name] for name in reader.key}))
    key_frames = [
        frame.select(*(F.col(quoted(field.name)).cast(field.dataType).alias(field.name) for field in key_types))
        for frame in frames
    ]
    whole = reduce(and_, (F.col(quoted(name)).isNotNull() for name in reader.key))
    return reader.over(reduce(DataFrame.union, key_frames).where(whole).distinct(), reader.read)


def _selected(kind: ColumnType, carried: pa.DataType) -> str:
    """SQL for a column as the values of its Arrow type. The driver's dates end in the year 9999."""
    if kind.element is not None:
        return "to_json({})::text"
    if pa.types.is_timestamp(carried):
        # Not the epoch of the whole: PostgreSQL rounds it in the years after 294247.
        local = "({0} AT TIME ZONE 'UTC')" if carried.tz else "{0}"
        day, time = f"({local}::date - DATE '1970-01-01')", f"extract(epoch FROM {local}::time)"
        return f"{day}::bigint * 86400000000 + ({time} * 1000000)::bigint"
    if pa.types.is_date(carried):
        return "{} - DATE '1970-01-01'"
    if kind.name == "time without time zone":
        return "to_char({}, 'HH24:MI:SS.US')"
    return "{}::text" if pa.types.is_string(carried) else "{}"


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


_FROM, _TO = "_from", "_to"
_OVERLAPS = sql.SQL("t.{} < k._to AND t.{} > k._from").format(sql.Identifier(START), sql.Identifier(END))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReader(StateReader):
    """Looks up open windows, whose start ends their key; runs on executors and may be repeated."""

    lateness: timedelta

    def touched(self, batches: Batches) -> Batches:
        """Yield the windows of each key that overlap its time span, from batches of key, ``_from`` and ``_to``."""
        for batch in batches:
            if batch.num_rows:
                failpoint("windows.touched")
                yield self.look_up(batch, self.key[:-1], _OVERLAPS, _from="timestamptz", _to="timestamptz")

    def closing(self, before: datetime | None, after: datetime) -> Batches:
        """Yield the windows that end between two watermarks, and the windows whose lateness ends by the second."""
        statement = sql.SQL(
            "SELECT {} WHERE t.{end} <= {after}"
            " AND (t.{end} > coalesce({before}::timestamptz, '-infinity') OR t.{end} <= {after} - {lateness})"
        ).format(
            self.selected, end=sql.Identifier(END), after=sql.Literal(after), before=sql.Literal(before),
            lateness=sql.Literal(self.lateness),
        )  # fmt: skip
        # A server-side cursor, because after a long pause all open windows may end at once.
        with self._session() as session, session.cursor("closing") as cursor:
            failpoint("windows.closing")
            cursor.execute(statement)
            while rows := cursor.fetchmany(_AT_ONCE):
                yield self.as_batch(rows)


def read_windows(placed: DataFrame, reader: WindowReader, before: datetime | None, after: datetime | None) -> DataFrame:
    """Read the open windows that records may join and those that the epoch closes or drops, each once.

    ``placed`` has key, start and end of a window of each record. ``before`` and ``after`` are the watermarks of the
    previous epoch and of this one.
    """
    schema, names = from_arrow_schema(reader.schema), reader.key[:-1]
    spans = (
        placed.groupBy(*(F.col(quoted(name)) for name in names))
        .agg(F.min(START).alias(_FROM), F.max(END).alias(_TO))
        .where(F.col(_FROM).isNotNull())
    )
    types = {field.name: field.dataType for field in schema}
    spans = spans.select(*(F.col(quoted(name)).cast(types[name]).alias(name) for name in names), _FROM, _TO)
    joined = reader.over(spans, reader.touched)
    if after is None:
        return joined
    until = after

    def closing(batches: Batches) -> Batches:
        for _ in batches:
            pass
        return reader.closing(before, until)

    one_row = placed.sparkSession.range(1).coalesce(1)
    return joined.unionByName(reader.over(one_row, closing)).dropDuplicates([*reader.key])
