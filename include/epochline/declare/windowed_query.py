"""Declaration of windows by a SQL query: streaming SQL. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from epochline.declare.aggregation import Sink, Windowed, check_result, check_upsert
from epochline.declare.base import DeclarationModel, Pause, check_unreserved, refuse_names
from epochline.declare.columns import DELETED, END, START
from epochline.declare.event_time import EventTime
from epochline.declare.topic import KafkaTopic

if TYPE_CHECKING:
    from epochline.declare.sql_query import GroupedQuery


class QueryWindows(Windowed):
    """Windows that a query was compiled to: its partial aggregates over records with added columns."""

    query: str
    """The declared text, with ``parameters``, the values of its markers."""
    parameters: dict[str, str]
    text: str
    """The query as it was read, with these values, for ``spark.sql``."""
    where: str | None
    """Spark SQL over a record; other records are in no window."""
    arguments: dict[str, str]
    """Spark SQL over a record, by the column that is added to it."""
    types: dict[str, str]
    """PostgreSQL types of the partial aggregates, by column of the open windows."""
    results: dict[str, str]
    """Spark SQL over an open window, by column of the result."""
    having: str | None
    """Spark SQL over an open window; other windows have no result."""
    record: dict[str, str]

    @property
    def result_key(self) -> tuple[str, ...] | None:
        """Result columns that tell windows apart; None if the query leaves one out."""
        named = {text: name for name, text in reversed(self.results.items())}
        key = [named.get(f"`{name}`") for name in (*self.key, START)]
        return tuple(name for name in key if name is not None) if None not in key else None

    def _state_columns(self, into: Sink) -> Mapping[str, str]:
        kinds = {name: self.record[name] for name in self.key}
        return {**kinds, START: "timestamptz", END: "timestamptz", **self.types}

    def _check_into(self, into: Sink) -> None:
        where, key = f"windows.into: {into}", self.result_key
        if key is None:
            needed = ", ".join((*self.key, "window.start AS window_start"))
            raise ValueError(f"windows.query: select {needed}; they tell the results apart")
        check_result(where, into, self.results)
        if not isinstance(into, KafkaTopic):
            check_upsert(where, into, key)


class WindowedQuery(DeclarationModel):
    """Streaming SQL: a query that is grouped by a window of event time, in place of a transform.

    The result is that of one Spark batch with the same text over all records that are not too late. What epochs cannot
    compute so is refused with the reason (docs/sql.md). Open windows are state, as for `Windowed`.

    The target is an upsert target by the selected columns of the group and ``window.start``.

    Args:
        query: ``SELECT … FROM {records} [WHERE …] GROUP BY window(…), … [HAVING …]``, as ``spark.sql(query,
            records=…)`` takes it.
        parameters: values of the query's markers, such as ``:size``, as text.
        time: how far the watermark stays behind the column that the query's window is of.
        into: the sink of the results.
        lateness: how long a window takes late records after its end.
        too_late: the sink of records later than ``lateness``, with every column of the record and its lineage.
            Without it such records are only counted.
    """

    query: str
    parameters: dict[str, str] = Field(default_factory=dict)
    time: EventTime
    into: str
    lateness: Pause = timedelta(0)
    too_late: str | None = None

    @model_validator(mode="after")
    def _query_can_be_read(self) -> Self:
        query = self._read()
        if query.time != self.time.column:
            raise ValueError(f"time.column is {self.time.column}, but the query's window is of {query.time}")
        for name in query.results:
            try:
                check_unreserved(name)
            except ValueError as error:
                raise ValueError(f"query: {error}") from error
        return self

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that place a record in a window. NULL in one of them makes it a bad record."""
        return tuple(dict.fromkeys((self.time.column, *self._read().key)))

    def check(self, record: Mapping[str, str], sinks: Sequence[Sink | DeclarationModel]) -> None:
        """Check the columns and the sinks that this declaration names; raises ``ValueError`` for the first misfit."""
        query = self._read()
        missing = [name for name in (query.time, *query.key) if name not in record]
        refuse_names("windows.query:", missing, " is not a column of the record")
        hidden = [name for name in ("window", "session_window", START, END) if name in record]
        if hidden:
            raise ValueError(f"windows.query: the record must not have a column {hidden[0]}, which the window has")
        strangers = [name for name in query.results if name in record and query.results[name].name != name]
        if strangers:
            raise ValueError(
                f"windows.query: AS {strangers[0]} is also a column of the record, which HAVING could mean; rename it"
            )
        compiled = self.compiled(record)
        compiled.check({**record, **dict.fromkeys(compiled.arguments, "text")}, sinks)

    def compiled(self, record: Mapping[str, str]) -> QueryWindows:
        """Compile the query to windows with partial aggregates; raises ``ValueError`` if it does not fit the record."""
        from epochline.declare.sql_partials import split

        query = self._read()
        try:
            parts = split(query, record, frozenset({START, END, DELETED, *query.key}))
        except ValueError as error:
            raise ValueError(f"windows.query: {error}") from error
        if not parts.aggregates:
            raise ValueError("windows.query: select an aggregate, such as count(*)")
        return QueryWindows(
            time=self.time, window=query.window, key=query.key, aggregates=parts.aggregates, into=self.into,
            lateness=self.lateness, too_late=self.too_late, query=self.query, parameters=self.parameters,
            text=query.text, where=parts.where, arguments=parts.arguments, types=parts.types,
            results=parts.results, having=parts.having, record=dict(record),
        )  # fmt: skip

    def _read(self) -> GroupedQuery:
        # Loads sqlglot, which takes a third of a second: only for a declaration with a query.
        from epochline.declare.sql_query import read_query

        try:
            return read_query(self.query, self.parameters)
        except ValueError as error:
            raise ValueError(f"query: {error}") from error


def _kind(windows: Any) -> str:
    """Tell a query from other windows, by its class or by the field that only a query has."""
    is_query = isinstance(windows, WindowedQuery) or (isinstance(windows, dict) and "query" in windows)
    return "query" if is_query else "windows"


AnyWindows = Annotated[
    Annotated[Windowed, Tag("windows")] | Annotated[WindowedQuery, Tag("query")], Discriminator(_kind)
]
