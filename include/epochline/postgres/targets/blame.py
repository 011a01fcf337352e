"""The records to blame if targets refuse an epoch: those without which all others can be applied.

Only the newest row of each key is a suspect: the others change nothing. A record is tried as a whole, with its rows for
every target, because it is left out as a whole.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg2
from psycopg2 import sql

from epochline.declare.columns import DELETED
from epochline.postgres.queries.statements import Connection, change, joined, names, pairs, same
from epochline.postgres.targets.application import (
    NUMBER,
    Application,
    attempt,
    error_in_words,
    refusal_by,
    refused_row,
    shown,
)
from epochline.postgres.targets.catalog import ForeignKey
from epochline.postgres.targets.exclusive import broken, exclusive_rules, is_exclusive, keep_fates
from epochline.postgres.targets.pieces import Group, Pieces, TriedTable, Unfit, Waits
from epochline.postgres.targets.together import in_order, take_all_away
from epochline.protocol.refused import RefusedRow, Search

_RECORDS = sql.Identifier("pg_temp", "epochline_trial_records")
_PLACE = ("_topic", "_partition", "_offset")
_WITH = "= ANY"
_WITHOUT = "<> ALL"


class Suspects:
    """The staged rows that are left of an epoch which its targets refuse."""

    def __init__(self, connection: Connection, tables: Sequence[Application], search: Search) -> None:
        self._connection, self._search = connection, search
        self._tables = [TriedTable.of(what, at) for at, what in enumerate(in_order(tables))]
        with_record = tuple(table for table in self._tables if table.what.has_record)
        self._groups: list[Group] = [(table,) for table in self._tables if table not in with_record]
        self._groups[:0] = [with_record] if with_record else []
        self._copy(in_order(tables))
        self._pieces = Pieces(connection, self._groups, search)
        for table in self._tables:
            # Made once: each table that a transaction makes holds a lock until its end, also when it is dropped.
            for part in (table.newest, table.older):
                _make(part, table.what.compose("SELECT * FROM {staging} WHERE false"))
            self._pieces.make_view(table)

    @property
    def left(self) -> list[Application]:
        """The targets with the rows that are left."""
        return [table.what for table in self._tables]

    def blamed(self) -> list[RefusedRow]:
        """Blame records and leave them out; empty if none alone is to blame, or none was found in time."""
        for table in self._tables:
            what = table.what
            _fill(table.newest, what.winners if what.sink.mode == "upsert" else what.compose("SELECT * FROM {staging}"))
        if not all(self._pieces.takes_nothing(group) for group in range(len(self._groups))):
            return []
        change(self._connection, "SAVEPOINT search")
        # An earlier record that another rule refuses excludes no later one, so that is known first.
        held, excluded = self._of_no_room()
        unfit, stuck = self._unfit([*held, *excluded])
        change(self._connection, "ROLLBACK TO SAVEPOINT search")
        blamed = [*held, *unfit]
        if not blamed and not self._search.is_over:
            blamed = excluded or stuck
        return self._left_out(blamed)

    def _copy(self, staged: Sequence[Application]) -> None:
        """Copy the staged rows; number records in their order, and rows without one in the order of their keys."""
        places = [
            what.compose("SELECT {place} FROM {staging}", place=names(_PLACE)) for what in staged if what.has_record
        ]
        parts: dict[str, object] = {"records": _RECORDS, "number": NUMBER, "place": names(_PLACE)}
        if places:
            change(self._connection, "DROP TABLE IF EXISTS {records}", **parts)
            change(
                self._connection,
                "CREATE TABLE {records} AS SELECT *, row_number() OVER (ORDER BY {place}) AS {number}"
                " FROM ({places}) p",
                places=joined(places, " UNION "), **parts,
            )  # fmt: skip
        for table, what in zip(self._tables, staged, strict=True):
            rows = "SELECT {columns}, row_number() OVER ({order}) AS {number} FROM {staging} s"
            if what.has_record:
                rows = "SELECT {columns}, r.{number} FROM {staging} s JOIN {records} r ON {same_place}"
            parts["columns"], parts["same_place"] = names(what.staged.columns, "s"), same(_PLACE, "r", "s")
            order = what.compose("ORDER BY {key}") if what.sink.key else sql.SQL("")
            _make(table.what, what.compose(rows, order=order, **parts))

    def _of_no_room(self) -> tuple[list[Unfit], list[Unfit]]:
        """Records whose values a row holds that no record changes, and those whose values an earlier record takes.

        A trigger that changes rows makes others of them than staging shows, so those are tried.
        """
        held: list[Unfit] = []
        excluded: list[Unfit] = []
        for group, table in ((group, table) for group, tables in enumerate(self._groups) for table in tables):
            what = table.newest
            if what.sink.mode != "upsert" or not is_exclusive(what) or what.target.changes_rows:
                continue
            keep_fates(what)
            rules = exclusive_rules(self._connection, what.target, what.sink.key)
            # An expression of an index may fail for a row; such a row is found by trying.
            takers = attempt(self._connection, partial(broken, what, rules), keep=False)
            if isinstance(takers, psycopg2.Error) or not any(takers):
                continue
            of_records = "SELECT w.{number}, t.{number} FROM {staging} t JOIN {fates} w ON {same}"
            numbers = dict(what.query(of_records))
            for unfit, of_rules in zip((held, excluded), takers, strict=True):
                for number, rule in of_rules:
                    violation = f"{rule.violation} ({rule.name})"
                    of_record = {"group": group, "number": numbers[number], "table": table}
                    unfit.append(Unfit(**of_record, said=violation, reason=violation, waits=Waits.NOTHING))
        return held, excluded

    def _unfit(self, without: Sequence[Unfit]) -> tuple[list[Unfit], list[Unfit]]:
        """Records that do not fit those before them, for which no other makes room; and those that wait for each other.

        If the search ends before that is known, a record that may fit later is not blamed.

        Args:
            without: records that are not tried.
        """
        replaced = [table.what for table in reversed(self._tables) if table.what.sink.mode == "replace"]
        emptied = {what.target.place for what in replaced}
        for what in replaced:
            error = attempt(self._connection, partial(take_all_away, what, emptied))
            if isinstance(error, psycopg2.Error):
                why = error_in_words(error)[0]
                kept = f"{what.epoch}: {what.sink} does not let its rows go"
                raise refusal_by(error)(f"{kept}: {why}. Nothing was sealed.")
        left = {group: self._numbers(group) for group in range(len(self._groups))}
        for group in left:
            self._drop(group, _WITH, [record.number for record in without if record.group == group])
        unfit: list[Unfit] = []
        while True:
            waiting: list[Unfit] = []
            before = len(unfit)
            for group, numbers in left.items():
                for record in self._pieces.unfit(group, numbers, unfit, at_once=bool(without)):
                    (waiting if record.waits else unfit).append(record)
                    if not record.waits and not record.table.what.has_record:
                        break
            if not self._search.goes_on(len(unfit), 0):
                return unfit, []
            if len(unfit) == before and len(waiting) >= sum(map(len, left.values())):
                orphans = self._orphans(waiting)
                unfit += [record for record in waiting if (record.group, record.number) in orphans]
                waiting = [record for record in waiting if (record.group, record.number) not in orphans]
                if not orphans:
                    first = min((record.waits for record in waiting), default=Waits.NOTHING)
                    return unfit, [record for record in waiting if record.waits is first]
            left = {group: self._next(group, unfit[before:], waiting) for group in left}

    def _next(self, group: int, unfit: Sequence[Unfit], waiting: Sequence[Unfit]) -> list[int]:
        """Leave to be tried: records that wait, and for the keys of those that do not fit the newest other rows."""
        out = [record.number for record in unfit if record.group == group]
        tried = {record.number for record in waiting if record.group == group}
        for table in self._groups[group] if out else ():
            _delete(table.what, _WITH, out)
            if table.what.sink.mode != "upsert":
                continue
            of_keys = table.what.compose(
                "SELECT s.* FROM {staging} s"
                " WHERE ({keys}) IN (SELECT {key} FROM {newest} n WHERE n.{number} = ANY ({out}::bigint[]))",
                keys=names(table.what.sink.key, "s"), newest=table.newest.staging, out=out,
            )  # fmt: skip
            _fill(table.older, of_keys)
            added = "INSERT INTO {staging} {older} RETURNING {number}"
            tried |= {number for (number,) in table.newest.query(added, older=table.older.winners)}
        left = sorted(tried)
        self._drop(group, _WITHOUT, left)
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
        left = {(record.group, record.number) for record in waiting}
        orphans: set[tuple[int, int]] = set()
        grows = True
        while grows:
            grows = False
            for key, child, parent in links:
                group = groups[key.child]
                numbers = [number for at, number in left if at == group]
                gone = [number for at, number in orphans if at == groups[key.parent]]
                new_orphans = {(group, number) for number in _without_parent(key, child, parent, numbers, gone)}
                orphans |= new_orphans
                left -= new_orphans
                grows = grows or bool(new_orphans)
        return orphans

    def _drop(self, group: int, compared: str, numbers: Sequence[int]) -> None:
        """Try no more the records whose number compares so with these: what lies between two of a piece is tried."""
        for table in self._groups[group]:
            _delete(table.newest, compared, numbers)

    def _numbers(self, group: int) -> Sequence[int]:
        last = "SELECT coalesce(max({number}), 0) FROM {staging}"
        return range(1, max(table.what.number(last) for table in self._groups[group]) + 1)

    def _left_out(self, blamed: Sequence[Unfit]) -> list[RefusedRow]:
        """Leave rows out of what is left; returns them, a record once."""
        rows: list[RefusedRow] = []
        for group, tables in enumerate(self._groups):
            unfit = {record.number: record for record in reversed(blamed) if record.group == group}
            if not unfit:
                continue
            if not tables[0].what.has_record:
                unfit = dict([min(unfit.items())])
            kept = {table.what.sink.table: _shown(table.what, list(unfit)) for table in tables}
            for number, record in sorted(unfit.items()):
                what = next(tried.what for tried in (record.table, *tables) if number in kept[tried.what.sink.table])
                row = kept[what.sink.table][number]
                refused = refused_row(what, record.said, f"{what.sink}: {record.reason}", *row)
                rows.append(replace(refused, raised=record.raised))
            for table in tables:
                _delete(table.what, _WITH, list(unfit))
        return rows


def _make(what: Application, rows: sql.Composable) -> None:
    what.change("DROP TABLE IF EXISTS {staging} CASCADE")
    what.change("CREATE TABLE {staging} AS {rows}", rows=rows)
    what.change("CREATE INDEX ON {staging} ({number})")
    what.change("ANALYZE {staging}")


def _fill(what: Application, rows: sql.Composable) -> None:
    what.change("TRUNCATE {staging}")
    what.change("INSERT INTO {staging} {rows}", rows=rows)
    what.change("ANALYZE {staging}")


def _delete(what: Application, compared: str, numbers: Sequence[int]) -> None:
    """Delete the staged rows whose number compares so with these."""
    doomed = "DELETE FROM {staging} WHERE {number} {compared} ({numbers}::bigint[])"
    what.change(doomed, compared=sql.SQL(compared), numbers=list(numbers))


def _shown(what: Application, numbers: Sequence[int]) -> dict[int, tuple[Any, ...]]:
    """By number, the columns of `shown` of one row of each record."""
    rows = what.query(
        "SELECT n.{number}, {shown} FROM {staging} n, LATERAL (SELECT {columns}) s WHERE n.{number} = ANY ({numbers})",
        shown=shown(what), columns=names(what.staged.columns, "n"), numbers=list(numbers),
    )  # fmt: skip
    return {number: tuple(row) for number, *row in rows}


def _without_parent(
    key: ForeignKey, child: TriedTable, parent: TriedTable, numbers: Sequence[int], gone: Sequence[int]
) -> list[int]:
    """Which of these records refer by a key to a row that is neither there nor in a staged record but those gone.

    Of a key whose newest row waits, older rows count: one is the newest when the newer ones are set aside.
    """
    waits = parent.what.sink.key if parent.what.sink.mode == "upsert" else (NUMBER,)
    stays = parent.what.compose("NOT p.{deleted} AND") if DELETED in parent.what.staged.columns else sql.SQL("")
    rows = parent.what.query(
        "SELECT DISTINCT c.{number} FROM {children} c WHERE c.{number} = ANY ({numbers}::bigint[])"
        " AND num_nulls({columns}) = 0 AND NOT EXISTS (SELECT FROM {target} p WHERE {refers}) AND NOT EXISTS"
        " (SELECT FROM {staging} p WHERE {stays} {refers} AND p.{number} <> ALL ({gone}::bigint[])"
        " AND ({waits}) IN (SELECT {waiting} FROM {newest} n))",
        children=child.newest.staging, numbers=list(numbers), columns=names(key.columns, "c"),
        refers=pairs(zip(key.referenced, key.columns, strict=True), "p", "c"), stays=stays, gone=list(gone),
        waits=names(waits, "p"), waiting=names(waits, "n"), newest=parent.newest.staging,
    )  # fmt: skip
    return [number for (number,) in rows]
