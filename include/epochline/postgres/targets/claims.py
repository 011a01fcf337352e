"""Claims: each target has one pipeline that writes it, and so have the tables that share rows with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.external import Files
from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import TargetError
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.catalog import check_provenance, find_target
from epochline.postgres.targets.identity import refuse_lost, remember


def refuse_foreign(connection: Connection, pipeline: Pipeline) -> None:
    """Refuse targets that another pipeline or another program writes. Changes nothing.

    Raises:
        TargetError: as `epochline.ports.Targets.refuse_foreign`.
    """
    new: list[str] = []
    for schema, table, sink in _places(pipeline):
        owner = run(connection, "pipeline_of_target", schema=schema, table=table).scalar_one_or_none()
        _check_owner(pipeline, schema, sink, pipeline.name if owner is None else owner)
        new += [sink] * (owner is None)
    _refuse_rows_of_others(connection, pipeline, new)
    for target in pipeline.tables:
        check_provenance(connection, pipeline, target)


def claim(connection: Connection, pipeline: Pipeline) -> None:
    """Record that this pipeline writes its targets, and which tables they are.

    Raises:
        TargetError: as `epochline.ports.Targets.claim`.
    """
    new: list[str] = []
    for schema, table, sink in _places(pipeline):
        where = {"schema": schema, "table": table}
        new += [sink] * run(connection, "claim_target", **where, pipeline=pipeline.name, sink=sink).rowcount
        _check_owner(pipeline, schema, sink, run(connection, "pipeline_of_target", **where).scalar_one())
    _refuse_rows_of_others(connection, pipeline, new)
    for target in pipeline.tables:
        refuse_lost(connection, pipeline, target)
        remember(connection, pipeline, target)


def _places(pipeline: Pipeline) -> list[tuple[str, str, str]]:
    """Schema, table and name of each sink with one writer. An empty schema marks a folder: no table has one."""
    tables = [(*split_table(sink.table), sink.table) for sink in pipeline.tables]
    return tables + [("", sink.path, sink.name) for sink in pipeline.external if isinstance(sink, Files)]


def _refuse_rows_of_others(connection: Connection, pipeline: Pipeline, new: Collection[str]) -> None:
    """Refuse rows of other writers: where a claim names the writer first, then in tables that nobody claimed."""
    for target in pipeline.tables:
        _refuse_shared_rows(connection, pipeline, target)
    for target in pipeline.tables:
        if target.table in new and target.carried_lineage:
            _refuse_foreign_rows(connection, pipeline.name, target.table, list(target.carried_lineage))


def _check_owner(pipeline: Pipeline, schema: str, sink: str, owner: str) -> None:
    if owner != pipeline.name:
        raise TargetError(
            f"{pipeline.name}: target {sink} belongs to pipeline {owner}. A {'table' if schema else 'folder'} has one"
            " writer, because rows of two could not be told apart. Nothing was changed. Declare another one.",
            f"plan {pipeline.name}",
        )


def _refuse_shared_rows(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> None:
    """Refuse a table that holds rows of another target: its parent, its partition, or its heir (INV-2).

    DELETE and UPDATE reach the rows of every partition and heir. A table that was renamed is known by its oid.
    """
    schema, table = split_table(sink.table)
    declared = [split_table(one.table) for one in pipeline.tables]
    found = run(
        connection, "claims_that_share_rows", pipeline=pipeline.name, schema=schema, table=table,
        schemas=[one for one, _ in declared], tables=[one for _, one in declared],
    ).first()  # fmt: skip
    if found is not None:
        whose = "this pipeline writes as well" if found.pipeline == pipeline.name else (
            f"belongs to pipeline {found.pipeline}"
        )  # fmt: skip
        raise TargetError(
            f"{pipeline.name}: target {sink.table} shares rows with {found.schema_name}.{found.table_name}, which"
            f" {whose}: one is the other's parent, partition or heir, or the other's under a new name. A row has one"
            " writer. Nothing was changed. Detach the table, or declare another one.",
            f"plan {pipeline.name}",
        )


def _refuse_foreign_rows(connection: Connection, pipeline: str, table: str, lineage: Sequence[str]) -> None:
    """Refuse a newly claimed table that contains rows with positions of another pipeline."""
    where = sql.Identifier(*split_table(table))
    if find_target(connection, table) is None:
        return
    found, _ = execute_sql(connection, sql.SQL("SELECT 1 FROM {} WHERE _epoch IS NOT NULL LIMIT 1").format(where))
    if found:
        reset = f"UPDATE {table} SET {', '.join(f'{name} = NULL' for name in lineage)}"  # noqa: S608 - said, not run
        raise TargetError(
            f"{pipeline}: {table} holds rows that another pipeline wrote, with positions and epochs of its own. New"
            " rows would be compared with positions of other records. Nothing was changed. Declare another table,"
            f" or make those rows older than every record: {reset} WHERE _epoch IS NOT NULL;",
            f"plan {pipeline}",
        )
