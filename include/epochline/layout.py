"""What staging looks like: which columns an attempt's tables have, and what a writer must know. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from epochline.columns import LINEAGE
from epochline.names import QUARANTINE, staging_table
from epochline.pipeline import Pipeline
from epochline.sink import SinkAttempt
from epochline.table import PostgresTable, order_columns

STAGED_LINEAGE = {name: LINEAGE[name] for name in ("_topic", "_partition", "_offset", "_row")}
"""What every staged row that belongs to a record carries; ``_epoch`` is added by the commit."""

DELETED = "_deleted"
"""Boolean column of an upsert sink's staging: the row is a tombstone that deletes its key."""

QUARANTINE_COLUMNS = {
    "topic": "text",
    "partition": "integer",
    "offset": "bigint",
    "record_timestamp": "timestamp with time zone",
    "key": "bytea",
    "value": "bytea",
    "headers": "text",
    "reason": "text",
}
"""Staged quarantine; ``headers`` is JSON text: a list of [name, base64 of the value or null]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """One staging table of one attempt: whose rows it holds and its columns, in order, with PostgreSQL types.

    ``not_null`` and ``labels`` (of enums) are the target's own rules, as far as a writer was told of them.
    """

    sink: str
    table: str
    columns: Mapping[str, str]
    not_null: frozenset[str] = frozenset()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTicket:
    """All that a writer of one attempt must know, and nothing that is secret.

    ``tables`` has one entry per table of the declaration, in its order, and the quarantine last; ``beside`` one per
    sink beside the database, as if there were a staging table for it.
    """

    pipeline: str
    epoch_id: int
    attempt: int
    attempt_id: int
    application_name: str
    tables: tuple[StagedTable, ...]
    generation: int = 1
    token: str = ""
    beside: tuple[StagedTable, ...] = ()

    @property
    def written(self) -> tuple[StagedTable, ...]:
        """All that the attempt's rows go to."""
        return (*self.tables, *self.beside)

    @property
    def sink_attempt(self) -> SinkAttempt:
        """The attempt, as sinks know it."""
        return SinkAttempt(
            pipeline=self.pipeline,
            generation=self.generation,
            epoch_id=self.epoch_id,
            attempt=self.attempt,
            token=self.token,
        )

    def table(self, sink: str) -> StagedTable:
        """What the rows of a sink, or of the quarantine, go to."""
        return next(table for table in self.written if table.sink == sink)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of epoch {self.epoch_id} of {self.pipeline}"


def staged_columns(pipeline: Pipeline, sink: PostgresTable, target: Mapping[str, str]) -> dict[str, str]:
    """Columns of a sink's staging table.

    Args:
        pipeline: the declaration.
        sink: one of its sinks.
        target: the target's own columns that this sink fills, without any ``_`` column.
    """
    columns = dict(target)
    if sink.mode == "add":
        return columns
    if not sink.aggregated:
        columns |= STAGED_LINEAGE
    if sink.mode == "upsert":
        columns |= {name: str(kind) for name, kind in order_columns(sink, pipeline.parsed_columns).items()}
        columns[DELETED] = "boolean"
    return columns


def staged_tables(
    pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]], epoch_id: int, attempt: int
) -> tuple[StagedTable, ...]:
    """The staging tables of an attempt: one per sink and the quarantine.

    Args:
        pipeline: the declaration.
        targets: per sink, the target's columns as the plan recorded them.
        epoch_id: of the epoch.
        attempt: number of the attempt.
    """
    tables = [
        StagedTable(
            sink=sink.table,
            table=staging_table(pipeline.name, sink.table, epoch_id, attempt),
            columns=staged_columns(pipeline, sink, targets[sink.table]),
        )
        for sink in pipeline.tables
    ]
    tables.append(
        StagedTable(
            sink=QUARANTINE,
            table=staging_table(pipeline.name, QUARANTINE, epoch_id, attempt),
            columns=QUARANTINE_COLUMNS,
        )
    )
    return tuple(tables)


def staged_beside(pipeline: Pipeline) -> tuple[StagedTable, ...]:
    """The columns of what is written beside the database; there are no such tables."""
    return tuple(StagedTable(sink=sink.name, table="", columns=sink.written) for sink in pipeline.beside)
