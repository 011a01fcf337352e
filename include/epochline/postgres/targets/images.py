"""Before-images: the rows that an epoch replaced in an upsert or add target, one table for each epoch (C12)."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import deleted_keys_table, image_table, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.ownership import settle_table
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application, names, same
from epochline.postgres.targets.catalog import find_target, remembers_deleted
from epochline.protocol.epoch import Epoch

_EXISTED = "_existed"


def keep_image(connection: Connection, what: Application, epoch: Epoch) -> None:
    """Keep the current rows of the staged keys, and drop the oldest images beyond the declared number.

    Call it before staging is applied.
    """
    name = image_table(epoch.pipeline, what.sink.table, epoch.epoch_id)
    _keep(connection, what, what.target.identifier, _image(name))
    if remembers_deleted(what.sink):
        _keep(connection, what, what.deleted_keys, _of_deleted(name))
    where = {"pipeline": epoch.pipeline, "sink": what.sink.table}
    run(connection, "keep_image", **where, epoch_id=epoch.epoch_id, table_name=name)
    for old in run(connection, "images", **where).all()[what.sink.before_images :]:
        _drop(connection, old.table_name)
        run(connection, "delete_image", **where, epoch_id=old.epoch_id)


def cannot_undo(connection: Connection, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> str | None:
    """Why the rows of these newest epochs cannot be taken out of a target; None if they can."""
    if sink.mode == "replace":
        return f"{sink} has mode replace: the rows that its epochs replaced are gone."
    if sink.mode == "append":
        if "_epoch" in sink.carried_lineage:
            return None
        return f"{sink} is declared with lineage=False: its rows do not tell which epoch wrote them."
    kept = {row.epoch_id for row in run(connection, "images", pipeline=pipeline.name, sink=sink.table)}
    missing = [epoch for epoch in epochs if epoch not in kept]
    if missing:
        return (
            f"{sink} has mode {sink.mode}, and no before-images were kept of epoch {', '.join(map(str, missing))};"
            f" before_images is {sink.before_images} now."
        )
    return None


def undo(connection: Connection, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> int:
    """Take the rows of these epochs out of a target and put back the rows that they replaced; returns rows changed."""
    target = sql.Identifier(*split_table(sink.table))
    if sink.mode == "append":
        statement = sql.SQL("DELETE FROM {} WHERE _epoch = ANY ({})")
        return execute_sql(connection, statement.format(target, sql.Literal(list(epochs))))[0]
    changed = 0
    for row in run(connection, "images", pipeline=pipeline.name, sink=sink.table).all():
        if row.epoch_id not in epochs:
            continue
        changed += _put_back(connection, sink, target, _image(row.table_name))
        if remembers_deleted(sink):
            side = sql.Identifier("epochline", deleted_keys_table(pipeline.name, sink.table))
            _put_back(connection, sink, side, _of_deleted(row.table_name))
        _drop(connection, row.table_name)
        run(connection, "delete_image", pipeline=pipeline.name, sink=sink.table, epoch_id=row.epoch_id)
    return changed


def _keep(connection: Connection, what: Application, table: sql.Identifier, image: sql.Identifier) -> None:
    statement = sql.SQL(
        "CREATE TABLE {image} AS SELECT {key}, {others}{first} IS NOT NULL AS {existed}"
        " FROM (SELECT DISTINCT {plain_key} FROM {staging}) k LEFT JOIN {table} t ON {same}"
    )
    key = what.sink.key
    others = [name for name in _columns(connection, table) if name not in key]
    execute_sql(
        connection,
        statement.format(
            image=image, key=names(key, "k"), plain_key=names(key), staging=what.staging, table=table,
            others=sql.SQL("").join(sql.SQL("{}, ").format(sql.Identifier("t", name)) for name in others),
            first=sql.Identifier("t", key[0]), existed=sql.Identifier(_EXISTED), same=same(key, "k", "t"),
        ),
    )  # fmt: skip
    settle_table(connection, *image.strings)


def _put_back(connection: Connection, sink: PostgresTable, table: sql.Identifier, image: sql.Identifier) -> int:
    """Put back one epoch's image. The newest epoch comes first, so that each key ends as the oldest one found it."""
    columns = [name for name in _columns(connection, image) if name != _EXISTED]
    gone = sql.SQL("DELETE FROM {} t USING {} i WHERE {}").format(table, image, same(sink.key, "t", "i"))
    back = sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {} WHERE {}").format(
        table, image, sql.Identifier(_EXISTED), columns=names(columns)
    )
    return max(execute_sql(connection, gone)[0], execute_sql(connection, back)[0])


def _columns(connection: Connection, table: sql.Identifier) -> list[str]:
    schema, name = table.strings
    found = find_target(connection, f"{schema}.{name}")
    return [] if found is None else [column for column, kind in found.columns.items() if kind.writable]


def _drop(connection: Connection, name: str) -> None:
    execute_sql(connection, sql.SQL("DROP TABLE {}").format(_image(name)))
    execute_sql(connection, sql.SQL("DROP TABLE IF EXISTS {}").format(_of_deleted(name)))


def _image(name: str) -> sql.Identifier:
    return sql.Identifier("epochline", name)


def _of_deleted(name: str) -> sql.Identifier:
    return sql.Identifier("epochline", f"{name}_deleted")
