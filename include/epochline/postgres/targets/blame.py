"""The records to blame if targets refuse an epoch: those without which all others can be applied.

Only the newest row of each key is a suspect: the others change nothing. A record is tried as a whole, with its rows for
every target, because it is left out as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
    rows_where,
)
from epochline.postgres.targets.together import apply_together, in_order
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import RefusedRow

_RECORDS = sql.Identifier("pg_temp", "epochline_trial_records")
_PLACE = ("_topic", "_partition", "_offset")
_MAY_FIT_LATER = ("23503", "23505", "23P01")
"""A foreign key, a unique index, an exclusion constraint: another record may make room."""

_MANY = 4
"""How many times the most records to blame may wait for others before the search ends."""


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

    def __init__(self, connection: Connection, tables: Sequence[Application], epoch: Epoch) -> None:
        self._connection, self._epoch = connection, epoch
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

    def blamed(self, most: int) -> list[RefusedRow]:
        """Blame records and leave them out; empty if none alone is to blame."""
        for table in self._tables:
            newest = winners(table.what) if table.what.sink.mode == "upsert" else _all_of(table.what)
            self._make(table.newest, newest)
        execute_sql(self._connection, sql.SQL("SAVEPOINT search"))
        found = self._of_no_room() or self._unfit(most)
        execute_sql(self._connection, sql.SQL("ROLLBACK TO SAVEPOINT search"))
        return self._left_out(found[:most])

    def _make(self, what: Application, rows: sql.Composable) -> None:
        self._drop(what)
        execute_sql(self._connection, sql.SQL("CREATE TABLE {} AS {}").format(what.staging, rows))
        number = sql.SQL("CREATE INDEX ON {} ({})").format(what.staging, sql.Identifier(NUMBER))
        execute_sql(self._connection, number)

    def _drop(self, what: Application, kind: str = "TABLE") -> None:
        execute_sql(self._connection, sql.SQL(f"DROP {kind} IF EXISTS {{}} CASCADE").format(what.staging))

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
                meetings = attempt(
                    self._connection, partial(broken, self._connection, what, self._epoch, rules), keep=False
                )
                for meeting in [] if isinstance(meetings, psycopg2.Error) else meetings:
                    said = f"{meeting.rule.violation} ({meeting.rule.name})"
                    number_of = sql.SQL(
                        "SELECT n.{number} FROM {newest} n JOIN {fates} f ON {same} WHERE f.{number} = {taker}"
                    ).format(
                        number=sql.Identifier(NUMBER), newest=what.staging, fates=FATES,
                        same=same(what.sink.key, "n", "f"), taker=sql.Literal(meeting.taker),
                    )  # fmt: skip
                    [(number,)] = execute_sql(self._connection, number_of)[1]
                    found.append(_Unfit(group=group, number=number, table=table, said=said, reason=said))
        return found

    def _changes_rows(self, what: Application) -> bool:
        target = what.target
        return bool(run(self._connection, "code_of_table", oid=target.oid, state_triggers=FOLLOWED).one().changes_rows)

    def _unfit(self, most: int) -> list[_Unfit]:
        """Records that do not fit those before them, found by halves, unless a later one makes room."""
        for table in reversed(self._tables):
            if table.what.sink.mode == "replace":
                self._take_away(table.what)
        left: list[tuple[int, Sequence[int]]] = [(group, self._numbers(group)) for group in range(len(self._groups))]
        unfit: list[_Unfit] = []
        while True:
            waiting: list[_Unfit] = []
            for group, numbers in left:
                for one in self._by_halves(group, numbers):
                    (waiting if one.may_fit_later else unfit).append(one)
                    if len(unfit) >= most or len(waiting) >= _MANY * most or not has_record(one.table.what):
                        break
            if not waiting or len(waiting) >= sum(len(numbers) for _, numbers in left):
                return unfit + waiting
            again = {group: [one.number for one in waiting if one.group == group] for group, _ in left}
            left = [(group, numbers) for group, numbers in again.items() if numbers]

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

    def _by_halves(self, group: int, numbers: Sequence[int]) -> Iterator[_Unfit]:
        """Apply rows in halves; what fits stays applied."""
        left = [numbers] if numbers else []
        while left:
            tried = left.pop()
            unfit = self._refused(group, tried)
            if unfit is None:
                continue
            if len(tried) == 1:
                yield unfit
            else:
                middle = len(tried) // 2
                left += [tried[middle:], tried[:middle]]

    def _refused(self, group: int, numbers: Sequence[int]) -> _Unfit | None:
        """Apply the records of these numbers; the last of them if they do not fit, and then none is applied."""
        tables = self._groups[group]
        which = sql.SQL("= ANY ({})").format(sql.Literal(list(numbers)))
        if isinstance(numbers, range):
            which = sql.SQL("BETWEEN {} AND {}").format(sql.Literal(numbers[0]), sql.Literal(numbers[-1]))
        for table in tables:
            columns = names(list(table.chunk.staged.columns))
            view = sql.SQL("CREATE OR REPLACE TEMPORARY VIEW {} AS SELECT {} FROM {} WHERE {} {}").format(
                sql.Identifier(table.chunk.staging.strings[-1]),
                columns,
                table.newest.staging,
                sql.Identifier(NUMBER),
                which,
            )
            execute_sql(self._connection, view)
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
            raised=raised_by_code(done), may_fit_later=done.pgcode in _MAY_FIT_LATER and not raised_by_code(done),
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
        rows: dict[tuple[int, int], RefusedRow] = {}
        for one in found:
            for table in (one.table, *self._groups[one.group]):
                source = sql.SQL("(SELECT {} FROM {} WHERE {} = {})").format(
                    names(list(table.what.staged.columns)), table.what.staging, sql.Identifier(NUMBER),
                    sql.Literal(one.number),
                )  # fmt: skip
                refused = rows_where(self._connection, table.what, sql.SQL("true"), one.said, source)
                if refused:
                    reason = f"{table.what.sink}: {one.reason}"
                    row = replace(refused[0], reason=reason, raised=one.raised)
                    rows.setdefault((one.group, one.number), row)
                    break
        for group, tables in enumerate(self._groups):
            numbers = sorted(number for at, number in rows if at == group)
            for table in tables if numbers else ():
                gone = sql.SQL("DELETE FROM {} WHERE {} = ANY ({})").format(
                    table.what.staging, sql.Identifier(NUMBER), sql.Literal(numbers)
                )
                execute_sql(self._connection, gone)
        return list(rows.values())


def _all_of(what: Application) -> sql.Composed:
    return sql.SQL("SELECT * FROM {}").format(what.staging)
