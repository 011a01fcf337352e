"""The seal lets PostgreSQL judge values that only it can judge, and brings staging to the target's types (ADR 0046)."""

from collections.abc import Iterable

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.postgres.queries.composed import as_text, change, compose, joined
from epochline.postgres.targets.application import Application
from epochline.postgres.targets.columns import TargetColumn
from epochline.postgres.targets.refusals import PASSES, rows_where
from epochline.protocol.refused import RefusedRow

_JUDGE = sql.Identifier("pg_temp", "epochline_judge")


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
    actions = [
        compose(
            "ALTER COLUMN {name} TYPE {base}{collate} USING {name}::{base}",
            name=name, base=sql.SQL(column.base), collate=column.collate,
        )
        for name, column in _columns(what).items()
        if column.staged != column.base
    ]  # fmt: skip
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
    refused: list[RefusedRow] = []
    for verdict, said in (
        ("refused", f"{name}: the value is no {column.kind}"),
        ("changed", f"{name}: {column.kind} would round, cut or change the value"),
    ):
        judgement = compose(
            "{counts} AND {judge}(s.{name}) = {verdict}",
            counts=counts, judge=_JUDGE, name=name, verdict=sql.Literal(verdict),
        )  # fmt: skip
        refused += rows_where(what, judgement, said)
    what.change("DROP FUNCTION {judge}({staged})", judge=_JUDGE, staged=staged)
    return refused


def _changes(column: TargetColumn) -> sql.Composable:
    if column.changes is None:
        return sql.SQL("false")
    each = "unnest({value})" if column.is_array else "{value}"
    return compose(
        "EXISTS (SELECT FROM (SELECT {kept} AS k, {given} AS g) e WHERE {changes})",
        kept=compose(each, value=compose("given::{base}", base=sql.SQL(column.base))),
        given=compose(each, value=sql.SQL("given")), changes=sql.SQL(column.changes),
    )  # fmt: skip
