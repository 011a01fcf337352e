"""Take the rows of epochs out of targets and put back what they replaced: UPDATE where a row remains (ADR 0039).

A key that is there before and after is never deleted, so that no foreign key of another table fires for it and its
identity stays. What must be deleted is refused if a foreign key would delete or change rows that refer to it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import psycopg2
from psycopg2 import errors, sql

from epochline.declare.names import deleted_keys_table, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import TargetError
from epochline.postgres.queries.statements import Connection, assigned, change, compose, joined, names, query, same
from epochline.postgres.targets.accounting import Check
from epochline.postgres.targets.application import order_of, remembers_deleted
from epochline.postgres.targets.catalog import Target, find_target
from epochline.postgres.targets.exclusive import exclusive_rules
from epochline.postgres.targets.fit import filled_columns
from epochline.postgres.targets.foreign_keys import (
    defer,
    harm_of_delete,
    harm_of_update,
    referred_columns,
    referring_first,
)
from epochline.postgres.targets.images import EXISTED, FATE, drop_image, images_of, kept_columns, rows_to_come_back

_FATES = {
    "goes": compose("{fate} IN ('gone', 'again')", fate=FATE),
    "comes": compose("{fate} IN ('new', 'again')", fate=FATE),
    "stays": compose("{fate} = 'changed'", fate=FATE),
}


def undo(connection: Connection, pipeline: Pipeline, epochs: Sequence[int]) -> tuple[dict[str, int], list[Check]]:
    """Undo epochs in every target of a pipeline. Other writers of the targets wait until the transaction ends.

    Tables that refer to others come first: their rows go before the rows that they refer to. If that breaks a foreign
    key, the other order is tried, in which rows come back before the rows that refer to them.

    Returns:
        By target, the number of rows changed; and the checks to make when the transaction has done everything else.

    Raises:
        TargetError: a row cannot go or come back, or would take rows of another table with it; nothing was changed.
    """
    order, targets = referring_first(connection, pipeline.targets)
    defer(connection, targets)
    for sink in order:
        change(connection, "LOCK TABLE {table} IN EXCLUSIVE MODE", table=sql.Identifier(*split_table(sink.table)))
    change(connection, "SAVEPOINT undo")
    try:
        return _undo_in(connection, pipeline, order, epochs)
    except errors.ForeignKeyViolation:
        change(connection, "ROLLBACK TO SAVEPOINT undo")
    try:
        return _undo_in(connection, pipeline, order[::-1], epochs)
    except errors.ForeignKeyViolation as error:
        raise TargetError(
            f"{pipeline.name}: the rows of epochs {_listed(epochs)} cannot be undone: foreign key"
            f" {error.diag.constraint_name} of {error.diag.table_name} forbids it. Nothing was changed. Take away the"
            " rows that refer to the epochs' rows, or let the foreign key be DEFERRABLE INITIALLY DEFERRED.",
            f"plan {pipeline.name}",
        ) from None


def _undo_in(
    connection: Connection, pipeline: Pipeline, order: Sequence[PostgresTable], epochs: Sequence[int]
) -> tuple[dict[str, int], list[Check]]:
    changed, checks = {}, []
    for sink in order:
        of_sink = _Undo(connection, pipeline, sink, epochs)
        changed[sink.table] = of_sink.take_out() if sink.mode == "append" else of_sink.put_back()
        checks += of_sink.checks
    return changed, checks


class _Undo:
    """The undoing of epochs in one target."""

    def __init__(self, connection: Connection, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> None:
        self._connection, self._pipeline, self._sink, self._epochs = connection, pipeline, sink, epochs
        self._target = self._find(sink.table, "the table")
        self.checks: list[Check] = []

    def _find(self, table: str, subject: str) -> Target:
        target = find_target(self._connection, table)
        if target is None:
            raise self._refusal(f"{subject} is gone", "Bring it back.")
        return target

    def take_out(self) -> int:
        """Delete the rows of the epochs from an append target."""
        parts: dict[str, Any] = {"target": self._target.identifier, "epochs": list(self._epochs)}
        parts["rows"] = compose("SELECT * FROM {target} WHERE _epoch = ANY ({epochs})", **parts)
        leaving = compose("r._epoch = ANY ({epochs})", **parts)
        self._refuse_harm(harm_of_delete(self._connection, self._target, parts["rows"], leaving))
        # A replay that takes the place of the epoch writes a higher number than any.
        parts["newest"] = self._number("SELECT coalesce(max(_epoch), 0) FROM {target}", **parts)
        counts = (
            "SELECT (SELECT count(*) FROM ({rows}) t), (SELECT count(*) FROM {target}"
            " WHERE (_epoch = ANY ({epochs})) IS NOT TRUE AND coalesce(_epoch, 0) <= {newest})"
        )
        [(due, others)] = self._rows(counts, **parts)
        deleted = self._changed("DELETE FROM {target} WHERE _epoch = ANY ({epochs})", **parts)
        if deleted != due:
            raise self._swallowed(f"{due} rows were to be deleted, and {deleted} were")

        def check() -> None:
            find_target(self._connection, self._sink.table)
            [(left, kept)] = self._rows(counts, **parts)
            if left or kept != others:
                raise self._swallowed(f"{left} of their rows are still there, and of {others} other rows {kept}")

        self.checks.append(check)
        return deleted

    def put_back(self) -> int:
        """Put back the rows that the epochs replaced in an upsert or add target, from their before-images."""
        kept = images_of(self._connection, self._pipeline, self._sink)
        images = {epoch: image for epoch, image in kept.items() if epoch in self._epochs}
        if not images:
            return 0
        # The columns that the pipeline writes. A trigger may set others, such as the time of a change.
        filled = filled_columns(self._connection, self._pipeline, self._sink, self._target)
        watched = {*filled, *self._sink.added_columns, *order_of(self._sink)} & set(self._target.columns)
        changed = self._put_back(self._target, [rows for rows, _ in images.values()], watched)
        if remembers_deleted(self._sink):
            name = f"epochline.{deleted_keys_table(self._pipeline.name, self._sink.table)}"
            side = self._find(name, "its side table of deleted keys")
            self._put_back(side, [deleted_keys for _, deleted_keys in images.values()], set(side.columns))
        for epoch_id in images:
            drop_image(self._connection, self._pipeline, self._sink, epoch_id)
        return changed

    def _put_back(self, table: Target, images: Sequence[sql.Identifier], watched: set[str]) -> int:
        back = rows_to_come_back(self._connection, self._sink.key, table, images)
        counts = self._fates(back)
        self._refuse_lost_identities(table, back)
        self._refuse_harm(self._harm(table, back))
        rows = self._number("SELECT count(*) FROM {table}", table=table.identifier) + counts["new"] - counts["gone"]
        done = self._exchange(table, back)
        fates = self._fates(back)
        due = (fates["gone"] + fates["again"], fates["changed"], fates["new"] + fates["again"])
        if done != due:
            raise self._swallowed(
                "{} rows were to be deleted, {} updated and {} inserted, and {} were deleted, {} updated and {}"
                " inserted".format(*due, *done)
            )
        self.checks.append(lambda: self._refuse_difference(table, back, watched, rows))
        return counts.total() - counts["same"]

    def _fates(self, back: sql.Identifier) -> Counter[str]:
        return Counter(dict(self._rows("SELECT {fate}, count(*) FROM {back} GROUP BY 1", fate=FATE, back=back)))

    def _refuse_lost_identities(self, table: Target, back: sql.Identifier) -> None:
        fixed = [name for name, column in table.columns.items() if not column.writable and not column.generated]
        missing = joined((compose("{c} IS NULL", c=name) for name in fixed), " OR ")
        lost = "SELECT 1 FROM {back} WHERE {comes} AND ({missing}) LIMIT 1"
        if fixed and self._rows(lost, back=back, missing=missing, **_FATES):
            lack = (
                f"before-images of an earlier release lack {', '.join(fixed)}: PostgreSQL would draw other identities"
            )
            raise self._refusal(f"rows must be inserted, and {lack}", "Go back to a later savepoint.")

    def _harm(self, table: Target, back: sql.Identifier) -> str | None:
        """Why the rows may not be exchanged: rows of other tables would be deleted or changed."""
        key = self._sink.key
        rows = "SELECT t.* FROM {table} t JOIN {back} b ON {same} WHERE {which}"
        parts = {"table": table.identifier, "back": back, "same": same(key, "t", "b")}
        moving = "EXISTS (SELECT FROM {back} b WHERE {same} AND b.{fate} IN ('gone', 'again', 'changed'))"
        leaving = compose(moving, back=back, same=same(key, "r", "b"), fate=FATE)
        harm = harm_of_delete(self._connection, table, compose(rows, **parts, which=_FATES["goes"]), leaving)
        columns = sorted(referred_columns(table) - set(key))
        if harm is not None or not columns:
            return harm
        differs = compose(" AND ({t}) IS DISTINCT FROM ({b})", t=names(columns, "t"), b=names(columns, "b"))
        return harm_of_update(self._connection, table, compose(rows, **parts, which=_FATES["stays"] + differs))

    def _exchange(self, table: Target, back: sql.Identifier) -> tuple[int, int, int]:
        """Delete, update and insert; if values of a unique column change places, through NULL or by new rows."""
        change(self._connection, "SAVEPOINT exchange")
        rule = None
        ways: list[Callable[[Target, sql.Identifier], bool]] = [lambda *_: True, self._empty, self._insert_again]
        for number, way in enumerate(ways):
            try:
                if way(table, back):
                    return self._statement(table, back)
            except psycopg2.IntegrityError as error:
                if number == 0 and not isinstance(error, errors.UniqueViolation | errors.ExclusionViolation):
                    raise
                rule = error.diag.constraint_name or rule
            change(self._connection, "ROLLBACK TO SAVEPOINT exchange")
        raise self._refusal(
            f"values that {rule} keeps unique change places between rows, and no order of updates keeps to it",
            "Let its columns take NULL, let no foreign key refer to them, or let it be DEFERRABLE INITIALLY DEFERRED.",
        )

    def _empty(self, table: Target, back: sql.Identifier) -> bool:
        """Give up the values of unique columns outside the key, if they take NULL and no foreign key refers to them."""
        key = self._sink.key
        unique = {name for rule in exclusive_rules(self._connection, table, key) for name in rule.read} - set(key)
        free = {name for name in unique if not table.columns[name].not_null and not table.columns[name].generated}
        if not free or referred_columns(table) & free:
            return False
        nulls = joined(compose("{c} = NULL", c=name) for name in sorted(free))
        self._changed(
            "UPDATE {table} t SET {nulls} FROM {back} b WHERE {same} AND ({goes} OR {stays})",
            table=table.identifier, back=back, same=same(key, "t", "b"), nulls=nulls, **_FATES,
        )  # fmt: skip
        return True

    def _insert_again(self, table: Target, back: sql.Identifier) -> bool:
        """Let changed rows be deleted and inserted with all their columns, if nothing else sees the difference."""
        if table.sees_rewriting:
            return False
        self._changed("UPDATE {back} SET {fate} = 'again' WHERE {stays}", back=back, fate=FATE, **_FATES)
        self._refuse_lost_identities(table, back)
        return self._harm(table, back) is None

    def _statement(self, table: Target, back: sql.Identifier) -> tuple[int, int, int]:
        """One statement, so that foreign keys of the table to itself see the rows as they are in the end.

        Each part waits for the part before it: a unique value is free before another row takes it.
        """
        key, columns = self._sink.key, kept_columns(self._connection, table.identifier)
        settable = [name for name in columns if name not in key and table.columns[name].writable]
        parts = {"table": table.identifier, "back": back, "same": same(key, "t", "b"), "columns": names(columns)}
        update: sql.Composable = sql.SQL("SELECT 1 WHERE (SELECT count(*) FROM d) < 0")
        if settable:
            update = compose(
                "UPDATE {table} t SET {values} FROM {back} b WHERE {same} AND {stays} AND (SELECT count(*) FROM d) >= 0"
                " RETURNING 1",
                values=assigned(settable, "b"), **parts, **_FATES,
            )  # fmt: skip
        try:
            [(deleted, updated, inserted)] = self._rows(
                "WITH d AS (DELETE FROM {table} t USING {back} b WHERE {same} AND {goes} RETURNING 1), u AS ({update}),"
                " i AS (INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {back}"
                " WHERE {comes} AND (SELECT count(*) FROM u) >= 0 RETURNING 1)"
                " SELECT (SELECT count(*) FROM d), (SELECT count(*) FROM u), (SELECT count(*) FROM i)",
                update=update, **parts, **_FATES,
            )  # fmt: skip
        except errors.FeatureNotSupported:
            raise self._refusal("a rewrite rule of the table takes its statements", "Drop the rule.") from None
        return int(deleted), int(updated), int(inserted)

    def _refuse_difference(self, table: Target, back: sql.Identifier, watched: set[str], rows: int) -> None:
        """Compare the table with what was to come back, in both directions. Nobody else writes to it meanwhile."""
        find_target(self._connection, self._sink.table)
        key = self._sink.key
        values = sorted(watched - set(key)) or list(key)
        wrong = self._number(
            "SELECT count(*) FROM {back} b LEFT JOIN {table} t ON {same} WHERE b.{existed} <> (t.{first} IS NOT NULL)"
            " OR b.{existed} AND ROW({now})::record *<> ROW({due})::record",
            back=back, table=table.identifier, same=same(key, "t", "b"), existed=EXISTED, first=key[0],
            now=names(values, "t"), due=names(values, "b"),
        )  # fmt: skip
        present = self._number("SELECT count(*) FROM {table}", table=table.identifier)
        if wrong or present != rows:
            keys = f"{wrong} keys are not as they were before the epochs"
            raise self._swallowed(f"{keys}, and of {rows} rows {present} are there")

    def _refuse_harm(self, harm: str | None) -> None:
        if harm is not None:
            remedy = "Take away those rows, or let the foreign key be NO ACTION."
            raise self._refusal(f"rows that they inserted must be deleted: {harm}", remedy)

    def _swallowed(self, difference: str) -> TargetError:
        return self._refusal(
            f"{difference}: a trigger, a rule or row-level security keeps, changes or adds rows", "Remove it."
        )

    def _refusal(self, why: str, remedy: str) -> TargetError:
        undone = f"{self._sink}: the rows of epochs {_listed(self._epochs)} cannot be undone"
        return TargetError(f"{undone}: {why}. Nothing was changed. {remedy}", f"plan {self._pipeline.name}")

    def _rows(self, statement: str, **parts: object) -> list[tuple[Any, ...]]:
        return query(self._connection, statement, **parts)

    def _number(self, statement: str, **parts: object) -> int:
        return int(query(self._connection, statement, **parts)[0][0])

    def _changed(self, statement: str, **parts: object) -> int:
        return change(self._connection, statement, **parts)


def _listed(epochs: Sequence[int]) -> str:
    return ", ".join(map(str, epochs))
