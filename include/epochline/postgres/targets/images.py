"""Before-images: the rows that an epoch replaced in an upsert or add target, one table for each epoch."""

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from psycopg2 import sql

from epochline.declare.names import image_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateTable
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.statements import (
    Connection,
    assigned,
    change,
    compose,
    joined,
    names,
    run,
    same,
    settle_table,
)
from epochline.postgres.targets.application import Application, remembers_deleted
from epochline.postgres.targets.catalog import ForeignKey, Place, Target, find_target
from epochline.postgres.targets.fates import with_fate
from epochline.postgres.targets.foreign_keys import DELETES, UPDATES, referring

log = logging.getLogger(__name__)

EXISTED = "_existed"
"""The column of a before-image that says whether the table had a row of the key."""
THERE, FATE = "_there", "_fate"
"""In the rows that are to come back: whether the table has a row of the key now, and what must happen to it."""


Image = tuple[sql.Identifier, sql.Identifier]
"""The before-image of one epoch: a table with the rows that it replaced, and one with the deleted keys."""


def keep_images(tables: Sequence[Application]) -> None:
    """Keep the current rows of the staged keys, and the rows that foreign keys delete or change with them.

    The oldest images beyond the declared number are dropped. Where a foreign key reaches rows that no image can keep,
    the epoch gets no image, so that a restore refuses it. Call it before staging is applied.
    """
    if not any(what.sink.before_images for what in tables):
        return
    cascades = _Cascades(tables)
    for what in tables:
        if what.sink.before_images and what.sink.table not in cascades.not_kept:
            _keep_image(what, cascades.taken[what.sink.table])


def _keep_image(what: Application, reached: Sequence[sql.Identifier]) -> None:
    epoch = what.epoch
    keys = joined((what.compose("SELECT {key} FROM {rows}", rows=rows) for rows in (what.staging, *reached)), " UNION ")
    name = image_table(epoch.pipeline, what.sink.table, epoch.epoch_id)
    rows, deleted_keys = image_tables(name)
    _keep(what, keys, what.target.identifier, rows)
    if remembers_deleted(what.sink):
        _keep(what, keys, what.deleted_keys, deleted_keys)
    of_epoch = {"pipeline": epoch.pipeline, "sink": what.sink.table, "epoch_id": epoch.epoch_id}
    run(what.connection, "keep_image", **of_epoch, table_name=name)
    for epoch_id in list(images_of(what.connection, what.pipeline, what.sink))[what.sink.before_images :]:
        drop_image(what.connection, what.pipeline, what.sink, epoch_id)


def image_tables(name: str) -> Image:
    """The tables of a before-image, by its name in the ledger."""
    return sql.Identifier("epochline", name), sql.Identifier("epochline", f"{name}_deleted")


def images_of(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> dict[int, Image]:
    """The before-images of a target by epoch, the newest first."""
    kept = run(connection, "images", **_of(pipeline, sink))
    return {row.epoch_id: image_tables(row.table_name) for row in kept}


def _of(pipeline: Pipeline, sink: PostgresTable) -> dict[str, str]:
    return {"pipeline": pipeline.name, "sink": sink.table}


def cannot_undo(connection: Connection, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> str | None:
    """Why the rows of these newest epochs cannot be taken out of a target; None if they can."""
    if sink.mode == "replace":
        return f"{sink} has mode replace: the rows that its epochs replaced are gone."
    if sink.mode == "append":
        if "_epoch" in sink.carried_lineage:
            return None
        return f"{sink} is declared with lineage=False: its rows do not tell which epoch wrote them."
    kept = images_of(connection, pipeline, sink)
    missing = [epoch for epoch in epochs if epoch not in kept]
    erased = {row.epoch_id: row.erased_at for row in run(connection, "erased_images", **_of(pipeline, sink))}
    old = [epoch for epoch in missing if epoch in erased]
    if old:
        return (
            f"{sink}: the before-images of epoch {', '.join(map(str, old))} were deleted by the pipeline's retention at"
            f" {erased[old[-1]]:%Y-%m-%d %H:%M:%S %Z}."
        )
    if missing:
        return (
            f"{sink} has mode {sink.mode}, and no before-images were kept of epoch {', '.join(map(str, missing))};"
            f" before_images is {sink.before_images} now. An epoch of which foreign keys delete or change rows that no"
            " before-image can keep has none either; the log of its commit names the key."
        )
    return None


def drop_image(connection: Connection, pipeline: Pipeline, sink: PostgresTable, epoch_id: int) -> None:
    """Drop a before-image and its record."""
    rows, deleted_keys = images_of(connection, pipeline, sink)[epoch_id]
    drop_tables(connection, (rows, deleted_keys))
    run(connection, "delete_image", **_of(pipeline, sink), epoch_id=epoch_id)


def drop_tables(connection: Connection, image: Image) -> None:
    """Drop the tables of a before-image; the janitor may drop an old one while a commit does."""
    for table in image:
        change(connection, "DROP TABLE IF EXISTS {table}", table=table)


def _keep(what: Application, keys: sql.Composable, table: sql.Identifier, image: sql.Identifier) -> None:
    key = what.sink.key
    others = [name for name in kept_columns(what.connection, table) if name not in key]
    what.change(
        "CREATE TABLE {image} AS SELECT {columns}, t.{first} IS NOT NULL AS {existed}"
        " FROM (SELECT DISTINCT * FROM ({keys}) k) k LEFT JOIN {table} t ON {same}",
        image=image, columns=_of_both(key, others), first=key[0], existed=EXISTED, keys=keys, table=table,
        same=same(key, "k", "t"),
    )  # fmt: skip
    settle_table(what.connection, *image.strings)


def _of_both(key: Iterable[str], others: Iterable[str]) -> sql.Composed:
    """The key of a row ``k``, and other columns of the row ``t`` of that key."""
    return joined([*(sql.Identifier("k", name) for name in key), *(sql.Identifier("t", name) for name in others)])


def kept_columns(connection: Connection, table: sql.Identifier) -> list[str]:
    """The columns that a before-image of a table has: all but those that PostgreSQL computes from others."""
    target = find_target(connection, ".".join(table.strings))
    return [] if target is None else [name for name, column in target.columns.items() if not column.generated]


def rows_to_come_back(
    connection: Connection, key: Sequence[str], table: Target, images: Sequence[sql.Identifier]
) -> sql.Identifier:
    """Make a temporary table with the row that each key must have, and its fate: gone, new, changed, again or same.

    It begins with the rows as they are. Then each image is laid over it, the newest first, so that every column ends as
    the oldest image has it; a column that no image has stays. The fate ``again`` is that of a row that must be deleted
    and inserted, because an identity GENERATED ALWAYS differs, which PostgreSQL updates to no given value.
    """
    name = f"epochline_back_{table.oid}"
    back = sql.Identifier("pg_temp", name)
    others = [name for name in kept_columns(connection, table.identifier) if name not in key]
    fixed = [name for name in others if not table.columns[name].writable]
    columns = {"existed": EXISTED, "there": THERE, "fate": FATE}
    parts = {"back": back, "table": table.identifier, "key": names(key), "same": same(key, "b", "t"), **columns}
    keys = joined((compose("SELECT {key} FROM {image}", key=names(key), image=image) for image in images), " UNION ")
    change(
        connection,
        "CREATE TEMP TABLE {name} ON COMMIT DROP AS SELECT {columns}, t.{first} IS NOT NULL AS {there},"
        " false AS {existed}, ''::text AS {fate} FROM ({keys}) k LEFT JOIN {table} t ON {same}",
        **{**parts, "same": same(key, "k", "t")}, name=name, columns=_of_both(key, others), first=key[0], keys=keys,
    )  # fmt: skip
    for image in images:
        kept = [name for name in kept_columns(connection, image) if name in {*others, EXISTED}]
        laid = {"values": assigned(kept, "i"), "image": image, "same": same(key, "b", "i")}
        change(connection, "UPDATE {back} b SET {values} FROM {image} i WHERE {same}", back=back, **laid)
    change(
        connection,
        "UPDATE {back} SET {fate} = CASE WHEN {existed} AND {there} THEN 'same' WHEN {existed} THEN 'new'"
        " WHEN {there} THEN 'gone' ELSE 'same' END",
        **parts,
    )
    fixed_differ = compose("ROW({t}) IS DISTINCT FROM ROW({b})", t=names(fixed, "t"), b=names(fixed, "b"))
    change(
        connection,
        "UPDATE {back} b SET {fate} = CASE WHEN {again} THEN 'again' ELSE 'changed' END FROM {table} t"
        " WHERE {same} AND b.{existed} AND ROW({t})::record *<> ROW({b})::record",
        **parts, again=fixed_differ if fixed else sql.SQL("false"), t=names(others, "t"), b=names(others, "b"),
    )  # fmt: skip
    return back


class _Cascades:
    """What foreign keys will do when an epoch is applied.

    ``taken`` has temporary tables with rows of a target that a foreign key deletes or changes, by the target's table.
    ``not_kept`` has the tables of sinks from which a key reaches rows that no before-image can keep: rows of a table
    that is no target of the pipeline, or whose target keeps no before-images. Their epoch cannot be undone.
    """

    def __init__(self, tables: Sequence[Application]) -> None:
        self.taken: dict[str, list[sql.Identifier]] = defaultdict(list)
        self.not_kept: set[str] = set()
        self._targets: dict[Place, Application] = {what.target.place: what for what in tables}
        self._numbers = itertools.count(1)
        for what in tables:
            if what.sink.mode == "upsert" and not isinstance(what.sink, StateTable):
                self._begin(what)

    def _begin(self, what: Application) -> None:
        self._deleted(what, what, _rows(what, what.sink.key, sql.SQL("_fate = 'deleted'")))
        for key in what.target.foreign_keys_to_it:
            columns = [name for name in key.referenced if name in what.carried and name not in what.sink.key]
            if key.on_update in UPDATES and columns:
                t, f = names(columns, "t"), names(columns, "f")
                moved = compose("_fate = 'updated' AND ({t}) IS DISTINCT FROM ({f})", t=t, f=f)
                self._fires(what, key, UPDATES[key.on_update], _rows(what, [*what.sink.key, *columns], moved))

    def _deleted(self, origin: Application, what: Application, rows: sql.Composable) -> None:
        for key in what.target.foreign_keys_to_it:
            if key.deletes_change_children:
                self._fires(origin, key, DELETES[key.on_delete], rows)

    def _fires(self, origin: Application, key: ForeignKey, does: str, rows: sql.Composable) -> None:
        child = self._targets.get(key.child)
        if child is not None and (isinstance(child.sink, StateTable) or child.sink.mode == "replace"):
            return  # A restore puts back the whole table, or none of it.
        if child is None or not child.sink.before_images:
            obstacle = referring(origin.connection, key, rows, sql.SQL("true"))
            if obstacle is not None:
                self.not_kept.add(origin.sink.table)
                log.warning(
                    "before_image.incomplete epoch=%s sink=%s: %s, and its foreign key %s %s. No before-image of the"
                    " epoch is kept, so it cannot be undone.", origin.epoch, origin.sink, obstacle, key.name, does,
                )  # fmt: skip
            return
        name = f"epochline_taken_{next(self._numbers)}"
        table = sql.Identifier("pg_temp", name)
        unknown = [
            compose(
                " AND NOT EXISTS (SELECT FROM {rows} k WHERE {same})", rows=rows, same=same(child.sink.key, "k", "r")
            )
            for rows in self.taken[child.sink.table]
        ]
        if child.change(
            "CREATE TEMP TABLE {name} ON COMMIT DROP AS SELECT r.* FROM {target} r"
            " WHERE EXISTS (SELECT FROM ({rows}) x WHERE ({referred}) = ({columns})){unknown}",
            name=name, rows=rows, referred=names(key.referenced, "x"), columns=names(key.columns, "r"),
            unknown=joined(unknown, ""),
        ):  # fmt: skip
            self.taken[child.sink.table].append(table)
            if does == DELETES["c"]:
                self._deleted(origin, child, compose("SELECT * FROM {taken}", taken=table))


def _rows(what: Application, columns: Sequence[str], condition: sql.Composable) -> sql.Composed:
    """A query for the target's rows that the epoch deletes or changes."""
    return what.compose(
        "SELECT t.* FROM {target} t JOIN ({fates}) f ON {same} WHERE {condition}",
        fates=with_fate(what, names(columns, "w"), "_fate"), same=same(what.sink.key, "t", "f"), condition=condition,
    )  # fmt: skip
