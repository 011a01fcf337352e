"""The seal brings staging to the target: types and judged values (ADR 0046), and values that records leave as they are.

A kept value is that of the newest older row of the key, in staging or in the target. So the trial and the commit see
complete rows, and the division of records into epochs decides nothing.
"""

from collections.abc import Iterable

from psycopg2 import sql

from epochline.declare.columns import UNAVAILABLE
from epochline.postgres.queries.statements import Connection, as_text, change, compose, joined, names, same
from epochline.postgres.targets.application import PASSES, Application, rows_where
from epochline.postgres.targets.columns import TargetColumn
from epochline.postgres.targets.fates import newer, replaces
from epochline.protocol.refused import RefusedRow

_JUDGE = sql.Identifier("pg_temp", "epochline_judge")
_NO_VALUE = (
    "a value that the record does not give, and no older row of its key in the same partition gives it ({column} is"
    " unavailable)"
)


def judged(what: Application) -> list[RefusedRow]:
    """The staged rows with a value that its column does not take, or would round, cut or change."""
    columns = _columns(what)
    count_money_as_the_database(what.connection, columns.values())
    return [row for name, column in columns.items() if column.is_judged for row in _judged(what, name, column)]


def count_money_as_the_database(connection: Connection, columns: Iterable[TargetColumn]) -> None:
    """Let this transaction make money with as many decimals as the database shows: ``money`` is a number of cents."""
    if any(column.is_money for column in columns):
        change(connection, "SET LOCAL lc_monetary TO DEFAULT")


def convert(what: Application) -> None:
    """Give staging's columns the types of the target without domains; call it if `judged` found nothing.

    The commit then handles both tables alike, and compares keys as the target does. A domain stays out, because it may
    refuse the NULL of a tombstone.
    """
    alter = "ALTER COLUMN {name} TYPE {base}{collate} USING {name}::{base}"
    actions = [
        compose(alter, name=name, base=sql.SQL(column.base), collate=column.collate)
        for name, column in _columns(what).items()
        if column.staged != column.base
    ]
    if actions:
        what.change("ALTER TABLE {staging} {actions}", actions=joined(actions))


def _columns(what: Application) -> dict[str, TargetColumn]:
    """The columns whose values reach the target one by one. Measures are summed first: a trial judges."""
    columns = what.target.columns
    return {name: columns[name] for name in what.carried if name in columns and name not in what.sink.measures}


def _judged(what: Application, name: str, column: TargetColumn) -> list[RefusedRow]:
    """Judge one column by a temporary function, because a cast that fails would end the statement for all rows."""
    kind, staged = sql.SQL(column.kind), sql.SQL(column.staged)
    body = compose(
        "BEGIN PERFORM given::{base}::{kind}; IF {changes} THEN RETURN 'changed'; END IF; RETURN NULL;"
        " EXCEPTION WHEN OTHERS THEN IF left(SQLSTATE, 2) = ANY ({passes}) THEN RAISE; END IF; RETURN 'refused'; END",
        kind=kind, base=sql.SQL(column.base), changes=_changes(column), passes=list(PASSES),
    )  # fmt: skip
    what.change(
        "CREATE OR REPLACE FUNCTION {judge}(given {staged}) RETURNS text LANGUAGE plpgsql AS {body}",
        judge=_JUDGE, staged=staged, body=sql.Literal(as_text(what.connection, body)),
    )  # fmt: skip
    # The value of a tombstone's other columns is NULL, and is not written.
    counts = sql.SQL("true") if name in what.sink.key else what.no_tombstone
    judged = compose("{counts} AND {judge}(s.{name}) = ", counts=counts, judge=_JUDGE, name=name)
    refused = rows_where(what, judged + sql.Literal("refused"), f"{name}: the value is no {column.kind}")
    changed = f"{name}: {column.kind} would round, cut or change the value"
    refused += rows_where(what, judged + sql.Literal("changed"), changed)
    what.change("DROP FUNCTION {judge}({staged})", judge=_JUDGE, staged=staged)
    return refused


def _changes(column: TargetColumn) -> sql.Composable:
    if column.changes is None:
        return sql.SQL("false")
    values = "unnest(given::{base}) AS k, unnest(given) AS g" if column.arrays else "given::{base} AS k, given AS g"
    exists = f"EXISTS (SELECT FROM (SELECT {values}) e WHERE {{changes}})"
    return compose(exists, base=sql.SQL(column.base), changes=sql.SQL(column.changes))


def keep_values(what: Application) -> list[RefusedRow]:
    """Fill the columns that ``_unavailable`` names, and return the rows for which no older row gives the value.

    The older row has to be of the record's own partition: in another one a newer value may still wait to be read. A row
    that a newer row or deletion supersedes is not written, so it may stay without the value.
    """
    refused = []
    listed = "SELECT DISTINCT jsonb_array_elements_text({unavailable}) FROM {staging}"
    for (column,) in what.query(listed, unavailable=UNAVAILABLE):
        rows = what.compose(
            "(SELECT s.* FROM {staging} s {older} WHERE {keeps} AND NOT coalesce({has_value}, false)"
            " AND NOT {superseded})",
            older=_older(what, column), keeps=_keeps(column, "s"), has_value=_has_value(what),
            superseded=_superseded(what),
        )  # fmt: skip
        refused += rows_where(what, sql.SQL("true"), _NO_VALUE.format(column=column), rows)
        _fill(what, column)
    return refused


def _keeps(column: str, row: str) -> sql.Composed:
    named = sql.Identifier(row, UNAVAILABLE)
    return compose("coalesce({named} ? {column}, false)", named=named, column=sql.Literal(column))


def _older(what: Application, column: str) -> sql.Composed:
    """Join the target's row ``t`` if it is older than ``s``, and ``p``, the newest older staged row with the value.

    A deletion has the value as well: none.
    """
    return what.compose(
        "LEFT JOIN LATERAL (SELECT p.* FROM {staging} p WHERE {same_staged} AND ({theirs}) < ({own})"
        " AND (p.{deleted} OR NOT {keeps}) ORDER BY {order} LIMIT 1) p ON true"
        " LEFT JOIN {target} t ON {same} AND {replaces}",
        same_staged=same(what.sink.key, "p", "s"), theirs=names(what.order, "p"), own=names(what.order, "s"),
        keeps=_keeps(column, "p"), order=joined(compose("p.{c} DESC", c=name) for name in what.order),
        same=same(what.sink.key, "t", "s"), replaces=replaces(what, "s", "t"),
    )  # fmt: skip


def _there(what: Application, row: str) -> sql.Composed:
    return compose("{first} IS NOT NULL", first=sql.Identifier(row, what.sink.key[0]))


def _from_target(what: Application) -> sql.Composed:
    """The condition that ``t`` gives the value: there is one, and ``p`` is not newer."""
    replaced = replaces(what, "p", "t")
    return compose("({t} AND NOT ({p} AND {replaced}))", t=_there(what, "t"), p=_there(what, "p"), replaced=replaced)


def _has_value(what: Application) -> sql.Composed:
    """The condition that ``t`` or ``p`` gives the value, and is of the same partition as ``s`` or of no record."""
    place = "({row}._topic IS NULL OR ({row}._topic, {row}._partition) = (s._topic, s._partition))"
    return what.compose(
        "CASE WHEN {from_target} THEN {t} ELSE {there} AND NOT p.{deleted} AND {p} END",
        from_target=_from_target(what), there=_there(what, "p"), t=compose(place, row="t"), p=compose(place, row="p"),
    )  # fmt: skip


def _superseded(what: Application) -> sql.Composed:
    """The condition that the target has a newer row than ``s``, or a newer deletion is remembered."""
    return what.compose(
        "(EXISTS (SELECT FROM {target} n WHERE {same_row} AND ({replaces}) IS NOT TRUE)"
        " OR EXISTS (SELECT FROM {side} d WHERE {same_key} AND NOT {newer}))",
        same_row=same(what.sink.key, "n", "s"), replaces=replaces(what, "s", "n"),
        same_key=same(what.sink.key, "d", "s"), newer=newer(what.order, "s", "d"),
    )  # fmt: skip


def _fill(what: Application, column: str) -> None:
    """Write the value into each row for which there is one, and take the column out of its ``_unavailable``."""
    what.change(
        "UPDATE {staging} u SET {column} = v.given, {left} = nullif(u.{left} - {name}, '[]')"
        " FROM (SELECT s.ctid AS place, CASE WHEN {from_target} THEN t.{column} ELSE p.{column} END AS given"
        " FROM {staging} s {older} WHERE {keeps} AND {has_value}) v WHERE u.ctid = v.place",
        column=column, left=UNAVAILABLE, name=sql.Literal(column), from_target=_from_target(what),
        older=_older(what, column), keeps=_keeps(column, "s"), has_value=_has_value(what),
    )  # fmt: skip
