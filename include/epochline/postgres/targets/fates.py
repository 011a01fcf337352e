"""What becomes of each row staged for an upsert, predicted before anything is written (INV-9, ADR 0017).

``order`` are the staging columns that order the rows of a key: the declared ones, then the record's position.
``kept_order`` is the part of them that the target has. Both are empty for aggregated rows without ``order_by``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import DELETED
from epochline.declare.state import StateTable
from epochline.ports import Upserted
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import Application, names, of_generation, same
from epochline.protocol.epoch import Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """The predicted outcome of the staged rows."""

    staged: int
    tombstones: int
    remembered: bool
    """Whether the table of deleted keys has rows."""
    upserted: Upserted


def predicted(connection: Connection, what: Application) -> Fates:
    """Compare the winner of each key with the target's row, before anything is written."""
    remembered: sql.Composable = sql.SQL("false")
    if what.order:
        remembered = sql.SQL("EXISTS (SELECT FROM {})").format(what.deleted_keys)
    statement = sql.SQL(
        "WITH f AS ({fated})"
        " SELECT (SELECT count(*) FROM {staging}), count(*), count(*) FILTER (WHERE {deleted}), {remembered}, {counts}"
        " FROM f"
    ).format(
        fated=with_fate(what, sql.Identifier("w", DELETED), "_fate"),
        deleted=sql.Identifier(DELETED),
        staging=what.staging,
        remembered=remembered,
        counts=sql.SQL(", ").join(
            sql.SQL("count(*) FILTER (WHERE _fate = {})").format(sql.Literal(fate)) for fate in Upserted.__slots__
        ),
    )
    _, [(staged, winning, tombstones, kept, *counts)] = execute_sql(connection, statement)
    upserted = Upserted(**dict(zip(Upserted.__slots__, map(int, counts), strict=True)))
    return Fates(
        staged=staged,
        tombstones=tombstones,
        remembered=kept,
        # Within an epoch, each row that did not win is older than the winner.
        upserted=upserted.with_superseded(staged - winning),
    )


def with_fate(what: Application, columns: sql.Composable, fate: str) -> sql.Composed:
    """A query of these columns of each winner ``w``, and what becomes of it, under the name ``fate``.

    A fate of NULL is counted nowhere, so that the sum is too small and the commit stops.
    """
    key = what.sink.key
    deleted, there = sql.Identifier("w", DELETED), sql.SQL("{} IS NOT NULL").format(sql.Identifier("t", key[0]))
    behind: sql.Composable = sql.SQL("false")
    side: sql.Composable = sql.SQL("")
    if what.order:
        behind = sql.SQL("NOT {} AND {}").format(deleted, _at_least(names(what.order, "d"), names(what.order, "w")))
        side = sql.SQL(" LEFT JOIN {} d ON {}").format(what.deleted_keys, same(key, "d", "w"))
    return sql.SQL(
        "SELECT {columns}, CASE WHEN {behind} THEN 'superseded'"
        " WHEN NOT ({there}) AND {deleted} THEN 'unchanged' WHEN NOT ({there}) THEN 'inserted'"
        " WHEN {stays} THEN 'superseded' WHEN ({replaces}) IS NOT TRUE THEN NULL"
        " WHEN {deleted} THEN 'deleted' WHEN {changes} THEN 'updated' ELSE 'unchanged' END AS {fate}"
        " FROM ({winners}) w LEFT JOIN {target} t ON {same}{side}"
    ).format(
        columns=columns, winners=winners(what), deleted=deleted, behind=behind, there=there, stays=_stays(what),
        replaces=replaces(what, "w", "t"), changes=changes(what, "w"), target=what.target.identifier,
        same=same(key, "t", "w"), side=side, fate=sql.Identifier(fate),
    )  # fmt: skip


def winners(what: Application) -> sql.Composed:
    """Per key the row with the highest order."""
    descending = [sql.SQL("{} DESC").format(sql.Identifier(name)) for name in what.order]
    ordering = sql.SQL(", ").join([*(sql.Identifier(name) for name in what.sink.key), *descending])
    return sql.SQL("SELECT DISTINCT ON ({}) * FROM {} ORDER BY {}").format(names(what.sink.key), what.staging, ordering)


def newer(columns: Sequence[str], left: str, right: str) -> sql.Composed:
    """The condition that one row's order is higher than another's. A row without a complete order is the oldest."""
    return _newer(names(columns, left), names(columns, right))


def _newer(left: sql.Composable, right: sql.Composable) -> sql.Composed:
    return sql.SQL("(({l}) IS NOT NULL AND (NOT (({r}) IS NOT NULL) OR ({l}) > ({r})))").format(l=left, r=right)


def _at_least(left: sql.Composable, right: sql.Composable) -> sql.Composed:
    """The condition that one order is at least as high as another; NULL if that is unknown."""
    return sql.SQL("({}) >= ({})").format(left, right)


def _keeps_declared_order_only(what: Application) -> bool:
    """Whether the target keeps the declared order but no position. Of equal rows the later epoch's wins."""
    return bool(what.kept_order) and what.kept_order != what.order


def replaces(what: Application, left: str, right: str) -> sql.Composable:
    """The condition that a staged row replaces a target row."""
    if not what.kept_order:
        return sql.SQL("true")
    if _keeps_declared_order_only(what):
        return sql.SQL("NOT {}").format(newer(what.kept_order, right, left))
    return _newer(_staged_order(what, left), _kept_order(what, right))


def _stays(what: Application) -> sql.Composable:
    """The condition that a target row ``t`` is known to be newer than the staged row ``w`` of its key."""
    if not what.kept_order:
        return sql.SQL("false")
    if _keeps_declared_order_only(what):
        return sql.SQL("({}) > ({})").format(names(what.kept_order, "t"), names(what.kept_order, "w"))
    return _at_least(_kept_order(what, "t"), _staged_order(what, "w"))


def _staged_order(what: Application, row: str) -> sql.Composed:
    return _with_generation(what, row, sql.SQL("true"))


def _kept_order(what: Application, row: str) -> sql.Composed:
    return _with_generation(what, row, of_generation(what, row))


def _with_generation(what: Application, row: str, generation: sql.Composable) -> sql.Composed:
    """The order of a row: the declared columns, whether this generation wrote it, its position.

    false < true, so a row of an earlier generation is older than every staged row: offsets may restart in a new one.
    """
    columns: list[sql.Composable] = [sql.Identifier(row, name) for name in what.kept_order]
    if what.last_earlier_epoch and not what.sink.aggregated:
        columns.insert(len(what.sink.order_by), generation)
    return sql.SQL(", ").join(columns)


def set_columns(what: Application) -> list[str]:
    """The columns of the target that an update writes."""
    own = ["_epoch"] if "_epoch" in what.sink.carried_lineage else []
    own += [what.sink.insert_time] if what.sink.insert_time else []
    return [*(name for name in what.carried if name not in what.sink.key), *own]


def changes(what: Application, staged: str) -> sql.Composable:
    """The condition that a row is written: state only if it changed (C8), other rows always."""
    values = [name for name in what.carried if name not in what.sink.key]
    if not set_columns(what) or (isinstance(what.sink, StateTable) and not values):
        return sql.SQL("false")
    if not isinstance(what.sink, StateTable):
        return sql.SQL("true")
    return sql.SQL("({}) IS DISTINCT FROM ({})").format(names(values, "t"), names(values, staged))


def count_unsettled(connection: Connection, what: Application, epoch: Epoch) -> int:
    """The number of staged keys of which the target afterwards does not hold what their newest record says.

    A key is settled if its row is at least as new, if it has no row and its newest record is a tombstone, or if a newer
    tombstone is remembered. If the target keeps no position, the row must have this epoch's number, or else the
    record's order or values.
    """
    deleted = sql.Identifier("w", DELETED)
    there = sql.SQL("{} IS NOT NULL").format(sql.Identifier("t", what.sink.key[0]))
    side: sql.Composable = sql.SQL("")
    behind: sql.Composable = sql.SQL("false")
    if what.order:
        behind = sql.SQL("NOT {} AND {}").format(deleted, _at_least(names(what.order, "d"), names(what.order, "w")))
        side = sql.SQL(" LEFT JOIN {} d ON {}").format(what.deleted_keys, same(what.sink.key, "d", "w"))
    statement = sql.SQL(
        "WITH w AS ({winners}) SELECT count(*) FROM w LEFT JOIN {target} t ON {same}{side} WHERE (CASE WHEN {behind}"
        " THEN true WHEN NOT ({there}) THEN {deleted} WHEN {stays} THEN true WHEN {deleted} THEN false"
        " ELSE {written} END) IS NOT TRUE"
    ).format(
        winners=winners(what), target=what.target.identifier, same=same(what.sink.key, "t", "w"), side=side,
        behind=behind, there=there, deleted=deleted, stays=_stays(what), written=_is_written(what, epoch),
    )  # fmt: skip
    return int(execute_sql(connection, statement)[1][0][0])


def _is_written(what: Application, epoch: Epoch) -> sql.Composable:
    """The condition that a target row ``t`` is the staged row ``w``, as far as the target tells."""
    if isinstance(what.sink, StateTable):
        return sql.SQL("NOT {}").format(changes(what, "w"))
    if "_epoch" in what.sink.carried_lineage:
        return sql.SQL("{} = {}").format(sql.Identifier("t", "_epoch"), sql.Literal(epoch.epoch_id))
    if what.kept_order:
        return sql.SQL("({}) = ({})").format(names(what.kept_order, "t"), names(what.kept_order, "w"))
    # Only its values tell whether the row was written. As text, because some types have no equality operator.
    values = [name for name in what.carried if name not in what.sink.key]
    there, due = (
        sql.SQL(", ").join([sql.SQL("1"), *(sql.SQL("{}::text").format(sql.Identifier(row, name)) for name in values)])
        for row in ("t", "w")
    )
    return sql.SQL("ROW({}) IS NOT DISTINCT FROM ROW({})").format(there, due)
