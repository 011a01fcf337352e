"""Upsert: the row with the highest order wins per key, and every staged row is accounted for (INV-9).

Each count is made twice. A query predicts the outcome of each key; the statements report how many rows they wrote and
deleted. If the two differ, nothing is committed. Prediction and statements state the same conditions in different
words, so that they do not share a mistake (ADR 0017).

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
from epochline.errors import TargetError
from epochline.ports import Applied, Upserted
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import Application, names, of_generation, same, with_epoch
from epochline.protocol.epoch import Epoch


def upsert(connection: Connection, what: Application, epoch: Epoch) -> Applied:
    """Apply staging to an upsert target.

    Raises:
        TargetError: a staged row is neither written nor older than the target's row, or the number of written rows is
            not the predicted one.
    """
    fates = _fates(connection, what)
    written = _write(connection, what, epoch)
    deleted = _delete(connection, what) if fates.tombstones else 0
    if what.order:
        if fates.tombstones:
            _remember(connection, what)
        if fates.remembered:
            _forget(connection, what)
    _refuse_imbalance(what, epoch, fates, written, deleted)
    return Applied(rows=written + deleted, upserted=fates.upserted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fates:
    """The predicted outcome of the staged rows."""

    staged: int
    tombstones: int
    remembered: bool
    """Whether the table of deleted keys has rows."""
    upserted: Upserted


def _fates(connection: Connection, what: Application) -> _Fates:
    """Compare the winner of each key with the target's row, before anything is written."""
    key = what.sink.key
    behind: sql.Composable
    side: sql.Composable
    remembered: sql.Composable
    # A fate of NULL is counted nowhere, so that the sum is too small and `_refuse_imbalance` stops the commit.
    deleted, there = sql.Identifier("w", DELETED), sql.SQL("{} IS NOT NULL").format(sql.Identifier("t", key[0]))
    behind, side, remembered = sql.SQL("false"), sql.SQL(""), sql.SQL("false")
    if what.order:
        behind = sql.SQL("NOT {} AND {}").format(deleted, _at_least(names(what.order, "d"), names(what.order, "w")))
        side = sql.SQL(" LEFT JOIN {} d ON {}").format(what.deleted_keys, same(key, "d", "w"))
        remembered = sql.SQL("EXISTS (SELECT FROM {})").format(what.deleted_keys)
    statement = sql.SQL(
        "WITH w AS ({winners}), f AS (SELECT {deleted} AS _tombstone, CASE WHEN {behind} THEN 'superseded'"
        " WHEN NOT ({there}) AND {deleted} THEN 'unchanged' WHEN NOT ({there}) THEN 'inserted'"
        " WHEN {stays} THEN 'superseded' WHEN ({replaces}) IS NOT TRUE THEN NULL"
        " WHEN {deleted} THEN 'deleted' WHEN {changes} THEN 'updated' ELSE 'unchanged' END AS _fate"
        " FROM w LEFT JOIN {target} t ON {same}{side})"
        " SELECT (SELECT count(*) FROM {staging}), count(*), count(*) FILTER (WHERE _tombstone), {remembered}, {counts}"
        " FROM f"
    ).format(
        winners=_winners(what), deleted=deleted, behind=behind, there=there, stays=_stays(what),
        replaces=_replaces(what, "w", "t"), changes=_changes(what, "w"), target=what.target.identifier,
        same=same(key, "t", "w"), side=side, staging=what.staging, remembered=remembered,
        counts=sql.SQL(", ").join(
            sql.SQL("count(*) FILTER (WHERE _fate = {})").format(sql.Literal(fate)) for fate in Upserted.__slots__
        ),
    )  # fmt: skip
    _, [(staged, winners, tombstones, kept, *counts)] = execute_sql(connection, statement)
    upserted = Upserted(**dict(zip(Upserted.__slots__, map(int, counts), strict=True)))
    return _Fates(
        staged=staged,
        tombstones=tombstones,
        remembered=kept,
        # Within an epoch, each row that did not win is older than the winner.
        upserted=upserted.with_superseded(staged - winners),
    )


def _refuse_imbalance(what: Application, epoch: Epoch, fates: _Fates, written: int, deleted: int) -> None:
    due = fates.upserted
    if due.total != fates.staged:
        raise TargetError(
            f"{epoch}: of {fates.staged} rows staged for {what.sink}, {fates.staged - due.total} are neither newer nor"
            " older than the row that the table has of their key. Nothing was changed. The seal should have refused"
            f" them: a staged row has NULL in {', '.join(what.kept_order)}. Keep its staging table for a report, then"
            " abort the epoch and clear its run from plan_epoch.",
            f"abort {epoch.pipeline} {epoch.epoch_id} --reason …",
        )
    if (written, deleted) != (due.inserted + due.updated, due.deleted):
        raise TargetError(
            f"{epoch}: {due.inserted} rows were to be inserted into {what.sink}, {due.updated} updated and"
            f" {due.deleted} deleted, but {written} were written and {deleted} deleted: a trigger or rule of the table"
            " drops rows, or another program writes to it. Nothing was changed. Remove the trigger or stop the program"
            " and repeat the task, or abort the epoch.",
            f"run {epoch.pipeline}",
        )


def _winners(what: Application) -> sql.Composed:
    """Per key the row with the highest order."""
    descending = [sql.SQL("{} DESC").format(sql.Identifier(name)) for name in what.order]
    ordering = sql.SQL(", ").join([*(sql.Identifier(name) for name in what.sink.key), *descending])
    return sql.SQL("SELECT DISTINCT ON ({}) * FROM {} ORDER BY {}").format(names(what.sink.key), what.staging, ordering)


def _newer(left: sql.Composable, right: sql.Composable) -> sql.Composed:
    """The condition that one order is higher than another. A row without a complete order is the oldest."""
    return sql.SQL("(({l}) IS NOT NULL AND (NOT (({r}) IS NOT NULL) OR ({l}) > ({r})))").format(l=left, r=right)


def _at_least(left: sql.Composable, right: sql.Composable) -> sql.Composed:
    """The condition that one order is at least as high as another; NULL if that is unknown."""
    return sql.SQL("({}) >= ({})").format(left, right)


def _keeps_declared_order_only(what: Application) -> bool:
    """Whether the target keeps the declared order but no position. Of equal rows the later epoch's wins."""
    return bool(what.kept_order) and what.kept_order != what.order


def _replaces(what: Application, left: str, right: str) -> sql.Composable:
    """The condition that a staged row replaces a target row."""
    if not what.kept_order:
        return sql.SQL("true")
    if _keeps_declared_order_only(what):
        return sql.SQL("NOT {}").format(_newer(names(what.kept_order, right), names(what.kept_order, left)))
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


def _set_columns(what: Application) -> list[str]:
    own = ["_epoch"] if "_epoch" in what.sink.carried_lineage else []
    own += [what.sink.insert_time] if what.sink.insert_time else []
    return [*(name for name in what.carried if name not in what.sink.key), *own]


def _changes(what: Application, staged: str) -> sql.Composable:
    """The condition that a row is written: state only if it changed (C8), other rows always."""
    values = [name for name in what.carried if name not in what.sink.key]
    if not _set_columns(what) or (isinstance(what.sink, StateTable) and not values):
        return sql.SQL("false")
    if not isinstance(what.sink, StateTable):
        return sql.SQL("true")
    return sql.SQL("({}) IS DISTINCT FROM ({})").format(names(values, "t"), names(values, staged))


def _write(connection: Connection, what: Application, epoch: Epoch) -> int:
    into, values = with_epoch(what, epoch, "w")
    key, columns = what.sink.key, _set_columns(what)
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("excluded", name)) for name in columns
    )
    action: sql.Composable = sql.SQL("DO NOTHING")
    if columns:
        action = sql.SQL("DO UPDATE SET {} WHERE {} AND {}").format(
            assignments, _changes(what, "excluded"), _replaces(what, "excluded", "t")
        )
    statement = sql.SQL(
        "WITH w AS ({winners}) INSERT INTO {target} AS t ({into}) SELECT {values} FROM w WHERE NOT w.{deleted}"
        " AND {not_deleted} ORDER BY {key} ON CONFLICT ({plain_key}) {action}"
    ).format(
        winners=_winners(what),
        target=what.target.identifier,
        into=into,
        values=values,
        deleted=sql.Identifier(DELETED),
        not_deleted=_not_deleted_since(what),
        key=names(key, "w"),
        plain_key=names(key),
        action=action,
    )
    return execute_sql(connection, statement)[0]


def _not_deleted_since(what: Application) -> sql.Composable:
    """The condition that no stored tombstone is as new as the staged row."""
    if not what.order:
        return sql.SQL("true")
    return sql.SQL("NOT EXISTS (SELECT FROM {} d WHERE {} AND NOT {})").format(
        what.deleted_keys, same(what.sink.key, "d", "w"), _newer_of(what.order, "w", "d")
    )


def _newer_of(columns: Sequence[str], left: str, right: str) -> sql.Composed:
    return _newer(names(columns, left), names(columns, right))


def _delete(connection: Connection, what: Application) -> int:
    """Delete the target's rows for which there is a newer tombstone."""
    statement = sql.SQL(
        "WITH w AS ({winners}) DELETE FROM {target} AS t USING w WHERE w.{deleted} AND {same} AND {newer}"
    ).format(
        winners=_winners(what),
        target=what.target.identifier,
        deleted=sql.Identifier(DELETED),
        same=same(what.sink.key, "t", "w"),
        newer=_replaces(what, "w", "t"),
    )
    return execute_sql(connection, statement)[0]


def _remember(connection: Connection, what: Application) -> None:
    """Store key and order of every winning tombstone, so that an older record does not bring its key back.

    It is stored even if it deleted no row.
    """
    key, kept = what.sink.key, [*what.sink.key, *what.order]
    statement = sql.SQL(
        "WITH w AS ({winners}) INSERT INTO {side} AS d ({kept}) SELECT {values} FROM w WHERE w.{deleted} ORDER BY"
        " {sorted} ON CONFLICT ({key}) DO UPDATE SET {assignments} WHERE {newer}"
    ).format(
        winners=_winners(what),
        side=what.deleted_keys,
        kept=names(kept),
        values=names(kept, "w"),
        deleted=sql.Identifier(DELETED),
        sorted=names(key, "w"),
        key=names(key),
        assignments=sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("excluded", name)) for name in what.order
        ),
        newer=_newer_of(what.order, "excluded", "d"),
    )
    execute_sql(connection, statement)


def _forget(connection: Connection, what: Application) -> None:
    """Delete the keys that a newer record brought back from the table of deleted keys."""
    statement = sql.SQL(
        "WITH w AS ({winners}) DELETE FROM {side} d USING w WHERE NOT w.{deleted} AND {same} AND {newer}"
    ).format(
        winners=_winners(what),
        side=what.deleted_keys,
        deleted=sql.Identifier(DELETED),
        same=same(what.sink.key, "d", "w"),
        newer=_newer_of(what.order, "w", "d"),
    )
    execute_sql(connection, statement)


def count_unsettled(connection: Connection, what: Application, epoch: Epoch) -> int:
    """The number of staged keys of which the target, after `upsert`, does not hold what their newest record says.

    A key is settled if its row is at least as new, if it has no row and its newest record is a tombstone, or if a newer
    tombstone is remembered. Where the target keeps no position, the row must be of this epoch, or as the record says.
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
        winners=_winners(what), target=what.target.identifier, same=same(what.sink.key, "t", "w"), side=side,
        behind=behind, there=there, deleted=deleted, stays=_stays(what), written=_is_written(what, epoch),
    )  # fmt: skip
    return int(execute_sql(connection, statement)[1][0][0])


def _is_written(what: Application, epoch: Epoch) -> sql.Composable:
    """The condition that a target row ``t`` is the staged row ``w``, as far as the target tells."""
    if isinstance(what.sink, StateTable):
        return sql.SQL("NOT {}").format(_changes(what, "w"))
    if "_epoch" in what.sink.carried_lineage:
        return sql.SQL("{} = {}").format(sql.Identifier("t", "_epoch"), sql.Literal(epoch.epoch_id))
    if what.kept_order:
        return sql.SQL("({}) = ({})").format(names(what.kept_order, "t"), names(what.kept_order, "w"))
    return sql.SQL("true")
