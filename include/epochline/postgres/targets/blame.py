"""The records to blame if targets refuse an epoch: those without which all others can be applied.

Only the newest row of each key is a suspect: the others change nothing. A record is tried as a whole, with its rows for
every target, because it is left out as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import FOLLOWED
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application, names, same
from epochline.postgres.targets.exclusive import FATES, NUMBER, broken, exclusive_rules, is_exclusive, keep_fates
from epochline.postgres.targets.fates import winners
from epochline.postgres.targets.modes import take_all_away
from epochline.postgres.targets.refusals import (
    attempt,
    error_in_words,
    has_record,
    raised_by_code,
    refusal_by,
    refused_row,
    shown,
)
from epochline.postgres.targets.together import apply_together, in_order
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import RefusedRow, Search

_RECORDS = sql.Identifier("pg_temp", "epochline_trial_records")
_PLACE = ("_topic", "_partition", "_offset")
_FOREIGN_KEY = "23503"
_TAKEN = ("23505", "23P01")
"""A unique index, an exclusion constraint."""

_FIRST, _LAST = "epochline.trial_first", "epochline.trial_last"
"""Settings of the transaction: numbers of the first and the last record that are tried now."""

_PIECE = 1024
"""Most records that are tried at once: what is tried again after a refusal must stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """One target of the trial, with temporary tables of its staged rows, numbered by record or by themselves."""

    what: Application
    """The target with the rows that are left."""
    newest: Application
    """The target with the newest rows of each key."""
    chunk: Application
    """The target with those that are tried now."""

    @classmethod
    def of(cls, what: Application, at: int) -> _Table:
        """The ``at``-th target of a trial."""
        rows, newest, chunk = (
            replace(what, rows=sql.Identifier("pg_temp", f"epochline_trial_{at}_{part}"))
            for part in ("rows", "newest", "chunk")
        )
        if what.sink.mode == "replace":
            # The rows that are replaced go once: a chunk must not delete the rows of the chunk before it.
            chunk = replace(chunk, sink=what.sink.model_copy(update={"mode": "append"}))
        return cls(what=rows, newest=newest, chunk=chunk)


_Group = tuple[_Table, ...]
"""Targets whose rows are tried together: those with records, or one whose rows belong to no single record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unfit:
    """A record, or a row without one, that does not fit those before it."""

    group: int
    number: int
    table: _Table
    said: str
    reason: str
    raised: bool = False
    may_fit_later: bool = False


class Suspects:
    """The staged rows that are left of an epoch which its targets refuse."""

    def __init__(self, connection: Connection, tables: Sequence[Application], epoch: Epoch, search: Search) -> None:
        self._connection, self._epoch, self._search = connection, epoch, search
        self._tables = [_Table.of(what, at) for at, what in enumerate(in_order(tables))]
        with_record = tuple(table for table in self._tables if has_record(table.what))
        self._groups: list[_Group] = [(table,) for table in self._tables if table not in with_record]
        self._groups[:0] = [with_record] if with_record else []
        self._copy(with_record, in_order(tables))
        self._notes: dict[str | None, str] = {}
        """By constraint, why rows that exchange its values cannot be written."""

    @property
    def left(self) -> list[Application]:
        """The targets with the rows that are left."""
        return [table.what for table in self._tables]

    def blamed(self) -> list[RefusedRow]:
        """Blame records and leave them out; empty if none alone is to blame, or none was found in time."""
        for table in self._tables:
            newest = winners(table.what) if table.what.sink.mode == "upsert" else _all_of(table.what)
            self._make(table.newest, newest)
            self._view(table)
        execute_sql(self._connection, sql.SQL("SAVEPOINT search"))
        found = self._of_no_room() or self._unfit()
        execute_sql(self._connection, sql.SQL("ROLLBACK TO SAVEPOINT search"))
        return self._left_out(found)

    def _make(self, what: Application, rows: sql.Composable) -> None:
        execute_sql(self._connection, sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(what.staging))
        execute_sql(self._connection, sql.SQL("CREATE TABLE {} AS {}").format(what.staging, rows))
        number = sql.SQL("CREATE INDEX ON {} ({})").format(what.staging, sql.Identifier(NUMBER))
        execute_sql(self._connection, number)
        execute_sql(self._connection, sql.SQL("ANALYZE {}").format(what.staging))

    def _view(self, table: _Table) -> None:
        """Make the view of the rows that are tried now, by settings: making it for each try would take longer."""
        bounds = sql.SQL("current_setting({})::bigint AND current_setting({})::bigint")
        view = sql.SQL("CREATE TEMPORARY VIEW {} AS SELECT {} FROM {} WHERE {} BETWEEN {}").format(
            sql.Identifier(table.chunk.staging.strings[-1]), names(list(table.chunk.staged.columns)),
            table.newest.staging, sql.Identifier(NUMBER), bounds.format(sql.Literal(_FIRST), sql.Literal(_LAST)),
        )  # fmt: skip
        execute_sql(self._connection, view)

    def _copy(self, with_record: _Group, staged: Sequence[Application]) -> None:
        """Copy the staged rows; number records in their order, and rows without one in the order of their keys."""
        places = [
            sql.SQL("SELECT {} FROM {}").format(names(_PLACE), what.staging) for what in staged if has_record(what)
        ]
        if places:
            execute_sql(self._connection, sql.SQL("DROP TABLE IF EXISTS {}").format(_RECORDS))
            numbered = sql.SQL("CREATE TABLE {} AS SELECT *, row_number() OVER (ORDER BY {}) AS {} FROM ({}) p")
            execute_sql(
                self._connection,
                numbered.format(_RECORDS, names(_PLACE), sql.Identifier(NUMBER), sql.SQL(" UNION ").join(places)),
            )
        for table, what in zip(self._tables, staged, strict=True):
            columns = names(list(what.staged.columns), "s")
            if table in with_record:
                rows = sql.SQL("SELECT {}, r.{} FROM {} s JOIN {} r ON {}").format(
                    columns, sql.Identifier(NUMBER), what.staging, _RECORDS, same(_PLACE, "r", "s")
                )
            else:
                order = sql.SQL("ORDER BY {}").format(names(what.sink.key, "s")) if what.sink.key else sql.SQL("")
                rows = sql.SQL("SELECT {}, row_number() OVER ({}) AS {} FROM {} s").format(
                    columns, order, sql.Identifier(NUMBER), what.staging
                )
            self._make(table.what, rows)

    def _of_no_room(self) -> list[_Unfit]:
        """Records whose values another row holds in the end, whatever the order of statements.

        A trigger that changes rows makes others of them than staging shows, so those are tried.
        """
        found = []
        for group, tables in enumerate(self._groups):
            for table in tables:
                what = table.newest
                if what.sink.mode != "upsert" or not is_exclusive(what) or self._changes_rows(what):
                    continue
                keep_fates(self._connection, what)
                rules = exclusive_rules(self._connection, what)
                # An expression of an index may fail for a row; such a row is found by trying.
                takers = attempt(
                    self._connection, partial(broken, self._connection, what, self._epoch, rules), keep=False
                )
                if isinstance(takers, psycopg2.Error) or not takers:
                    continue
                numbers_of = sql.SQL("SELECT f.{number}, n.{number} FROM {newest} n JOIN {fates} f ON {same}").format(
                    number=sql.Identifier(NUMBER), newest=what.staging, fates=FATES,
                    same=same(what.sink.key, "n", "f"),
                )  # fmt: skip
                numbers = dict(execute_sql(self._connection, numbers_of)[1])
                for number, rule in takers:
                    said = f"{rule.violation} ({rule.name})"
                    found.append(_Unfit(group=group, number=numbers[number], table=table, said=said, reason=said))
        return found

    def _changes_rows(self, what: Application) -> bool:
        target = what.target
        return bool(run(self._connection, "code_of_table", oid=target.oid, state_triggers=FOLLOWED).one().changes_rows)

    def _unfit(self) -> list[_Unfit]:
        """Records that do not fit those before them, unless a later one makes room.

        If the search ends before that is known, a record that may fit later is not blamed.
        """
        for table in reversed(self._tables):
            if table.what.sink.mode == "replace":
                self._take_away(table.what)
        left = {group: self._numbers(group) for group in range(len(self._groups))}
        unfit: list[_Unfit] = []
        while True:
            waiting: list[_Unfit] = []
            for group, numbers in left.items():
                for one in self._by_halves(group, numbers, unfit):
                    (waiting if one.may_fit_later else unfit).append(one)
                    if not has_record(one.table.what):
                        break
            if not self._search.goes_on(len(unfit), 0):
                return unfit
            if not waiting or len(waiting) >= sum(map(len, left.values())):
                return unfit + waiting
            left = {group: [one.number for one in waiting if one.group == group] for group in left}
            for group, numbers in left.items():
                self._keep_only(group, numbers)

    def _keep_only(self, group: int, numbers: Sequence[int]) -> None:
        """Leave these records to be tried again: what is between two of them was applied."""
        for table in self._groups[group]:
            others = sql.SQL("DELETE FROM {} WHERE {} <> ALL ({}::bigint[])").format(
                table.newest.staging, sql.Identifier(NUMBER), sql.Literal(list(numbers))
            )
            execute_sql(self._connection, others)

    def _numbers(self, group: int) -> Sequence[int]:
        last = [
            execute_sql(
                self._connection,
                sql.SQL("SELECT coalesce(max({}), 0) FROM {}").format(sql.Identifier(NUMBER), table.what.staging),
            )[1][0][0]
            for table in self._groups[group]
        ]
        return range(1, max(last) + 1)

    def _take_away(self, what: Application) -> None:
        emptied = {one.what.target.place for one in self._tables if one.what.sink.mode == "replace"}
        done = attempt(self._connection, partial(take_all_away, self._connection, what, self._epoch, emptied))
        if isinstance(done, psycopg2.Error):
            raise refusal_by(done)(
                f"{self._epoch}: {what.sink} does not let its rows go: {error_in_words(done)[0]}. Nothing was sealed."
            )

    def _by_halves(self, group: int, numbers: Sequence[int], unfit: Sequence[_Unfit]) -> Iterator[_Unfit]:
        """Apply rows in pieces, and a piece that does not fit in halves; what fits stays applied."""
        checked = 0
        pieces = [numbers[at : at + _PIECE] for at in range(0, len(numbers), _PIECE)]
        left: list[tuple[Sequence[int], Sequence[int]]] = [(piece, ()) for piece in reversed(pieces)]
        while left and self._search.goes_on(len(unfit), checked, len(numbers)):
            tried, rest = left.pop()
            refused = self._refused(group, tried)
            if refused is None:
                # What did not fit together with these rows is the rest.
                left += [_halves(rest)] if rest else []
                checked += len(tried)
                continue
            left += [(rest, ())] if rest else []
            if len(tried) == 1:
                checked += 1
                yield refused
            else:
                left.append(_halves(tried))

    def _refused(self, group: int, numbers: Sequence[int]) -> _Unfit | None:
        """Apply the records of these numbers; the last of them if they do not fit, and then none is applied."""
        tables = self._groups[group]
        bounds = sql.SQL("SELECT set_config({}, {}, true), set_config({}, {}, true)").format(
            *map(sql.Literal, (_FIRST, str(numbers[0]), _LAST, str(numbers[-1])))
        )
        execute_sql(self._connection, bounds)
        at: list[Application | None] = []
        done = attempt(self._connection, partial(self._apply, [table.chunk for table in tables], at))
        if not isinstance(done, psycopg2.Error):
            return None
        notes = getattr(done, "__notes__", ())
        if notes:
            self._notes[done.diag.constraint_name] = notes[-1]
        elif done.diag.constraint_name in self._notes:
            done.add_note(self._notes[done.diag.constraint_name])
        said, reason = error_in_words(done)
        return _Unfit(
            group=group, number=numbers[-1], table=self._table_of(tables, at[-1], done), said=said, reason=reason,
            raised=raised_by_code(done), may_fit_later=_may_fit_later([table.what for table in tables], done),
        )  # fmt: skip

    def _apply(self, chunks: Sequence[Application], at: list[Application | None]) -> None:
        apply_together(self._connection, chunks, self._epoch, at.append)
        at.append(None)
        execute_sql(self._connection, sql.SQL("SET CONSTRAINTS ALL IMMEDIATE"))

    @staticmethod
    def _table_of(tables: _Group, at: Application | None, error: psycopg2.Error) -> _Table:
        """The table that refused: the one that was written, or the one that a constraint compared later names."""
        place = (error.diag.schema_name, error.diag.table_name) if at is None else at.target.place
        return next((table for table in tables if table.what.target.place == place), tables[0])

    def _left_out(self, found: Sequence[_Unfit]) -> list[RefusedRow]:
        """Leave rows out of what is left; returns them, a record once."""
        rows: list[RefusedRow] = []
        for group, tables in enumerate(self._groups):
            unfit = {one.number: one for one in reversed(found) if one.group == group}
            if not unfit:
                continue
            kept = {table.what.sink.table: self._shown(table.what, list(unfit)) for table in tables}
            for number, one in sorted(unfit.items()):
                what = next(t.what for t in (one.table, *tables) if number in kept[t.what.sink.table])
                refused = refused_row(what, one.said, f"{what.sink}: {one.reason}", *kept[what.sink.table][number])
                rows.append(replace(refused, raised=one.raised))
            for table in tables:
                gone = sql.SQL("DELETE FROM {} WHERE {} = ANY ({})").format(
                    table.what.staging, sql.Identifier(NUMBER), sql.Literal(list(unfit))
                )
                execute_sql(self._connection, gone)
        return rows

    def _shown(self, what: Application, numbers: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """By number, the columns of `shown` of one row of each record."""
        statement = sql.SQL(
            "SELECT n.{number}, {shown} FROM {rows} n CROSS JOIN LATERAL (SELECT {columns}) s"
            " WHERE n.{number} = ANY ({numbers})"
        ).format(
            number=sql.Identifier(NUMBER), shown=shown(what), rows=what.staging,
            columns=names(list(what.staged.columns), "n"), numbers=sql.Literal(list(numbers)),
        )  # fmt: skip
        return {number: tuple(row) for number, *row in execute_sql(self._connection, statement)[1]}


def _all_of(what: Application) -> sql.Composed:
    return sql.SQL("SELECT * FROM {}").format(what.staging)


def _halves(numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = (len(numbers) + 1) // 2
    return numbers[:middle], numbers[middle:]


def _may_fit_later(tables: Sequence[Application], error: psycopg2.Error) -> bool:
    """Whether another record may make room: write the row that a foreign key refers to, or give a value up."""
    if raised_by_code(error) or error.pgcode not in (_FOREIGN_KEY, *_TAKEN):
        return False
    if any(what.target.is_changed_by_others for what in tables):
        return True
    if error.pgcode in _TAKEN:
        return any(what.sink.mode == "upsert" for what in tables)
    at = (error.diag.schema_name, error.diag.table_name)
    parents = [
        key.parent
        for what in tables
        for key in what.target.foreign_keys
        if key.name == error.diag.constraint_name and key.child == at
    ]
    # A partition has foreign keys of its own.
    return not parents or any(what.target.place in parents for what in tables)
