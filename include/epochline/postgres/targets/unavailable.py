"""Rows that leave columns of an upsert target as they are: the seal writes the kept values into staging.

The value is that of the newest older row of the key, in staging or in the target. So the trial and the commit see
complete rows, and the division of records into epochs decides nothing.
"""

from psycopg2 import sql

from epochline.declare.columns import UNAVAILABLE
from epochline.postgres.queries.composed import compose, joined, names, same
from epochline.postgres.targets.application import Application
from epochline.postgres.targets.fates import newer, replaces
from epochline.postgres.targets.refusals import rows_where
from epochline.protocol.refused import RefusedRow

_SAID = (
    "a value that the record does not give, and no older row of its key in the same partition gives it ({column} is"
    " unavailable)"
)


def keep_values(what: Application) -> list[RefusedRow]:
    """Fill the columns that ``_unavailable`` names, and return the rows for which no older row gives the value.

    The older row has to be of the record's own partition: in another one a newer value may still wait to be read. A row
    that a newer row or deletion supersedes is not written, so it may stay without the value.
    """
    refused: list[RefusedRow] = []
    listed = "SELECT DISTINCT jsonb_array_elements_text({unavailable}) FROM {staging}"
    for (column,) in what.query(listed, unavailable=UNAVAILABLE):
        rows = what.compose(
            "(SELECT s.* FROM {staging} s {older} WHERE {keeps} AND NOT coalesce({has_value}, false)"
            " AND NOT {superseded})",
            older=_older(what, column), keeps=_keeps(column, "s"), has_value=_has_value(what),
            superseded=_superseded(what),
        )  # fmt: skip
        refused += rows_where(what, sql.SQL("true"), _SAID.format(column=column), rows)
        _fill(what, column)
    return refused


def _keeps(column: str, row: str) -> sql.Composed:
    return compose(
        "coalesce({list} ? {column}, false)", list=sql.Identifier(row, UNAVAILABLE), column=sql.Literal(column)
    )


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
