"""The records to blame if targets refuse an epoch: those without which all others can be applied.

Only the newest row of each key is a suspect: the others change nothing. A record is tried as a whole, with its rows for
every target, because it is left out as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import DELETED
from epochline.declare.names import FOLLOWED
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application, names, same
from epochline.postgres.targets.exclusive import FATES, NUMBER, broken, exclusive_rules, is_exclusive, keep_fates
from epochline.postgres.targets.fates import winners
from epochline.postgres.targets.foreign_keys import ForeignKey
from epochline.postgres.targets.modes import take_all_away
from epochline.postgres.targets.pieces import Group, Pieces, TriedTable, Unfit, Waits
from epochline.postgres.targets.refusals import (
    attempt,
    error_in_words,
    has_record,
    refusal_by,
    refused_row,
    shown,
)
from epochline.postgres.targets.together import in_order
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import RefusedRow, Search

_RECORDS = sql.Identifier("pg_temp", "epochline_trial_records")
_PLACE = ("_topic", "_partition", "_offset")


class Suspects:
    """The staged rows that are left of an epoch which its targets refuse."""

    def __init__(self, connection: Connection, tables: Sequence[Application], epoch: Epoch, search: Search) -> None:
        self._connection, self._epoch, self._search = connection, epoch, search
        self._tables = [TriedTable.of(what, at) for at, what in enumerate(in_order(tables))]
        with_record = tuple(table for table in self._tables if has_record(table.what))
        self._groups: list[Group] = [(table,) for table in self._tables if table not in with_record]
        self._groups[:0] = [with_record] if with_record else []
        self._copy(with_record, in_order(tables))
        self._pieces = Pieces(connection, self._groups, epoch, search)
        for table in self._tables:
            # Made once: each table that a transaction makes holds a lock until its end, also when it is dropped.
            for part in (table.newest, table.older):
                self._make(part, sql.SQL("SELECT * FROM {} WHERE false").format(table.what.staging))
            self._pieces.make_view(table)

    @property
    def left(self) -> list[Application]:
        """The targets with the rows that are left."""
        return [table.what for table in self._tables]

    def blamed(self) -> list[RefusedRow]:
        """Blame records and leave them out; empty if none alone is to blame, or none was found in time."""
        for table in self._tables:
            newest = winners(table.what) if table.what.sink.mode == "upsert" else _all_of(table.what)
            self._fill(table.newest, newest)
        if not all(self._pieces.takes_nothing(group) for group in range(len(self._groups))):
            return []
        execute_sql(self._connection, sql.SQL("SAVEPOINT search"))
        # An earlier record that another rule refuses excludes no later one, so that is known first.
        held, excluded = self._of_no_room()
        unfit, stuck = self._unfit([*held, *excluded])
        execute_sql(self._connection, sql.SQL("ROLLBACK TO SAVEPOINT search"))
        found = [*held, *unfit]
        if not found and not self._search.is_over:
            found = excluded or stuck
        return self._left_out(found)

    def _make(self, what: Application, rows: sql.Composable) -> None:
        execute_sql(self._connection, sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(what.staging))
        execute_sql(self._connection, sql.SQL("CREATE TABLE {} AS {}").format(what.staging, rows))
        number = sql.SQL("CREATE INDEX ON {} ({})").format(what.staging, sql.Identifier(NUMBER))
        execute_sql(self._connection, number)
        execute_sql(self._connection, sql.SQL("ANALYZE {}").format(what.staging))

    def _fill(self, what: Application, rows: sql.Composable) -> None:
        execute_sql(self._connection, sql.SQL("TRUNCATE {}").format(what.staging))
        execute_sql(self._connection, sql.SQL("INSERT INTO {} {}").format(what.staging, rows))
        execute_sql(self._connection, sql.SQL("ANALYZE {}").format(what.staging))

    def _copy(self, with_record: Group, staged: Sequence[Application]) -> None:
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

    def _of_no_room(self) -> tuple[list[Unfit], list[Unfit]]:
        """Records whose values a row holds that no record changes, and those whose values an earlier record takes.

        A trigger that changes rows makes others of them than staging shows, so those are tried.
        """
        held: list[Unfit] = []
        excluded: list[Unfit] = []
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
                if isinstance(takers, psycopg2.Error):
                    continue
                numbers_of = sql.SQL("SELECT f.{number}, n.{number} FROM {newest} n JOIN {fates} f ON {same}").format(
                    number=sql.Identifier(NUMBER), newest=what.staging, fates=FATES,
                    same=same(what.sink.key, "n", "f"),
                )  # fmt: skip
                numbers = dict(execute_sql(self._connection, numbers_of)[1]) if any(takers) else {}
                for found, those in zip((held, excluded), takers, strict=True):
                    for number, rule in those:
                        said = f"{rule.violation} ({rule.name})"
                        one = Unfit(
                            group=group, number=numbers[number], table=table, said=said, reason=said,
                            waits=Waits.NOTHING,
                        )  # fmt: skip
                        found.append(one)
        return held, excluded

    def _changes_rows(self, what: Application) -> bool:
        target = what.target
        return bool(run(self._connection, "code_of_table", oid=target.oid, state_triggers=FOLLOWED).one().changes_rows)

    def _unfit(self, without: Sequence[Unfit]) -> tuple[list[Unfit], list[Unfit]]:
        """Records that do not fit those before them, for which no other makes room; and those that wait for each other.

        If the search ends before that is known, a record that may fit later is not blamed.

        Args:
            without: records that are not tried.
        """
        for table in reversed(self._tables):
            if table.what.sink.mode == "replace":
                self._take_away(table.what)
        left = {group: self._numbers(group) for group in range(len(self._groups))}
        for group in left:
            self._drop(group, "= ANY", [one.number for one in without if one.group == group])
        unfit: list[Unfit] = []
        while True:
            waiting: list[Unfit] = []
            before = len(unfit)
            for group, numbers in left.items():
                for one in self._pieces.unfit(group, numbers, unfit, at_once=bool(without)):
                    (waiting if one.waits else unfit).append(one)
                    if not one.waits and not has_record(one.table.what):
                        break
            if not self._search.goes_on(len(unfit), 0):
                return unfit, []
            if len(unfit) == before and len(waiting) >= sum(map(len, left.values())):
                orphans = self._orphans(waiting)
                unfit += [one for one in waiting if (one.group, one.number) in orphans]
                waiting = [one for one in waiting if (one.group, one.number) not in orphans]
                if not orphans:
                    first = min((one.waits for one in waiting), default=Waits.NOTHING)
                    return unfit, [one for one in waiting if one.waits is first]
            left = {group: self._next(group, unfit[before:], waiting) for group in left}

    def _next(self, group: int, unfit: Sequence[Unfit], waiting: Sequence[Unfit]) -> list[int]:
        """Leave to be tried: records that wait, and for the keys of those that do not fit the newest other rows."""
        out = [one.number for one in unfit if one.group == group]
        tried = {one.number for one in waiting if one.group == group}
        number, numbers = sql.Identifier(NUMBER), sql.SQL("{}::bigint[]").format(sql.Literal(out))
        for table in self._groups[group] if out else ():
            gone = sql.SQL("DELETE FROM {} WHERE {} = ANY ({})")
            execute_sql(self._connection, gone.format(table.what.staging, number, numbers))
            if table.what.sink.mode != "upsert":
                continue
            key = table.what.sink.key
            of_keys = sql.SQL(
                "SELECT s.* FROM {} s WHERE ({}) IN (SELECT {} FROM {} n WHERE n.{} = ANY ({}))"
            ).format(
                table.what.staging, names(key, "s"), names(key, "n"), table.newest.staging, number, numbers
            )  # fmt: skip
            self._fill(table.older, of_keys)
            added = sql.SQL("INSERT INTO {} {} RETURNING {}").format(table.newest.staging, winners(table.older), number)
            tried |= {one for (one,) in execute_sql(self._connection, added)[1]}
        left = sorted(tried)
        self._drop(group, "<> ALL", left)
        return left

    def _orphans(self, waiting: Sequence[Unfit]) -> set[tuple[int, int]]:
        """Group and number of the records that refer to a row which is neither there nor left in the epoch."""
        groups = {table.what.target.place: group for group, tables in enumerate(self._groups) for table in tables}
        by_place = {table.what.target.place: table for table in self._tables}
        links = [
            (key, child, by_place[key.parent])
            for place, child in by_place.items()
            for key in child.what.target.foreign_keys
            if key.child == place and key.parent in by_place
            and child.what.staged.columns.keys() >= set(key.columns)
            and by_place[key.parent].what.staged.columns.keys() >= set(key.referenced)
        ]  # fmt: skip
        left = {(one.group, one.number) for one in waiting}
        orphans: set[tuple[int, int]] = set()
        found = True
        while found:
            found = False
            for key, child, parent in links:
                group = groups[key.child]
                numbers = [number for at, number in left if at == group]
                gone = [number for at, number in orphans if at == groups[key.parent]]
                more = {(group, number) for number in self._without_parent(key, child, parent, numbers, gone)}
                orphans |= more
                left -= more
                found = found or bool(more)
        return orphans

    def _without_parent(
        self, key: ForeignKey, child: TriedTable, parent: TriedTable, numbers: Sequence[int], gone: Sequence[int]
    ) -> list[int]:
        """Which of these records refer by a key to a row that is neither there nor in a staged record but those gone.

        Of a key whose newest row waits, older rows count: one is the newest when the newer ones are set aside.
        """
        waits = parent.what.sink.key if parent.what.sink.mode == "upsert" else (NUMBER,)
        refers = sql.SQL(" AND ").join(
            sql.SQL("p.{} = c.{}").format(sql.Identifier(there), sql.Identifier(here))
            for there, here in zip(key.referenced, key.columns, strict=True)
        )
        deleted = sql.SQL("NOT p.{} AND").format(sql.Identifier(DELETED))
        statement = sql.SQL(
            "SELECT DISTINCT c.{number} FROM {children} c WHERE c.{number} = ANY ({numbers}::bigint[])"
            " AND num_nulls({columns}) = 0 AND NOT EXISTS (SELECT FROM {target} p WHERE {refers}) AND NOT EXISTS"
            " (SELECT FROM {staged} p WHERE {stays} {refers} AND p.{number} <> ALL ({gone}::bigint[])"
            " AND ({waits}) IN (SELECT {waiting} FROM {newest} n))"
        ).format(
            number=sql.Identifier(NUMBER), children=child.newest.staging, numbers=sql.Literal(list(numbers)),
            columns=names(key.columns, "c"), target=parent.what.target.identifier, refers=refers,
            staged=parent.what.staging, waits=names(waits, "p"),
            waiting=names(waits, "n"), newest=parent.newest.staging, gone=sql.Literal(list(gone)),
            stays=deleted if DELETED in parent.what.staged.columns else sql.SQL(""),
        )  # fmt: skip
        return [number for (number,) in execute_sql(self._connection, statement)[1]]

    def _drop(self, group: int, compared: str, numbers: Sequence[int]) -> None:
        """Try no more the records whose number compares so with these: what lies between two of a piece is tried."""
        for table in self._groups[group]:
            dropped = sql.SQL("DELETE FROM {} WHERE {} {} ({}::bigint[])").format(
                table.newest.staging, sql.Identifier(NUMBER), sql.SQL(compared), sql.Literal(list(numbers))
            )
            execute_sql(self._connection, dropped)

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

    def _left_out(self, found: Sequence[Unfit]) -> list[RefusedRow]:
        """Leave rows out of what is left; returns them, a record once."""
        rows: list[RefusedRow] = []
        for group, tables in enumerate(self._groups):
            unfit = {one.number: one for one in reversed(found) if one.group == group}
            if not unfit:
                continue
            if not has_record(tables[0].what):
                unfit = dict([min(unfit.items())])
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
