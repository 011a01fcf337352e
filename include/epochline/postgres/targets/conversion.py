"""The seal lets PostgreSQL judge values that only it can judge, and brings staging to the target's types (ADR 0046)."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.postgres.queries.collations import collations_of
from epochline.postgres.queries.composed import as_text, execute_sql
from epochline.postgres.targets.application import Application
from epochline.postgres.targets.obstacles import is_no_tombstone
from epochline.postgres.targets.refusals import PASSES, rows_where
from epochline.postgres.targets.shapes import ColumnShape
from epochline.protocol.refused import RefusedRow

_JUDGE = sql.Identifier("pg_temp", "epochline_judge")


def judged(connection: Connection, what: Application) -> list[RefusedRow]:
    """The staged rows with a value that its column does not take, or would round, cut or change."""
    refused: list[RefusedRow] = []
    shapes = _shapes(what)
    count_money_as_the_database(connection, shapes.values())
    for name, shape in shapes.items():
        if shape.is_judged:
            refused += _judged(connection, what, name, shape)
    return refused


def count_money_as_the_database(connection: Connection, shapes: Iterable[ColumnShape]) -> None:
    """Let this transaction make money with as many decimals as the database shows: ``money`` is a number of cents."""
    if any(shape.is_money for shape in shapes):
        execute_sql(connection, sql.SQL("SET LOCAL lc_monetary TO DEFAULT"))


def convert(connection: Connection, what: Application) -> None:
    """Give staging's columns the types of the target without domains; call it if `judged` found nothing.

    The commit then handles both tables alike, and compares keys as the target does. A domain stays out, because it may
    refuse the NULL of a tombstone.
    """
    changed = {name: shape for name, shape in _shapes(what).items() if shape.staged != shape.base}
    if not changed:
        return
    collations = collations_of(connection, what.sink.table)
    actions = sql.SQL(", ").join(
        sql.SQL("ALTER COLUMN {column} TYPE {base}{collation} USING {column}::{base}").format(
            column=sql.Identifier(name), base=sql.SQL(shape.base), collation=collations.get(name, sql.SQL(""))
        )
        for name, shape in changed.items()
    )
    execute_sql(connection, sql.SQL("ALTER TABLE {} {}").format(what.staging, actions))


def _shapes(what: Application) -> dict[str, ColumnShape]:
    """The shapes of the columns whose values reach the target one by one. Measures are summed first: a trial judges."""
    columns = what.target.columns
    return {name: columns[name].shape for name in what.carried if name in columns and name not in what.sink.measures}


def _judged(connection: Connection, what: Application, name: str, shape: ColumnShape) -> list[RefusedRow]:
    """Judge one column by a temporary function, because a cast that fails would end the statement for all rows."""
    body = sql.SQL(
        "BEGIN PERFORM given::{base}::{kind}; IF {changes} THEN RETURN 'changed'; END IF; RETURN NULL;"
        " EXCEPTION WHEN OTHERS THEN IF left(SQLSTATE, 2) = ANY ({passes}) THEN RAISE; END IF; RETURN 'refused'; END"
    ).format(
        kind=sql.SQL(shape.kind), base=sql.SQL(shape.base), changes=_changes(shape), passes=sql.Literal(list(PASSES))
    )
    function = sql.SQL(
        "CREATE OR REPLACE FUNCTION {}(given {}) RETURNS text LANGUAGE plpgsql AS {}"
    ).format(_JUDGE, sql.SQL(shape.staged), sql.Literal(as_text(connection, body)))  # fmt: skip
    execute_sql(connection, function)
    # The value of a tombstone's other columns is NULL, and is not written.
    counts = sql.SQL("true") if name in what.sink.key else is_no_tombstone(what)
    refused: list[RefusedRow] = []
    for verdict, said in (
        ("refused", f"{name}: the value is no {shape.kind}"),
        ("changed", f"{name}: {shape.kind} would round, cut or change the value"),
    ):
        condition = sql.SQL("{} AND {}(s.{}) = {}").format(counts, _JUDGE, sql.Identifier(name), sql.Literal(verdict))
        refused += rows_where(connection, what, condition, said)
    execute_sql(connection, sql.SQL("DROP FUNCTION {}({})").format(_JUDGE, sql.SQL(shape.staged)))
    return refused


def _changes(shape: ColumnShape) -> sql.Composable:
    if shape.changes is None:
        return sql.SQL("false")
    each = "unnest({})" if shape.is_array else "{}"
    kept = sql.SQL(each).format(sql.SQL("given::{}").format(sql.SQL(shape.base)))
    return sql.SQL("EXISTS (SELECT FROM (SELECT {} AS k, {} AS g) e WHERE {})").format(
        kept, sql.SQL(each).format(sql.SQL("given")), sql.SQL(shape.changes)
    )
