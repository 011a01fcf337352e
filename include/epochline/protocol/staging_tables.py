"""Derives staging tables from a declaration. Pure."""

from collections.abc import Mapping

from epochline.declare.columns import DELETED, QUARANTINE_COLUMNS, STAGED_LINEAGE, STAGED_PLACE, UNAVAILABLE
from epochline.declare.names import QUARANTINE, staging_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable, order_columns
from epochline.declare.topic import Outbox
from epochline.protocol.staging import StagedTable


def staged_columns(pipeline: Pipeline, sink: PostgresTable, target: Mapping[str, str]) -> dict[str, str]:
    """Columns of a sink's staging table; ``target`` has those that the sink fills, without ``_`` columns."""
    columns = dict(target)
    if sink.mode == "add":
        return columns
    if not sink.aggregated:
        columns |= STAGED_LINEAGE
    if sink.mode == "upsert":
        columns |= {name: str(kind) for name, kind in order_columns(sink, pipeline.parsed_columns).items()}
        columns[DELETED] = "boolean"
        if sink.keep_unavailable:
            columns[UNAVAILABLE] = "jsonb"
    if isinstance(sink, Outbox):
        columns |= STAGED_PLACE
    return columns


def staged_tables(
    pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]], epoch_id: int, attempt: int
) -> tuple[StagedTable, ...]:
    """The staging tables of an attempt, the quarantine's last; ``targets`` have the columns by the plan."""
    tables = [
        StagedTable(
            sink=sink.table,
            table=staging_table(pipeline.name, sink.table, epoch_id, attempt),
            columns=staged_columns(pipeline, sink, targets[sink.table]),
            by_catalog=sink.columns is None,
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


def staged_external(pipeline: Pipeline) -> tuple[StagedTable, ...]:
    """The columns of the external sinks, in the form of staging tables."""
    return tuple(StagedTable(sink=sink.name, table="", columns=sink.written) for sink in pipeline.external)
