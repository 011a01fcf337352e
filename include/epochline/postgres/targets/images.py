"""Before-images: the rows that an epoch replaced in an upsert or add target, one table for each epoch (C12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import image_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.ownership import settle_table
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application, names, same
from epochline.postgres.targets.cascades import Cascades
from epochline.postgres.targets.catalog import Target, find_target, remembers_deleted
from epochline.protocol.epoch import Epoch

EXISTED = "_existed"
"""The column of a before-image that says whether the table had a row of the key."""
THERE, FATE = sql.Identifier("_there"), sql.Identifier("_fate")
"""In the rows that are to come back: whether the table has a row of the key now, and what must happen to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The before-image of one epoch in one target."""

    epoch_id: int
    name: str

    @property
    def rows(self) -> sql.Identifier:
        """The table with the rows that the epoch replaced."""
        return sql.Identifier("epochline", self.name)

    @property
    def deleted_keys(self) -> sql.Identifier:
        """The table with the deleted keys that the epoch replaced."""
        return sql.Identifier("epochline", f"{self.name}_deleted")


def keep_images(connection: Connection, tables: Sequence[Application], epoch: Epoch) -> None:
    """Keep the current rows of the staged keys, and the rows that foreign keys delete or change with them.

    The oldest images beyond the declared number are dropped. Where a foreign key reaches rows that no image can keep,
    the epoch gets no image, so that a restore refuses it. Call it before staging is applied.
    """
    if not any(what.sink.before_images for what in tables):
        return
    cascades = Cascades(connection, tables, epoch)
    for what in tables:
        if what.sink.before_images and what.sink.table not in cascades.not_kept:
            _keep_image(connection, what, epoch, cascades.taken[what.sink.table])


def _keep_image(connection: Connection, what: Application, epoch: Epoch, taken: Sequence[sql.Identifier]) -> None:
    key = names(what.sink.key)
    keys = sql.SQL(" UNION ").join(sql.SQL("SELECT {} FROM {}").format(key, one) for one in (what.staging, *taken))
    name = image_table(epoch.pipeline, what.sink.table, epoch.epoch_id)
    image = Image(epoch_id=epoch.epoch_id, name=name)
    _keep(connection, what, keys, what.target.identifier, image.rows)
    if remembers_deleted(what.sink):
        _keep(connection, what, keys, what.deleted_keys, image.deleted_keys)
    where = {"pipeline": epoch.pipeline, "sink": what.sink.table}
    run(connection, "keep_image", **where, epoch_id=epoch.epoch_id, table_name=name)
    for old in run(connection, "images", **where).all()[what.sink.before_images :]:
        drop_image(connection, what.pipeline, what.sink, Image(epoch_id=old.epoch_id, name=old.table_name))


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
            f" before_images is {sink.before_images} now. An epoch of which foreign keys delete or change rows that no"
            " before-image can keep has none either; the log of its commit names the key."
        )
    return None


def images_of(connection: Connection, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> list[Image]:
    """The before-images of these epochs, the newest first."""
    kept = run(connection, "images", pipeline=pipeline.name, sink=sink.table).all()
    return [Image(epoch_id=row.epoch_id, name=row.table_name) for row in kept if row.epoch_id in epochs]


def drop_image(connection: Connection, pipeline: Pipeline, sink: PostgresTable, image: Image) -> None:
    """Drop a before-image and its record."""
    execute_sql(connection, sql.SQL("DROP TABLE {}").format(image.rows))
    execute_sql(connection, sql.SQL("DROP TABLE IF EXISTS {}").format(image.deleted_keys))
    run(connection, "delete_image", pipeline=pipeline.name, sink=sink.table, epoch_id=image.epoch_id)


def _keep(
    connection: Connection, what: Application, keys: sql.Composable, table: sql.Identifier, image: sql.Identifier
) -> None:
    statement = sql.SQL(
        "CREATE TABLE {image} AS SELECT {key}, {others}{first} IS NOT NULL AS {existed}"
        " FROM (SELECT DISTINCT * FROM ({keys}) k) k LEFT JOIN {table} t ON {same}"
    )
    key = what.sink.key
    others = [name for name in kept_columns(connection, table) if name not in key]
    execute_sql(
        connection,
        statement.format(
            image=image, key=names(key, "k"), keys=keys, table=table,
            others=sql.SQL("").join(sql.SQL("{}, ").format(sql.Identifier("t", name)) for name in others),
            first=sql.Identifier("t", key[0]), existed=sql.Identifier(EXISTED), same=same(key, "k", "t"),
        ),
    )  # fmt: skip
    settle_table(connection, *image.strings)


def kept_columns(connection: Connection, table: sql.Identifier) -> list[str]:
    """The columns that a before-image of a table has: all but those that PostgreSQL computes from others."""
    schema, name = table.strings
    found = find_target(connection, f"{schema}.{name}")
    return [] if found is None else [column for column, kind in found.columns.items() if not kind.generated]


def rows_to_come_back(
    connection: Connection, key: Sequence[str], table: Target, images: Sequence[sql.Identifier]
) -> sql.Identifier:
    """Make a temporary table with the row that each key must have, and its fate: gone, new, changed, again or same.

    It begins with the rows as they are. Then each image is laid over it, so that every column ends as the oldest
    image has it; a column that no image has stays. The fate ``again`` is that of a row that must be deleted and
    inserted, because an identity GENERATED ALWAYS differs, which PostgreSQL updates to no given value.

    Args:
        connection: in whose transaction the table lives.
        key: of the target.
        table: the target, or its table of deleted keys.
        images: the newest first.
    """
    columns = kept_columns(connection, table.identifier)
    back = sql.Identifier("pg_temp", f"epochline_back_{table.oid}")
    keys = sql.SQL(" UNION ").join(sql.SQL("SELECT {} FROM {}").format(names(key), image) for image in images)
    others = [name for name in columns if name not in key]
    execute_sql(connection,
        sql.SQL(
            "CREATE TEMP TABLE {back} ON COMMIT DROP AS SELECT {key}, {others}{first} IS NOT NULL AS {there},"
            " false AS {existed}, ''::text AS {fate} FROM ({keys}) k LEFT JOIN {table} t ON {same}"
        ).format(
            back=sql.Identifier(back.strings[1]), key=names(key, "k"), keys=keys, table=table.identifier,
            others=sql.SQL("").join(sql.SQL("{}, ").format(sql.Identifier("t", name)) for name in others),
            first=sql.Identifier("t", key[0]), there=THERE, existed=sql.Identifier(EXISTED), fate=FATE,
            same=same(key, "k", "t"),
        )
    )  # fmt: skip
    for image in images:
        kept = [name for name in kept_columns(connection, image) if name in {*others, EXISTED}]
        execute_sql(
            connection,
            sql.SQL("UPDATE {back} b SET {values} FROM {image} i WHERE {same}").format(
                back=back, values=assigned(kept, "i"), image=image, same=same(key, "b", "i")
            ),
        )
    fixed = [name for name in others if not table.columns[name].writable]
    compared = sql.SQL("ROW({})::record *<> ROW({})::record").format(names(others, "t"), names(others, "b"))
    again: sql.Composable = sql.SQL("false")
    if fixed:
        again = sql.SQL("({}) IS DISTINCT FROM ({})").format(names(fixed, "t"), names(fixed, "b"))
    execute_sql(
        connection,
        sql.SQL(
            "UPDATE {back} SET {fate} = CASE WHEN {existed} AND {there} THEN 'same' WHEN {existed} THEN 'new'"
            " WHEN {there} THEN 'gone' ELSE 'same' END"
        ).format(back=back, fate=FATE, existed=sql.Identifier(EXISTED), there=THERE),
    )
    execute_sql(connection,
        sql.SQL(
            "UPDATE {back} b SET {fate} = CASE WHEN {again} THEN 'again' ELSE 'changed' END FROM {table} t"
            " WHERE {same} AND b.{existed} AND {compared}"
        ).format(
            back=back, fate=FATE, again=again, table=table.identifier, same=same(key, "b", "t"),
            existed=sql.Identifier(EXISTED), compared=compared,
        )
    )  # fmt: skip
    return back


def assigned(columns: Sequence[str], source: str) -> sql.Composed:
    """``a = source.a, …``."""
    return sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier(source, name)) for name in columns
    )
