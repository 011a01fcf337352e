"""Obstacles to a commit that show in the catalog and in staging, without applying a row."""

from __future__ import annotations

from functools import partial

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import DELETED
from epochline.errors import RowsRefusedError
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application
from epochline.postgres.targets.catalog import changed_columns
from epochline.postgres.targets.publications import changes_of, refused_by_publication
from epochline.postgres.targets.refusals import attempt, error_in_words, refusal_by, rows_where
from epochline.postgres.targets.rights import missing_rights
from epochline.protocol.refused import RefusedRow

LIMITS = {"smallint": (-(2**15), 2**15 - 1), "integer": (-(2**31), 2**31 - 1), "bigint": (-(2**63), 2**63 - 1)}
"""The lowest and the highest value of each integer type."""

LONG = 2500
"""Bytes of values above which an index may refuse an entry. A B-tree refuses more than 2,704 bytes."""


def refuse_missing_rights(connection: Connection, what: Application) -> None:
    """Refuse to seal rows that this login may not commit.

    Raises:
        RowsRefusedError: the message names the missing rights.
    """
    tombstones = sql.SQL("SELECT 1 FROM {} WHERE {} LIMIT 1").format(what.staging, sql.Identifier(DELETED))
    deletes = what.sink.mode == "upsert" and bool(execute_sql(connection, tombstones)[1])
    columns = [*what.carried, *what.sink.added_columns]
    missing = missing_rights(connection, what.sink, columns=columns, deletes=deletes)
    if missing:
        raise RowsRefusedError(
            f"{what.pipeline.name}: {what.sink}: the ledger's login may not commit what is staged. Nothing was sealed."
            f" Missing: {'; '.join(missing)}."
        )


def refuse_published(connection: Connection, what: Application) -> None:
    """Refuse to seal what a publication that was made since the plan would not let the commit do.

    Raises:
        RowsRefusedError: the message names the statement that mends it.
    """
    columns = changed_columns(what.sink, what.target)
    said = refused_by_publication(connection, what.sink, columns, changes_of(what.sink))
    if said is not None:
        raise RowsRefusedError(f"{what.pipeline.name}: {what.sink}: {said} Nothing was sealed.")


def refuse_what_fills_the_rest(connection: Connection, what: Application) -> None:
    """Refuse to seal if a sequence has too few values left for the staged rows, or a default fails.

    Raises:
        RowsRefusedError: the message names the column and the remedy.
    """
    filled = {*what.carried, *what.sink.added_columns}
    unfilled = [name for name, column in what.target.columns.items() if column.has_default and name not in filled]
    if not unfilled:
        return
    _, [(rows,)] = execute_sql(connection, sql.SQL("SELECT count(*) FROM {}").format(what.staging))
    sequences = _sequences(connection, what)
    for column in unfilled:
        if column in sequences:
            name, left = sequences[column]
            if left is not None and left < rows:
                raise RowsRefusedError(
                    f"{what.pipeline.name}: {what.sink}: sequence {name}, which fills {column}, has {left} values left,"
                    f" and {rows} rows are staged. Nothing was sealed. Widen the column and the sequence."
                )
    _refuse_failing_defaults(connection, what, [name for name in unfilled if name not in sequences])


def _sequences(connection: Connection, what: Application) -> dict[str, tuple[str, int | None]]:
    """By column, its sequence and the number of values left; None if the number is unlimited or unknown."""
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
        error = attempt(connection, partial(execute_sql, connection, evaluation), keep=False)
        if isinstance(error, psycopg2.Error):
            raise refusal_by(error)(
                f"{what.pipeline.name}: {what.sink}: the default of {row.name} fails: {error_in_words(error)[0]}."
                " Nothing was sealed. Correct the default, or fill the column."
            )


def broken_checks(connection: Connection, what: Application) -> tuple[list[RefusedRow], bool]:
    """The staged rows that break a check of the target, and whether some check needs a trial.

    A check can be evaluated in staging if staging has all its columns. Mode ``add`` needs a trial: it sums rows.
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
        found = attempt(connection, partial(rows_where, connection, what, breaks, said), keep=False)
        if isinstance(found, psycopg2.Error):
            unknown = True
        else:
            refused += found
    return refused, unknown


def has_long_values(connection: Connection, what: Application) -> bool:
    """Whether the values of a staged row may be too long for an index of the target other than its key's index."""
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
    """The condition that a staged row ``s`` becomes a row of the target."""
    return sql.SQL("NOT s.{}").format(sql.Identifier(DELETED)) if what.sink.mode == "upsert" else sql.SQL("true")
