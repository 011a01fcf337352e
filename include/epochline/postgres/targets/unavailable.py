"""Rows that leave columns of an upsert target as they are: the seal writes the kept values into staging.

The value is that of the newest older row of the key, in staging or in the target. So the trial and the commit see
complete rows, and the division of records into epochs decides nothing.
"""

from __future__ import annotations

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import DELETED, UNAVAILABLE
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import Application, names, same
from epochline.postgres.targets.fates import newer, replaces
from epochline.postgres.targets.refusals import rows_where
from epochline.protocol.refused import RefusedRow

_SAID = (
    "a value that the record does not give, and no older row of its key in the same partition gives it ({column} is"
    " unavailable)"
)


def keep_values(connection: Connection, what: Application) -> list[RefusedRow]:
    """Fill the columns that ``_unavailable`` names, and return the rows for which no older row gives the value.

    The older row has to be of the record's own partition: in another one a newer value may still wait to be read. A row
    that a newer row or deletion supersedes is not written, so it may stay without the value.
    """
    listed = sql.SQL("SELECT DISTINCT jsonb_array_elements_text({}) FROM {}").format(
        sql.Identifier(UNAVAILABLE), what.staging
    )
    refused: list[RefusedRow] = []
    for (column,) in execute_sql(connection, listed)[1]:
        lacking = sql.SQL("{} AND NOT coalesce({}, false) AND NOT {}").format(
            _keeps(column, "s"), _has_value(what), _superseded(what)
        )
        rows = sql.SQL("(SELECT s.* FROM {} s {} WHERE {})").format(what.staging, _older(what, column), lacking)
        refused += rows_where(connection, what, sql.SQL("true"), _SAID.format(column=column), rows)
        _fill(connection, what, column)
    return refused


def _keeps(column: str, row: str) -> sql.Composed:
    return sql.SQL("coalesce({} ? {}, false)").format(sql.Identifier(row, UNAVAILABLE), sql.Literal(column))


def _older(what: Application, column: str) -> sql.Composed:
    """Join the target's row ``t`` if it is older than ``s``, and ``p``, the newest older staged row with the value.

    A deletion has the value as well: none.
    """
    order = sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier("p", name)) for name in what.order)
    return sql.SQL(
        "LEFT JOIN LATERAL (SELECT p.* FROM {staging} p WHERE {same_staged} AND ({theirs}) < ({own})"
        " AND (p.{deleted} OR NOT {keeps}) ORDER BY {order} LIMIT 1) p ON true"
        " LEFT JOIN {target} t ON {same_target} AND {replaces}"
    ).format(
        staging=what.staging, same_staged=same(what.sink.key, "p", "s"), theirs=names(what.order, "p"),
        own=names(what.order, "s"), deleted=sql.Identifier(DELETED), keeps=_keeps(column, "p"), order=order,
        target=what.target.identifier, same_target=same(what.sink.key, "t", "s"),
        replaces=replaces(what, "s", "t"),
    )  # fmt: skip


def _there(what: Application, row: str) -> sql.Composed:
    return sql.SQL("{} IS NOT NULL").format(sql.Identifier(row, what.sink.key[0]))


def _from_target(what: Application) -> sql.Composed:
    """The condition that ``t`` gives the value: there is one, and ``p`` is not newer."""
    return sql.SQL("({} AND NOT ({} AND {}))").format(_there(what, "t"), _there(what, "p"), replaces(what, "p", "t"))


def _has_value(what: Application) -> sql.Composed:
    """The condition that ``t`` or ``p`` gives the value, and is of the same partition as ``s`` or of no record."""
    place = sql.SQL("({row}._topic IS NULL OR ({row}._topic, {row}._partition) = (s._topic, s._partition))")
    return sql.SQL("CASE WHEN {} THEN {} ELSE {} AND NOT p.{} AND {} END").format(
        _from_target(what), place.format(row=sql.SQL("t")), _there(what, "p"), sql.Identifier(DELETED),
        place.format(row=sql.SQL("p")),
    )  # fmt: skip


def _superseded(what: Application) -> sql.Composed:
    """The condition that the target has a newer row than ``s``, or a newer deletion is remembered."""
    return sql.SQL(
        "(EXISTS (SELECT FROM {} n WHERE {} AND ({}) IS NOT TRUE) OR EXISTS (SELECT FROM {} d WHERE {} AND NOT {}))"
    ).format(
        what.target.identifier, same(what.sink.key, "n", "s"), replaces(what, "s", "n"),
        what.deleted_keys, same(what.sink.key, "d", "s"), newer(what.order, "s", "d"),
    )  # fmt: skip


def _fill(connection: Connection, what: Application, column: str) -> None:
    """Write the value into each row for which there is one, and take the column out of its ``_unavailable``."""
    statement = sql.SQL(
        "UPDATE {staging} u SET {column} = v.given, {left} = nullif(u.{left} - {name}, '[]')"
        " FROM (SELECT s.ctid AS place, CASE WHEN {from_target} THEN t.{column} ELSE p.{column} END AS given"
        " FROM {staging} s {older} WHERE {keeps} AND {has_value}) v WHERE u.ctid = v.place"
    ).format(
        staging=what.staging, column=sql.Identifier(column), left=sql.Identifier(UNAVAILABLE), name=sql.Literal(column),
        from_target=_from_target(what), older=_older(what, column), keeps=_keeps(column, "s"),
        has_value=_has_value(what),
    )  # fmt: skip
    execute_sql(connection, statement)
