"""Upsert: the row with the highest order wins per key, and every staged row is accounted for (INV-9).

Each count is made twice. A query predicts the outcome of each key; the statements report how many rows they wrote and
deleted. If the two differ, nothing is committed. Prediction and statements state the same conditions in different
words, so that they do not share a mistake (ADR 0017). Nothing is predicted where `merge` wrote every key (ADR 0057).

Rows are written first and deleted later: between the two, other targets of the epoch write rows that refer to them.
"""

from collections.abc import Callable
from functools import partial

import psycopg2
from psycopg2 import sql

from epochline.declare.columns import DELETED, DELETED_AT
from epochline.declare.state import StateTable
from epochline.errors import TargetError
from epochline.ports import Applied, Upserted
from epochline.postgres.queries.statements import assigned, compose, joined, names, same
from epochline.postgres.targets.application import Application, attempt
from epochline.postgres.targets.exclusive import is_exclusive
from epochline.postgres.targets.fates import changes, newer, not_deleted_since, replaces, set_columns, with_fate
from epochline.postgres.targets.merge import merge_all, merges_all
from epochline.postgres.targets.passing_on import make_way

_TAKEN = (psycopg2.errors.UniqueViolation, psycopg2.errors.ExclusionViolation)


class Upsert:
    """One upsert in its steps: `write`, `delete`, `finish`. What becomes of each row is predicted before the first.

    Args:
        watched: whether something else than the epoch's statements may change a target.
    """

    def __init__(self, what: Application, *, watched: bool) -> None:
        self._what = what
        self._written = 0
        self._deleted: int | None = None
        self._merges = not watched and merges_all(what)
        if self._merges:
            [(self._staged, self._tombstones, self._remembered)] = what.query(
                "SELECT count(*), count(*) FILTER (WHERE {deleted}), {remembered} FROM {staging}",
                remembered=_has_remembered(what),
            )
            self._merges = not self._tombstones
        if not self._merges:
            self._predict()

    def _predict(self) -> None:
        what, fates = self._what, Upserted.__slots__
        [(self._staged, winning, self._tombstones, self._remembered, *counts)] = what.query(
            "WITH f AS ({fated}) SELECT (SELECT count(*) FROM {staging}), count(*),"
            " count(*) FILTER (WHERE {deleted}), {remembered}, {counts} FROM f",
            fated=with_fate(what, sql.Identifier("w", DELETED), "_fate"),
            remembered=_has_remembered(what),
            counts=joined(compose("count(*) FILTER (WHERE _fate = {fate})", fate=sql.Literal(fate)) for fate in fates),
        )
        due = dict(zip(fates, map(int, counts), strict=True))
        # Within an epoch, each row that did not win is older than the winner.
        due["superseded"] += self._staged - winning
        self._due = Upserted(**due)

    def write(self, delete_early: Callable[[], None]) -> None:
        """Insert and update rows.

        Args:
            delete_early: deletes the rows that the epoch deletes, where a written row needs their values.

        Raises:
            psycopg2.Error: the target refuses the rows.
        """
        if self._merges:
            due = merge_all(self._what, self._staged)
            if due is not None:
                self._due, self._written = due, due.inserted + due.updated
                return
            self._predict()
        # A state table is this product's: it has no key beside its own.
        if not is_exclusive(self._what) or isinstance(self._what.sink, StateTable):
            self._written = _write(self._what)
            return
        written = attempt(self._what.connection, partial(_write, self._what))
        if isinstance(written, _TAKEN):
            written = make_way(self._what, partial(_write, self._what, in_turns=True), delete_early, written)
        if isinstance(written, psycopg2.Error):
            raise written
        self._written = written

    def delete(self) -> bool:
        """Delete the rows of tombstones; returns whether that was still to do."""
        due = self._deleted is None
        if due:
            self._deleted = _delete(self._what) if self._tombstones else 0
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
        if self._what.order:
            if self._tombstones:
                _remember(self._what)
            if self._remembered:
                _forget(self._what)
        deleted = self._deleted or 0
        self._refuse_imbalance(deleted)
        return Applied(rows=self._written + deleted, upserted=self._due)

    def _refuse_imbalance(self, deleted: int) -> None:
        what, epoch, due, staged = self._what, self._what.epoch, self._due, self._staged
        if due.total != staged:
            raise TargetError(
                f"{epoch}: of {staged} rows staged for {what.sink}, {staged - due.total} are neither newer nor"
                " older than the row that the table has of their key. Nothing was changed. The seal should have refused"
                f" them: a staged row has NULL in {', '.join(what.kept_order)}. Keep its staging table for a report,"
                " then abort the epoch and clear its run from plan_epoch.",
                f"abort {epoch.pipeline} {epoch.epoch_id} --reason …",
            )
        if (self._written, deleted) != (due.inserted + due.updated, due.deleted):
            raise TargetError(
                f"{epoch}: {due.inserted} rows were to be inserted into {what.sink}, {due.updated} updated and"
                f" {due.deleted} deleted, but {self._written} were written and {deleted} deleted: a trigger or rule of"
                " the table drops rows, or another program writes to it. Nothing was changed. Remove the trigger or"
                " stop the program and repeat the task, or abort the epoch.",
                f"run {epoch.pipeline}",
            )


def _write(what: Application, only: sql.Composable | None = None, *, in_turns: bool = False) -> int:
    """Write the winners that replace their target rows; in the turns ``f`` of `FATES`, if there are any."""
    values, columns, nothing = what.given("w"), set_columns(what), sql.SQL("")
    action: sql.Composable = sql.SQL("DO NOTHING")
    if columns:
        action = compose(
            "DO UPDATE SET {values} WHERE {changes} AND {replaces}",
            values=assigned(columns, "excluded"), changes=changes(what, "excluded"),
            replaces=replaces(what, "excluded", "t"),
        )  # fmt: skip
    turns = what.compose(" LEFT JOIN {fates} f ON {same}", same=same(what.sink.key, "f", "w"))
    return what.change(
        "WITH w AS ({winners}) INSERT INTO {target} AS t ({into}) SELECT {values} FROM w{turns} WHERE NOT w.{deleted}"
        " AND {not_deleted}{only} ORDER BY {turn}{sorted} ON CONFLICT ({key}) {action}",
        into=names(values), values=joined(values.values()), action=action,
        turns=turns if in_turns else nothing, turn=what.compose("f.{turn}, ") if in_turns else nothing,
        only=nothing if only is None else compose(" AND {only}", only=only), sorted=names(what.sink.key, "w"),
        not_deleted=not_deleted_since(what),
    )  # fmt: skip


def _has_remembered(what: Application) -> sql.Composable:
    return what.compose("EXISTS (SELECT FROM {side})") if what.order else sql.SQL("false")


def _delete(what: Application) -> int:
    """Delete the target's rows for which there is a newer tombstone."""
    return what.change(
        "WITH w AS ({winners}) DELETE FROM {target} AS t USING w WHERE w.{deleted} AND {same} AND {newer}",
        newer=replaces(what, "w", "t"),
    )


def _remember(what: Application) -> None:
    """Store key and order of every winning tombstone, so that an older record does not bring its key back.

    It is stored even if it deleted no row.
    """
    kept = [*what.sink.key, *what.order]
    what.change(
        "WITH w AS ({winners}) INSERT INTO {side} AS d ({kept}) SELECT {values} FROM w WHERE w.{deleted} ORDER BY"
        " {sorted} ON CONFLICT ({key}) DO UPDATE SET {assignments}, {deleted_at} = now() WHERE {newer}",
        deleted_at=DELETED_AT, kept=names(kept), values=names(kept, "w"), sorted=names(what.sink.key, "w"),
        assignments=assigned(what.order, "excluded"), newer=newer(what.order, "excluded", "d"),
    )  # fmt: skip


def _forget(what: Application) -> None:
    """Delete the keys that a newer record brought back from the table of deleted keys."""
    what.change(
        "WITH w AS ({winners}) DELETE FROM {side} d USING w WHERE NOT w.{deleted} AND {same} AND {newer}",
        same=same(what.sink.key, "d", "w"), newer=newer(what.order, "w", "d"),
    )  # fmt: skip
