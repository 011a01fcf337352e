"""Declaration of a windowed aggregation: windows, keys, aggregates and the sinks of the results. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from operator import not_
from typing import Self

from pydantic import Field, field_validator, model_validator

from epochline.declare.base import ColumnName, DeclarationModel, Names, Pause, check_identifier, refuse_names, repeated
from epochline.declare.columns import END, START, parse_type
from epochline.declare.event_time import EventTime, Windows
from epochline.declare.names import MAX_IDENTIFIER_BYTES
from epochline.declare.state import StateTable
from epochline.declare.table import PostgresTable
from epochline.declare.topic import KafkaTopic

_TIME = parse_type("timestamptz").name
_FLAG = parse_type("boolean").name
_AGGREGATE = re.compile(r"^\s*(?:count\(\s*\*\s*\)|(?P<of>sum|min|max|count)\(\s*(?P<column>[^()]+?)\s*\))\s*$")
_TOPIC_BYTES = MAX_IDENTIFIER_BYTES - len("_open")

Sink = PostgresTable | KafkaTopic


def sink_name(sink: Sink) -> str:
    """Name by which ``into`` and ``too_late`` refer to a sink: its table, or ``kafka:TOPIC``."""
    return sink.name if isinstance(sink, KafkaTopic) else sink.table


def sink_columns(sink: Sink) -> Mapping[str, str]:
    """The columns of the rows that a sink takes, with their types."""
    return sink.record if isinstance(sink, KafkaTopic) else sink.columns or {}


class Aggregate(DeclarationModel):
    """One mergeable aggregate: ``count(*)``, or ``sum``, ``min``, ``max`` or ``count`` of a column."""

    function: str
    column: str | None = None

    @classmethod
    def read(cls, text: str) -> Aggregate:
        """Parse an aggregate from SQL text; raises ``ValueError`` for any other text."""
        match = _AGGREGATE.match(text)
        if match is None:
            raise ValueError(f"{text!r}: write count(*), or sum, min, max or count of a column, such as sum(money)")
        return cls(function=match["of"] or "count", column=match["column"])

    @property
    def merges_by(self) -> str:
        """SQL function that merges two partial results."""
        return "sum" if self.function == "count" else self.function


class Windowed(DeclarationModel):
    """Aggregates per key and window of event time, in place of a transform.

    The result table has the columns of the key, ``window_start``, ``window_end`` and one column per aggregate. It is
    an upsert target by key and ``window_start``.
    Open windows are state: their table has the name of the result table plus ``_open``.

    Args:
        time: the column of a record's time, and how far the watermark stays behind it.
        window: `Tumbling`, `Sliding` or `Session`.
        key: columns of the parsed record; empty for one result per window.
        aggregates: by result column, ``count(*)`` or ``sum``, ``min``, ``max``, ``count`` of a column of the record.
        into: the sink of the results.
        lateness: how long a window takes late records after its end.
        too_late: the sink of records later than ``lateness``, with every column of the record and its lineage.
            Without it such records are only counted.
        retractions: name of a boolean column of the result, which is then an append target or a topic. A row with true
            adds a result; a row with false takes an earlier one back.
    """

    time: EventTime
    window: Windows
    key: Names = ()
    aggregates: dict[str, str] = Field(min_length=1)
    into: str
    lateness: Pause = timedelta(0)
    too_late: str | None = None
    retractions: ColumnName | None = Field(default=None, exclude_if=not_)

    @field_validator("aggregates")
    @classmethod
    def _aggregates_can_be_read(cls, aggregates: dict[str, str]) -> dict[str, str]:
        for name, text in aggregates.items():
            check_identifier(name)
            Aggregate.read(text)
        return aggregates

    @model_validator(mode="after")
    def _columns_have_one_meaning(self) -> Self:
        if twice := repeated(self._result):
            raise ValueError(f"{', '.join(twice)} would be two columns of the result; rename one")
        return self

    @property
    def _result(self) -> list[str]:
        return [*self.key, START, END, *self.aggregates, *filter(None, [self.retractions])]

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that place a record in a window. NULL in one of them makes it a bad record."""
        return tuple(dict.fromkeys((self.time.column, *self.key)))

    def open_windows(self, sinks: Sequence[Sink | DeclarationModel]) -> StateTable:
        """State table of the windows that may still change; `check` has taken the declared sinks."""
        into = next(sink for sink in sinks if isinstance(sink, Sink) and sink_name(sink) == self.into)
        columns = self._state_columns(into)
        # A topic's name may be longer than a table's and may hold other characters.
        table = re.sub("[^A-Za-z0-9_]", "_", into.topic)[:_TOPIC_BYTES] if isinstance(into, KafkaTopic) else into.table
        return StateTable(table=f"{table}_open", key=(*self.key, START), columns=columns)

    def _state_columns(self, into: Sink) -> Mapping[str, str]:
        return {name: kind for name, kind in sink_columns(into).items() if name != self.retractions}

    def check(self, record: Mapping[str, str], sinks: Sequence[Sink | DeclarationModel]) -> None:
        """Check the columns and the sinks that this declaration names; raises ``ValueError`` for the first misfit."""
        external = [str(sink) for sink in sinks if not isinstance(sink, Sink)]
        refuse_names("windows:", external, " cannot take results; use a table or a topic")
        by_table = {sink_name(sink): sink for sink in sinks if isinstance(sink, Sink)}
        columns = {"time.column": (self.time.column,), "key": self.key}
        columns |= {"time.punctuation": (self.time.punctuation,)} if self.time.punctuation else {}
        columns |= {f"aggregates.{name}": (call.column,) for name, call in self.read_aggregates.items() if call.column}
        for field, names in columns.items():
            missing = [name for name in names if name not in record]
            refuse_names(f"windows.{field}:", missing, " is not a column of the record")
        if parse_type(record[self.time.column]).name != _TIME:
            raise ValueError(
                f"windows.time.column: {self.time.column} is {record[self.time.column]}; event time is timestamptz"
            )
        mark = self.time.punctuation
        if mark is not None and (mark == self.time.column or parse_type(record[mark]).name not in (_TIME, _FLAG)):
            raise ValueError(
                f"windows.time.punctuation: {mark} is {record[mark]}; name a timestamptz column that holds a watermark,"
                " or a boolean column, and not the column of the record's time"
            )
        named = {"into": self.into} | ({} if self.too_late is None else {"too_late": self.too_late})
        for field, table in named.items():
            if table not in by_table:
                raise ValueError(f"windows.{field}: {table} is not among the sinks")
        strangers = sorted(set(by_table) - set(named.values()))
        if strangers or self.into == self.too_late:
            raise ValueError(f"windows: {', '.join(strangers) or self.into} must be either into or too_late")
        self._check_into(by_table[self.into])
        if self.too_late is not None:
            self._check_too_late(by_table[self.too_late], record)

    def _check_into(self, into: Sink) -> None:
        where = f"windows.into: {into}"
        if isinstance(into, PostgresTable) and self.retractions is not None and (into.mode != "append" or into.key):
            raise ValueError(
                f"{where} must be of mode 'append' without a key: with retractions a window has several rows"
            )
        if isinstance(into, PostgresTable) and self.retractions is None:
            check_upsert(where, into, (*self.key, START))
        self._check_columns(where, into)
        if isinstance(into, KafkaTopic):
            self._check_sending(where, into)

    def _check_columns(self, where: str, into: Sink) -> None:
        columns = sink_columns(into)
        check_result(where, into, self._result)
        for name in (START, END):
            if parse_type(columns[name]).name != _TIME:
                raise ValueError(f"{where}: {name} is {columns[name]}; it must be timestamptz")
        if self.retractions is not None and parse_type(columns[self.retractions]).name != _FLAG:
            raise ValueError(f"{where}: {self.retractions} is {columns[self.retractions]}; it must be boolean")

    def _check_sending(self, where: str, into: KafkaTopic) -> None:
        """Check that a consumer of the topic gets the former result of a window before the new one."""
        if self.retractions is None:
            return
        if self.retractions not in into.order_by:
            raise ValueError(
                f"{where} needs order_by={self.retractions!r}: so the result that is taken back is sent before the new"
                " one"
            )
        if not isinstance(into.value, str) and (not into.key or not {*self.key, START} >= set(into.key)):
            raise ValueError(
                f"{where} needs a key of {', '.join((*self.key, START))}, or of some of these: so both records of a"
                " correction are in one partition"
            )

    def _check_too_late(self, sink: Sink, record: Mapping[str, str]) -> None:
        if (isinstance(sink, PostgresTable) and sink.mode != "append") or sink.aggregated:
            raise ValueError(f"windows.too_late: {sink} must be of mode 'append', and not aggregated")
        missing = [name for name in sink_columns(sink) if name not in record]
        refuse_names(f"windows.too_late: {sink} has", missing, ", which the record does not have")

    @property
    def read_aggregates(self) -> dict[str, Aggregate]:
        """The parsed aggregates, by column of the result."""
        return {name: Aggregate.read(text) for name, text in self.aggregates.items()}


def check_result(where: str, into: Sink, names: Iterable[str]) -> None:
    """Check that a sink takes results of these columns; raises ``ValueError``."""
    if not into.aggregated:
        raise ValueError(f"{where} must be aggregated=True: a result belongs to no single record")
    if set(sink_columns(into)) != set(names):
        raise ValueError(f"{where} needs columns, and exactly: {', '.join(sorted(names))}")


def check_upsert(where: str, into: PostgresTable, key: Sequence[str]) -> None:
    """Check that a late record can replace a result in a table; raises ``ValueError``."""
    if into.mode != "upsert" or into.order_by or set(into.key) != set(key):
        raise ValueError(f"{where} must be of mode 'upsert' by key {', '.join(key)}, without order_by")
