"""Take the rows of epochs out of targets and put back what they replaced: UPDATE where a row remains (ADR 0039).

A key that is there before and after is never deleted, so that no foreign key of another table fires for it and its
identity stays. What must be deleted is refused if a foreign key would delete or change rows that refer to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg2
from psycopg2 import errors, sql
from sqlalchemy import Connection

from epochline.declare.names import FOLLOWED, deleted_keys_table, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import TargetError
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.accounting import Check
from epochline.postgres.targets.application import names, same
from epochline.postgres.targets.catalog import Target, filled_columns, find_target, order_of, remembers_deleted
from epochline.postgres.targets.foreign_keys import defer
from epochline.postgres.targets.images import (
    EXISTED,
    FATE,
    assigned,
    drop_image,
    images_of,
    kept_columns,
    rows_to_come_back,
)
from epochline.postgres.targets.references import (
    harm_of_delete,
    harm_of_update,
    referred_columns,
    referring_first,
)

_GOES = sql.SQL("{} IN ('gone', 'again')").format(FATE)
_COMES = sql.SQL("{} IN ('new', 'again')").format(FATE)
_STAYS = sql.SQL("{} = 'changed'").format(FATE)


def undo(connection: Connection, pipeline: Pipeline, epochs: Sequence[int]) -> tuple[dict[str, int], list[Check]]:
    """Undo epochs in every target of a pipeline. Other writers of the targets wait until the transaction ends.

    Tables that refer to others come first: their rows go before the rows that they refer to. If that breaks a foreign
    key, the other order is tried, in which rows come back before the rows that refer to them.

    Returns:
        By target, the number of rows changed; and the checks to make when the transaction has done everything else.

    Raises:
        TargetError: a row cannot go or come back, or would take rows of another table with it; nothing was changed.
    """
    order = referring_first(connection, pipeline.targets)
    targets = [find_target(connection, sink.table) for sink in order]
    defer(connection, [target for target in targets if target is not None])
    for sink in order:
        execute_sql(connection, sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(_name(sink)))
    execute_sql(connection, sql.SQL("SAVEPOINT undo"))
    try:
        return _undo_in(connection, pipeline, order, epochs)
    except errors.ForeignKeyViolation:
        execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT undo"))
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
        target = find_target(connection, sink.table)
        if target is None:
            raise self._refusal("the table is gone", "Bring it back.")
        self._target: Target = target
        self.checks: list[Check] = []

    def take_out(self) -> int:
        """Delete the rows of the epochs from an append target."""
        target = self._target.identifier
        ours = sql.SQL("{} = ANY ({})")
        written = ours.format(sql.Identifier("_epoch"), sql.Literal(list(self._epochs)))
        leaving = ours.format(sql.Identifier("r", "_epoch"), sql.Literal(list(self._epochs)))
        rows = sql.SQL("SELECT * FROM {} WHERE {}").format(target, written)
        self._refuse_harm(harm_of_delete(self._connection, self._target, rows, leaving))
        due = self._number(sql.SQL("SELECT count(*) FROM ({}) t").format(rows))
        # A replay that takes the place of the epoch writes a higher number than any.
        newest = self._number(sql.SQL("SELECT coalesce(max(_epoch), 0) FROM {}").format(target))
        others = sql.SQL("SELECT count(*) FROM {} WHERE ({}) IS NOT TRUE AND coalesce(_epoch, 0) <= {}").format(
            target, written, sql.Literal(newest)
        )
        stays = self._number(others)
        gone = self._changed(sql.SQL("DELETE FROM {} WHERE {}").format(target, written))
        if gone != due:
            raise self._swallowed(f"{due} rows were to be deleted, and {gone} were")

        def check() -> None:
            find_target(self._connection, self._sink.table)
            left, kept = self._number(sql.SQL("SELECT count(*) FROM ({}) t").format(rows)), self._number(others)
            if left or kept != stays:
                raise self._swallowed(f"{left} of their rows are still there, and of {stays} other rows {kept}")

        self.checks.append(check)
        return gone

    def put_back(self) -> int:
        """Put back the rows that the epochs replaced in an upsert or add target, from their before-images."""
        images = images_of(self._connection, self._pipeline, self._sink, self._epochs)
        if not images:
            return 0
        changed = self._put_back(self._target, [image.rows for image in images], self._watched())
        if remembers_deleted(self._sink):
            name = f"epochline.{deleted_keys_table(self._pipeline.name, self._sink.table)}"
            side = find_target(self._connection, name)
            if side is None:
                raise self._refusal("its side table of deleted keys is gone", "Bring it back.")
            self._put_back(side, [image.deleted_keys for image in images], set(side.columns))
        for image in images:
            drop_image(self._connection, self._pipeline, self._sink, image)
        return changed

    def _watched(self) -> set[str]:
        """The columns that the pipeline writes. A trigger may set others, such as the time of a change."""
        filled = filled_columns(self._connection, self._pipeline, self._sink, self._target)
        return {*filled, *self._sink.added_columns, *order_of(self._sink)} & set(self._target.columns)

    def _put_back(self, table: Target, images: Sequence[sql.Identifier], watched: set[str]) -> int:
        back = rows_to_come_back(self._connection, self._sink.key, table, images)
        counts = self._fates(back)
        self._refuse_lost_identities(table, back)
        self._refuse_harm(self._harm(table, back))
        rows = self._number(sql.SQL("SELECT count(*) FROM {}").format(table.identifier))
        rows += counts["new"] - counts["gone"]
        done, due = self._exchange(table, back), self._due(back)
        if done != due:
            raise self._swallowed(
                f"{due[0]} rows were to be deleted, {due[1]} updated and {due[2]} inserted, and {done[0]} were deleted,"
                f" {done[1]} updated and {done[2]} inserted"
            )
        self.checks.append(lambda: self._refuse_difference(table, back, watched, rows))
        return counts.total() - counts["same"]

    def _fates(self, back: sql.Identifier) -> Counter[str]:
        fates = sql.SQL("SELECT {fate}, count(*) FROM {back} GROUP BY 1").format(fate=FATE, back=back)
        return Counter({str(fate): int(rows) for fate, rows in self._rows(fates)})

    def _due(self, back: sql.Identifier) -> tuple[int, int, int]:
        """The rows to be deleted, updated and inserted."""
        counts = self._fates(back)
        return counts["gone"] + counts["again"], counts["changed"], counts["new"] + counts["again"]

    def _refuse_lost_identities(self, table: Target, back: sql.Identifier) -> None:
        fixed = [name for name, column in table.columns.items() if not column.writable and not column.generated]
        if not fixed:
            return
        lost = sql.SQL("SELECT 1 FROM {} WHERE {} AND ({}) LIMIT 1").format(
            back, _COMES, sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in fixed)
        )
        if self._rows(lost):
            raise self._refusal(
                f"rows must be inserted, and before-images of an earlier release lack {', '.join(fixed)}: PostgreSQL"
                " would draw other identities",
                "Go back to a later savepoint.",
            )

    def _harm(self, table: Target, back: sql.Identifier) -> str | None:
        """Why the rows may not be exchanged: rows of other tables would be deleted or changed."""
        key = self._sink.key
        rows = sql.SQL("SELECT t.* FROM {table} t JOIN {back} b ON {same} WHERE {which}")
        parts = {"table": table.identifier, "back": back, "same": same(key, "t", "b")}
        leaving = sql.SQL("EXISTS (SELECT FROM {back} b WHERE {same} AND b.{fate} IN ('gone', 'again', 'changed'))")
        harm = harm_of_delete(
            self._connection, table, rows.format(**parts, which=_GOES),
            leaving.format(back=back, same=same(key, "r", "b"), fate=FATE),
        )  # fmt: skip
        other = sorted(referred_columns(table) - set(key))
        if harm is not None or not other:
            return harm
        moved = sql.SQL("{} AND ({}) IS DISTINCT FROM ({})").format(_STAYS, names(other, "t"), names(other, "b"))
        return harm_of_update(self._connection, table, rows.format(**parts, which=moved))

    def _exchange(self, table: Target, back: sql.Identifier) -> tuple[int, int, int]:
        """Delete, update and insert; if values of a unique column change places, through NULL or by new rows."""
        execute_sql(self._connection, sql.SQL("SAVEPOINT exchange"))
        try:
            return self._statement(table, back)
        except (errors.UniqueViolation, errors.ExclusionViolation) as error:
            said = error.diag.constraint_name
        execute_sql(self._connection, sql.SQL("ROLLBACK TO SAVEPOINT exchange"))
        unique = run(self._connection, "nullable_columns_of_unique_rules", oid=table.oid).scalars()
        free = [name for name in unique if name not in self._sink.key]
        try:
            if free and not referred_columns(table) & set(free):
                emptied = sql.SQL("UPDATE {table} t SET {nulls} FROM {back} b WHERE {same} AND ({goes} OR {stays})")
                self._changed(
                    emptied.format(
                        table=table.identifier, back=back, same=same(self._sink.key, "t", "b"), goes=_GOES,
                        stays=_STAYS,
                        nulls=sql.SQL(", ").join(sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in free),
                    )
                )  # fmt: skip
                return self._statement(table, back)
        except psycopg2.IntegrityError as error:
            said = error.diag.constraint_name or said
        execute_sql(self._connection, sql.SQL("ROLLBACK TO SAVEPOINT exchange"))
        try:
            if self._may_insert_again(table, back):
                return self._statement(table, back)
        except psycopg2.IntegrityError as error:
            said = error.diag.constraint_name or said
        raise self._refusal(
            f"values that {said} keeps unique change places between rows, and no order of updates keeps to it",
            "Let its columns take NULL, let no foreign key refer to them, or let it be DEFERRABLE INITIALLY DEFERRED.",
        )

    def _may_insert_again(self, table: Target, back: sql.Identifier) -> bool:
        """Let changed rows be deleted and inserted with all their columns, if nothing else sees the difference."""
        code = run(self._connection, "code_of_table", oid=table.oid, state_triggers=FOLLOWED).one()
        if code.sees_rewriting:
            return False
        again = sql.SQL("UPDATE {back} SET {fate} = 'again' WHERE {stays}")
        self._changed(again.format(back=back, fate=FATE, stays=_STAYS))
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
            update = sql.SQL(
                "UPDATE {table} t SET {values} FROM {back} b WHERE {same} AND {stays} AND (SELECT count(*) FROM d) >= 0"
                " RETURNING 1"
            ).format(**parts, values=assigned(settable, "b"), stays=_STAYS)
        statement = sql.SQL(
            "WITH d AS (DELETE FROM {table} t USING {back} b WHERE {same} AND {goes} RETURNING 1), u AS ({update}),"
            " i AS (INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {back}"
            " WHERE {comes} AND (SELECT count(*) FROM u) >= 0 RETURNING 1)"
            " SELECT (SELECT count(*) FROM d), (SELECT count(*) FROM u), (SELECT count(*) FROM i)"
        ).format(**parts, goes=_GOES, update=update, comes=_COMES)
        try:
            [(deleted, updated, inserted)] = self._rows(statement)
        except errors.FeatureNotSupported:
            raise self._refusal("a rewrite rule of the table takes its statements", "Drop the rule.") from None
        return int(deleted), int(updated), int(inserted)

    def _refuse_difference(self, table: Target, back: sql.Identifier, watched: set[str], rows: int) -> None:
        """Compare the table with what was to come back, in both directions. Nobody else writes to it meanwhile."""
        find_target(self._connection, self._sink.table)
        values = sorted(watched - set(self._sink.key)) or list(self._sink.key)
        wrong = self._number(
            sql.SQL(
                "SELECT count(*) FROM {back} b LEFT JOIN {table} t ON {same} WHERE b.{existed} <> ({first} IS NOT NULL)"
                " OR b.{existed} AND ROW({now})::record *<> ROW({due})::record"
            ).format(
                back=back, table=table.identifier, same=same(self._sink.key, "t", "b"),
                existed=sql.Identifier(EXISTED), first=sql.Identifier("t", self._sink.key[0]), now=names(values, "t"),
                due=names(values, "b"),
            )
        )  # fmt: skip
        there = self._number(sql.SQL("SELECT count(*) FROM {}").format(table.identifier))
        if wrong or there != rows:
            raise self._swallowed(
                f"{wrong} keys are not as they were before the epochs, and of {rows} rows {there} are there"
            )

    def _refuse_harm(self, harm: str | None) -> None:
        if harm is not None:
            raise self._refusal(
                f"rows that they inserted must be deleted: {harm}",
                "Take away those rows, or let the foreign key be NO ACTION.",
            )

    def _swallowed(self, said: str) -> TargetError:
        return self._refusal(
            f"{said}: a trigger, a rule or row-level security keeps, changes or adds rows", "Remove it."
        )

    def _refusal(self, said: str, remedy: str) -> TargetError:
        return TargetError(
            f"{self._sink}: the rows of epochs {_listed(self._epochs)} cannot be undone: {said}. Nothing was changed."
            f" {remedy}",
            f"plan {self._pipeline.name}",
        )

    def _rows(self, statement: sql.Composable) -> list[tuple[Any, ...]]:
        return execute_sql(self._connection, statement)[1]

    def _number(self, statement: sql.Composable) -> int:
        return int(execute_sql(self._connection, statement)[1][0][0])

    def _changed(self, statement: sql.Composable) -> int:
        return execute_sql(self._connection, statement)[0]


def _name(sink: PostgresTable) -> sql.Identifier:
    return sql.Identifier(*split_table(sink.table))


def _listed(epochs: Sequence[int]) -> str:
    return ", ".join(map(str, epochs))
