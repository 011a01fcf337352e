"""The part of a declaration that a Spark worker needs, as plain values, so that it does not import pydantic."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from epochline.errors import DeclarationError


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesSpec:
    """See `epochline.declare.parsers.Bytes`."""

    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """See `epochline.declare.parsers.Text`."""

    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSpec:
    """See `epochline.declare.parsers.Json`. ``steps`` has the names that lead to the value of each column."""

    columns: Mapping[str, str]
    steps: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Any]
    unavailable: str | None
    framed: bool
    units: Mapping[str, str]
    scales: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexSpec:
    """See `epochline.declare.parsers.Regex`. ``columns`` has every named group of the pattern."""

    pattern: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroSpec:
    """See `epochline.declare.avro.Avro`."""

    columns: Mapping[str, str]
    subject: str | None
    schema: Mapping[str, Any] | None
    registry: str
    unavailable: str | None
    units: Mapping[str, str]


FormatSpec = BytesSpec | TextSpec | JsonSpec | AvroSpec

ParserSpec = FormatSpec | RegexSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """See `epochline.declare.table.PostgresTable`. The rows of an external sink have a spec of this type too."""

    table: str
    mode: str
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    measures: tuple[str, ...]
    on_tombstone: str | None
    select: str | None
    keep_unavailable: bool = False

    def __str__(self) -> str:
        return self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """See `epochline.declare.topic.KafkaTopic`."""

    name: str
    topic: str
    topics: tuple[str, ...]
    topic_column: str | None
    value: FormatSpec | str
    record: Mapping[str, str]
    key: tuple[str, ...]
    headers: Mapping[str, str]
    partition: str | None
    order_by: tuple[str, ...]
    select: str | None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSpec:
    """See `epochline.declare.topic.Outbox`."""

    table: str
    topic: TopicSpec
    aggregated: bool

    def __str__(self) -> str:
        return self.table


SinkSpec = TableSpec | OutboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSpec:
    """See `epochline.declare.external.Files`."""

    name: str
    path: str
    format: str
    written: Mapping[str, str]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSourceSpec:
    """See `epochline.declare.source.CustomSource`. ``dense`` tells whether every position has a record."""

    name: str
    source: str
    options: Mapping[str, Any]
    dense: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSinkSpec:
    """See `epochline.declare.external.CustomSink`."""

    name: str
    sink: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name


ExternalSpec = FilesSpec | CustomSinkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeSpec:
    """See `epochline.declare.event_time.EventTime`."""

    column: str
    out_of_orderness: timedelta
    punctuation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """See `epochline.declare.pipeline.Pipeline`; ``required`` columns place a record in a window."""

    name: str
    parse: str | ParserSpec
    parsed_columns: Mapping[str, str]
    explode: str | None
    bad_records: str
    is_transformed: bool
    sinks: tuple[SinkSpec, ...]
    external: tuple[ExternalSpec, ...]
    event_time: EventTimeSpec | None
    required: tuple[str, ...]

    @property
    def only_tables(self) -> bool:
        """Whether PostgreSQL alone sees the columns: no transform, window, topic, file or sink of a user's class."""
        if self.is_transformed or self.event_time is not None or self.external:
            return False
        return all(isinstance(sink, TableSpec) for sink in self.sinks)

    def sink(self, table: str) -> SinkSpec:
        """Find a destination by the name of its table, outbox or external sink."""
        return next(sink for sink in self.sinks if sink.table == table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One sink of a pipeline, as staging, manifests and receipts know it."""

    name: str
    staged_as: str
    """Name of its rows in manifests and parts: that of a table, or of the sink if Spark writes it."""
    shown_at_commit: bool
    """Whether the commit shows the rows; a publish shows those of the other sinks later."""


def load_function(reference: str) -> Callable[..., Any]:
    """Import the function; raises `DeclarationError` if the module cannot be imported or has no such function."""
    module, _, name = reference.partition(":")
    try:
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DeclarationError(
            f"{reference}: cannot be imported here ({error}). Is spark_jobs/ on PYTHONPATH of this process?"
        ) from error
    return loaded
