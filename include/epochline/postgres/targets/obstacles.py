"""What would stop a commit, as far as the catalog and one look at staging tell: no row has to be applied for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import DELETED
from epochline.errors import SealRefusedError
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application
from epochline.postgres.targets.rights import missing_rights
from epochline.postgres.targets.trial import error_in_words, is_rule, rows_where
from epochline.protocol.refused import RefusedRow

Looked = TypeVar("Looked")

LIMITS = {"smallint": (-(2**15), 2**15 - 1), "integer": (-(2**31), 2**31 - 1), "bigint": (-(2**63), 2**63 - 1)}
"""The lowest and the highest value of the integer types."""

LONG = 2500
"""Bytes of values in one entry of an index from which on the index may refuse them: a B-tree's entries have 2,704."""


def refuse_missing_rights(connection: Connection, what: Application) -> None:
    """Refuse to seal what this login could not commit.

    Raises:
        SealRefusedError: with the rights that are missing.
    """
    tombstones = sql.SQL("SELECT 1 FROM {} WHERE {} LIMIT 1").format(what.staging, sql.Identifier(DELETED))
    deletes = what.sink.mode == "upsert" and bool(execute_sql(connection, tombstones)[1])
    missing = missing_rights(connection, what.sink, deletes=deletes)
    if missing:
        raise SealRefusedError(
            f"{what.pipeline.name}: {what.sink}: the ledger's login may not commit what is staged. Nothing was sealed."
            f" Missing: {'; '.join(missing)}."
        )


def refuse_what_fills_the_rest(connection: Connection, what: Application) -> None:
    """Refuse where sequences have too few values left for the staged rows, or a default fails.

    Raises:
        SealRefusedError: with the column and what to do.
    """
    filled = {*what.carried, *what.sink.carried_lineage}
    unfilled = [name for name, column in what.target.columns.items() if column.has_default and name not in filled]
    if not unfilled:
        return
    _, [(rows,)] = execute_sql(connection, sql.SQL("SELECT count(*) FROM {}").format(what.staging))
    sequences = _sequences(connection, what)
    for column in unfilled:
        if column in sequences:
            name, left = sequences[column]
            if left is not None and left < rows:
                raise SealRefusedError(
                    f"{what.pipeline.name}: {what.sink}: sequence {name}, which fills {column}, has {left} values left,"
                    f" and {rows} rows are staged. Nothing was sealed. Widen the column and the sequence."
                )
    _refuse_failing_defaults(connection, what, [name for name in unfilled if name not in sequences])


def _sequences(connection: Connection, what: Application) -> dict[str, tuple[str, int | None]]:
    """By column, the sequence that fills it and how many values are left; None where that is no limit, or unknown."""
    found = run(connection, "sequences_of_table", schema=what.target.schema, table=what.target.name)
    left = {}
    for row in found:
        low, high = LIMITS.get(row.kind, (row.lowest, row.highest))
        end = min(row.highest, high) if row.step > 0 else max(row.lowest, low)
        no_limit = row.cycles or row.last is None
        left[row.filled] = (row.sequence, None if no_limit else max((end - row.last) // row.step, 0))
    return left


def _refuse_failing_defaults(connection: Connection, what: Application, columns: list[str]) -> None:
    if not columns:
        return
    found = run(
        connection, "defaults_of_columns", schema=what.target.schema, table=what.target.name, columns=columns
    ).all()
    for row in found:
        evaluation = sql.SQL("SELECT {}").format(sql.SQL(row.expression))
        error = _attempted(connection, partial(execute_sql, connection, evaluation))
        if isinstance(error, psycopg2.Error):
            raise SealRefusedError(
                f"{what.pipeline.name}: {what.sink}: the default of {row.name} fails: {error_in_words(error)[0]}."
                " Nothing was sealed. Correct the default, or fill the column."
            )


def broken_checks(connection: Connection, what: Application) -> tuple[list[RefusedRow], bool]:
    """The staged rows that break a check of the target; and whether a check is left that only a trial shows.

    A check is looked at in staging where it reads nothing but what is staged. Rows of mode ``add`` are summed first.
    """
    refused: list[RefusedRow] = []
    unknown = False
    staged = {*what.carried}
    for check in what.target.checks:
        if what.sink.mode == "add" or not check.columns or not check.columns <= staged:
            unknown = True
            continue
        breaks = sql.SQL("{} AND ({}) IS FALSE").format(is_no_tombstone(what), sql.SQL(check.expression))
        said = f"check {check.name}"
        found = _attempted(connection, partial(rows_where, connection, what, breaks, said))
        if isinstance(found, psycopg2.Error):
            unknown = True
        else:
            refused += found
    return refused, unknown


def has_long_values(connection: Connection, what: Application) -> bool:
    """Whether a staged row has values that an index of the target may be too small for, its key's index excepted."""
    sums = [
        sql.SQL(" + ").join(
            sql.SQL("coalesce(pg_column_size(s.{}), 0)").format(sql.Identifier(name))
            for name in index
            if name in what.carried
        )
        for index in what.target.long_indexes
        if set(index) - set(what.sink.key) and set(index) & set(what.carried)
    ]
    if not sums:
        return False
    longest = sql.SQL(" OR ").join(sql.SQL("{} > {}").format(one, sql.Literal(LONG)) for one in sums)
    statement = sql.SQL("SELECT 1 FROM {} s WHERE {} LIMIT 1").format(what.staging, longest)
    return bool(execute_sql(connection, statement)[1])


def is_no_tombstone(what: Application) -> sql.Composable:
    """Whether a staged row ``s`` becomes a row of the target."""
    return sql.SQL("NOT s.{}").format(sql.Identifier(DELETED)) if what.sink.mode == "upsert" else sql.SQL("true")


def _attempted(connection: Connection, look: Callable[[], Looked]) -> Looked | psycopg2.Error:
    """What a look gives, or the error that it ends with; whatever it did is taken back."""
    execute_sql(connection, sql.SQL("SAVEPOINT evaluation"))
    found: Looked | psycopg2.Error
    try:
        found = look()
    except psycopg2.Error as failure:
        if not is_rule(failure):
            raise
        found = failure
    # Also where all went well: what an expression calls may write.
    execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT evaluation"))
    execute_sql(connection, sql.SQL("RELEASE SAVEPOINT evaluation"))
    return found
