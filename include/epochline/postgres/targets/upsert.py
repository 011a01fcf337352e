"""Upsert: the row with the highest order wins per key, and every staged row is accounted for (INV-9).

Each count is made twice. A query predicts the outcome of each key; the statements report how many rows they wrote and
deleted. If the two differ, nothing is committed. Prediction and statements state the same conditions in different
words, so that they do not share a mistake (ADR 0017).

Rows are written first and deleted later: between the two, other targets of the epoch write rows that refer to them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import DELETED
from epochline.declare.state import StateTable
from epochline.errors import TargetError
from epochline.ports import Applied
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import Application, names, same, with_epoch
from epochline.postgres.targets.exclusive import FATES, TURN, is_exclusive
from epochline.postgres.targets.fates import Fates, changes, newer, predicted, replaces, set_columns, winners
from epochline.postgres.targets.refusals import attempt
from epochline.postgres.targets.way import make_way
from epochline.protocol.epoch import Epoch

_TAKEN = (psycopg2.errors.UniqueViolation, psycopg2.errors.ExclusionViolation)


class Upsert:
    """One upsert in its steps: `write`, `delete`, `finish`. What becomes of each row is predicted before the first."""

    def __init__(self, connection: Connection, what: Application, epoch: Epoch) -> None:
        self._connection, self._what, self._epoch = connection, what, epoch
        self._fates = predicted(connection, what)
        self._written = 0
        self._deleted: int | None = None

    def write(self, delete_early: Callable[[], None]) -> None:
        """Insert and update rows.

        Args:
            delete_early: deletes the rows that the epoch deletes, where a written row needs their values.

        Raises:
            psycopg2.Error: the target refuses the rows.
        """
        write = partial(_write, self._connection, self._what, self._epoch)
        # A state table is this product's: it has no key beside its own.
        if not is_exclusive(self._what) or isinstance(self._what.sink, StateTable):
            self._written = write()
            return
        written = attempt(self._connection, write)
        if isinstance(written, _TAKEN):
            in_turns = partial(write, in_turns=True)
            written = make_way(self._connection, self._what, self._epoch, in_turns, delete_early, written)
        if isinstance(written, psycopg2.Error):
            raise written
        self._written = written

    def delete(self) -> bool:
        """Delete the rows of tombstones; returns whether that was still to do."""
        due = self._deleted is None
        if due:
            self._deleted = _delete(self._connection, self._what) if self._fates.tombstones else 0
        return due

    def delete_later(self) -> None:
        """The deletes were rolled back."""
        self._deleted = None

    def finish(self) -> Applied:
        """Account for every staged row, after its row is written or deleted.

        Raises:
            TargetError: a staged row is neither written nor older than the target's row, or the number of written rows
                is not the predicted one.
        """
        connection, what, fates = self._connection, self._what, self._fates
        if what.order:
            if fates.tombstones:
                _remember(connection, what)
            if fates.remembered:
                _forget(connection, what)
        deleted = self._deleted or 0
        _refuse_imbalance(what, self._epoch, fates, self._written, deleted)
        return Applied(rows=self._written + deleted, upserted=fates.upserted)


def _refuse_imbalance(what: Application, epoch: Epoch, fates: Fates, written: int, deleted: int) -> None:
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


def _write(
    connection: Connection,
    what: Application,
    epoch: Epoch,
    only: sql.Composable | None = None,
    *,
    in_turns: bool = False,
) -> int:
    """Write the winners that replace their target rows; in the turns ``f`` of `FATES`, if there are any."""
    into, values = with_epoch(what, epoch, "w")
    key, columns = what.sink.key, set_columns(what)
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("excluded", name)) for name in columns
    )
    action: sql.Composable = sql.SQL("DO NOTHING")
    if columns:
        action = sql.SQL("DO UPDATE SET {} WHERE {} AND {}").format(
            assignments, changes(what, "excluded"), replaces(what, "excluded", "t")
        )
    turns: sql.Composable = sql.SQL("")
    turn: sql.Composable = sql.SQL("")
    if in_turns:
        turns = sql.SQL(" LEFT JOIN {} f ON {}").format(FATES, same(key, "f", "w"))
        turn = sql.SQL("{}, ").format(sql.Identifier("f", TURN))
    statement = sql.SQL(
        "WITH w AS ({winners}) INSERT INTO {target} AS t ({into}) SELECT {values} FROM w{turns} WHERE NOT w.{deleted}"
        " AND {not_deleted}{only} ORDER BY {turn}{key} ON CONFLICT ({plain_key}) {action}"
    ).format(
        turns=turns,
        only=sql.SQL("") if only is None else sql.SQL(" AND {}").format(only),
        turn=turn,
        winners=winners(what),
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
        what.deleted_keys, same(what.sink.key, "d", "w"), newer(what.order, "w", "d")
    )


def _delete(connection: Connection, what: Application) -> int:
    """Delete the target's rows for which there is a newer tombstone."""
    statement = sql.SQL(
        "WITH w AS ({winners}) DELETE FROM {target} AS t USING w WHERE w.{deleted} AND {same} AND {newer}"
    ).format(
        winners=winners(what),
        target=what.target.identifier,
        deleted=sql.Identifier(DELETED),
        same=same(what.sink.key, "t", "w"),
        newer=replaces(what, "w", "t"),
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
        winners=winners(what),
        side=what.deleted_keys,
        kept=names(kept),
        values=names(kept, "w"),
        deleted=sql.Identifier(DELETED),
        sorted=names(key, "w"),
        key=names(key),
        assignments=sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("excluded", name)) for name in what.order
        ),
        newer=newer(what.order, "excluded", "d"),
    )
    execute_sql(connection, statement)


def _forget(connection: Connection, what: Application) -> None:
    """Delete the keys that a newer record brought back from the table of deleted keys."""
    statement = sql.SQL(
        "WITH w AS ({winners}) DELETE FROM {side} d USING w WHERE NOT w.{deleted} AND {same} AND {newer}"
    ).format(
        winners=winners(what),
        side=what.deleted_keys,
        deleted=sql.Identifier(DELETED),
        same=same(what.sink.key, "d", "w"),
        newer=newer(what.order, "w", "d"),
    )
    execute_sql(connection, statement)
