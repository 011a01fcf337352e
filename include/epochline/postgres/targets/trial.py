"""The trial at the seal: apply staging, find the rows that a target refuses, and roll back.

A sealed epoch can commit: what the catalog does not tell is tried here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import STAGED_LINEAGE
from epochline.errors import RowsRefusedError, SealRefusedError, TargetCodeError, TargetError
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.accounting import apply_and_watch
from epochline.postgres.targets.application import Application, names
from epochline.postgres.targets.modes import apply, take_all_away
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import RefusedRow

MOST = 1000
"""Most refused records that one attempt finds, because each costs several trials. The next attempt finds the rest."""

PASSES = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE that are not caused by a row: sessions, locks, resources, cancelled statements."""

_CODE = ("P0", "38", "39")
"""Classes of SQLSTATE that functions raise: PL/pgSQL, and routines in other languages."""

_ROWS, _CHUNK = sql.Identifier("pg_temp", "epochline_trial"), sql.Identifier("pg_temp", "epochline_trial_chunk")


def try_out(connection: Connection, tables: Sequence[Application], epoch: Epoch) -> list[RefusedRow]:
    """Apply staging to these targets, check deferred constraints, and roll back; return the refused rows.

    The targets are tried together, because a row of one may need a row of another. If that fails, rows are applied in
    the order of their records, and each row that does not fit the rows before it is left out and returned: at most
    `MOST` rows, and only the first row of a target whose rows belong to no single record.

    Raises:
        RowsRefusedError, TargetCodeError: the rows fail together, but none fails alone.
    """
    execute_sql(connection, sql.SQL("SAVEPOINT trial"))
    try:
        found = _refused(connection, tables, epoch)
    except TargetError as error:
        raise RowsRefusedError(f"{epoch}: a trial shows that the epoch could not commit: {error}") from error
    execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT trial"))
    return found


def _refused(connection: Connection, tables: Sequence[Application], epoch: Epoch) -> list[RefusedRow]:
    error = _fails(connection, tables, epoch)
    found: list[RefusedRow] = []
    if error is not None:
        for what in tables:
            found += _left_out(connection, what, epoch, MOST - len(found))
        if not found:
            said, _ = error_in_words(error)
            raise refusal_by(error)(
                f"{epoch}: the rows for {', '.join(str(what.sink) for what in tables)} are refused: {said}. No row"
                " alone is to blame. Nothing was sealed."
            )
    return found


def is_rule(error: psycopg2.Error) -> bool:
    """Whether an error is caused by the rows or the table, so that a repeat fails again."""
    return error.pgcode is not None and not error.pgcode.startswith(PASSES)


def raised_by_code(error: psycopg2.Error) -> bool:
    """Whether a function of the target, such as a trigger's, raised the error: a repeat may go another way."""
    return (error.pgcode or "").startswith(_CODE) or "function " in (error.diag.context or "")


def refusal_by(error: psycopg2.Error) -> type[SealRefusedError]:
    """The class of the refusal that an error of the target causes."""
    return TargetCodeError if raised_by_code(error) else RowsRefusedError


def error_in_words(error: psycopg2.Error) -> tuple[str, str]:
    """An error as text for logs and as text for the ledger. The text for logs contains no values of rows."""
    primary = error.diag.message_primary or type(error).__name__
    rule = f" ({error.diag.constraint_name})" if error.diag.constraint_name else ""
    shown = type(error).__name__ if isinstance(error, psycopg2.DataError) else primary
    return shown + rule, primary + rule


def has_record(what: Application) -> bool:
    """Whether each staged row belongs to one record. Rows of a transform and sums may come from several."""
    return not what.pipeline.is_transformed and STAGED_LINEAGE.keys() <= what.staged.columns.keys()


def rows_where(
    connection: Connection,
    what: Application,
    condition: sql.Composable,
    said: str,
    source: sql.Composable | None = None,
) -> list[RefusedRow]:
    """The staged rows ``s`` for which a condition holds, as refused rows; only the first if rows have no record."""
    place: sql.Composable = sql.SQL("NULL, NULL, NULL")
    row: sql.Composable = sql.SQL("(to_jsonb(s) - '_number')::text")
    if has_record(what):
        place, row = names(("_topic", "_partition", "_offset"), "s"), sql.SQL("NULL")
    statement = sql.SQL("SELECT {place}, {row} FROM {rows} s WHERE {condition} LIMIT {most}").format(
        place=place, row=row, rows=source or what.staging, condition=condition,
        most=sql.Literal(MOST if has_record(what) else 1),
    )  # fmt: skip
    return [
        RefusedRow(
            sink=what.sink.table,
            said=said,
            reason=f"{what.sink}: {said}",
            place=None if topic is None else (str(topic), int(partition), int(offset)),
            row=None if staged is None else str(staged),
        )
        for topic, partition, offset, staged in execute_sql(connection, statement)[1]
    ]


def _fails(connection: Connection, tables: Sequence[Application], epoch: Epoch) -> psycopg2.Error | None:
    checks = []
    try:
        for what in tables:
            applied, check = apply_and_watch(connection, what, epoch)
            checks.append(check)
            if what.sink.mode not in ("append", "replace"):
                continue
            _, [(staged,)] = execute_sql(connection, sql.SQL("SELECT count(*) FROM {}").format(what.staging))
            if staged != applied.accounted:
                raise RowsRefusedError(
                    f"{epoch}: of the rows for {what.sink} only {applied.accounted} arrived in a trial: a trigger or"
                    " rule of the table drops rows. Remove it. Nothing was sealed."
                )
        execute_sql(connection, sql.SQL("SET CONSTRAINTS ALL IMMEDIATE"))
        for check in checks:
            check()
    except psycopg2.Error as error:
        if not is_rule(error):
            raise
        execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT trial"))
        return error
    return None


def _left_out(connection: Connection, what: Application, epoch: Epoch, most: int) -> list[RefusedRow]:
    """The rows of one target that do not fit the rows before them. The other rows stay applied."""
    rows = _numbered(connection, what)
    chunk = replace(what, rows=_CHUNK)
    if what.sink.mode == "replace":
        # Once, before the first chunk: a chunk must not delete the rows of the chunk before it.
        _take_all_away(connection, what, epoch)
        chunk = replace(chunk, sink=what.sink.model_copy(update={"mode": "append"}))
    found: list[RefusedRow] = []
    left = [(0, rows)] if rows else []
    while left and len(found) < (most if has_record(what) else 1):
        first, last = left.pop()
        error = _refuses(connection, chunk, epoch, first, last)
        if error is None:
            continue
        if last - first > 1:
            middle = (first + last) // 2
            left += [(middle, last), (first, middle)]
            continue
        said, reason = error_in_words(error)
        [row] = rows_where(connection, what, sql.SQL("_number = {}").format(sql.Literal(last)), said, _ROWS)
        found.append(replace(row, reason=f"{what.sink}: {reason}", raised=raised_by_code(error)))
    return found


def _take_all_away(connection: Connection, what: Application, epoch: Epoch) -> None:
    try:
        take_all_away(connection, what, epoch)
        execute_sql(connection, sql.SQL("SET CONSTRAINTS ALL IMMEDIATE"))
    except psycopg2.Error as error:
        if not is_rule(error):
            raise
        raise refusal_by(error)(
            f"{epoch}: {what.sink} refuses that its rows are replaced: {error_in_words(error)[0]}. Nothing was sealed."
        ) from None


def _numbered(connection: Connection, what: Application) -> int:
    """Copy the staged rows into a temporary table, numbered from 1 in the order of their records; count them."""
    order = [name for name in STAGED_LINEAGE if name in what.staged.columns] or list(what.sink.key)
    for statement in (
        sql.SQL("DROP VIEW IF EXISTS {}").format(_CHUNK),
        sql.SQL("DROP TABLE IF EXISTS {}").format(_ROWS),
        sql.SQL("CREATE TABLE {} AS SELECT s.*, row_number() OVER ({}) AS _number FROM {} s").format(
            _ROWS, sql.SQL("ORDER BY {}").format(names(order)) if order else sql.SQL(""), what.staging
        ),
        sql.SQL("CREATE UNIQUE INDEX ON {} (_number)").format(_ROWS),
    ):
        execute_sql(connection, statement)
    return int(execute_sql(connection, sql.SQL("SELECT count(*) FROM {}").format(_ROWS))[1][0][0])


def _refuses(connection: Connection, chunk: Application, epoch: Epoch, first: int, last: int) -> psycopg2.Error | None:
    """Apply the rows numbered ``(first, last]``; returns the error if they do not fit, and then applies none."""
    view = sql.SQL("CREATE OR REPLACE VIEW {} AS SELECT {} FROM {} WHERE _number > {} AND _number <= {}").format(
        _CHUNK, names(list(chunk.staged.columns)), _ROWS, sql.Literal(first), sql.Literal(last)
    )
    execute_sql(connection, view)
    execute_sql(connection, sql.SQL("SAVEPOINT chunk"))
    try:
        apply(connection, chunk, epoch)
        execute_sql(connection, sql.SQL("SET CONSTRAINTS ALL IMMEDIATE"))
    except psycopg2.Error as error:
        if not is_rule(error):
            raise
        execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT chunk"))
        return error
    execute_sql(connection, sql.SQL("RELEASE SAVEPOINT chunk"))
    return None
