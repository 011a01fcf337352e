"""What a target refuses: errors of PostgreSQL that rows cause, in words, and the rows that they are about."""

from collections.abc import Callable
from typing import TypeVar

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.errors import RowsRefusedError, SealRefusedError, TargetCodeError
from epochline.postgres.queries.composed import change, compose, names
from epochline.postgres.targets.application import Application
from epochline.protocol.refused import MOST, RefusedRow

Result = TypeVar("Result")

PASSES = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE that are not caused by a row: sessions, locks, resources, cancelled statements."""

_CODE = ("P0", "38", "39")
"""Classes of SQLSTATE that functions raise: PL/pgSQL, and routines in other languages."""


def attempt(connection: Connection, work: Callable[[], Result], *, keep: bool = True) -> Result | psycopg2.Error:
    """The result of some work or the error that rows or tables caused, in which case nothing was changed.

    Args:
        connection: in a transaction, whose savepoints nest.
        work: what to do.
        keep: whether the changes stay if the work succeeds.

    Raises:
        psycopg2.Error: sessions, locks or resources caused the error.
    """
    change(connection, "SAVEPOINT attempt")
    done: Result | psycopg2.Error
    try:
        done = work()
    except psycopg2.Error as error:
        # Only an error that the rows or the table cause comes again at a repeat.
        if error.pgcode is None or error.pgcode.startswith(PASSES):
            raise
        done = error
    if not keep or isinstance(done, psycopg2.Error):
        change(connection, "ROLLBACK TO SAVEPOINT attempt")
    change(connection, "RELEASE SAVEPOINT attempt")
    return done


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
    rule += "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    without_values = type(error).__name__ if isinstance(error, psycopg2.DataError) else primary
    return without_values + rule, primary + rule


def rows_where(
    what: Application, condition: sql.Composable, said: str, source: sql.Composable | None = None
) -> list[RefusedRow]:
    """The staged rows ``s`` for which a condition holds, as refused rows; only the first if rows have no record."""
    rows = what.query(
        "SELECT {shown} FROM {rows} s WHERE {condition} LIMIT {most}",
        shown=shown(what), rows=source or what.staging, condition=condition, most=MOST if what.has_record else 1,
    )  # fmt: skip
    return [refused_row(what, said, f"{what.sink}: {said}", *row) for row in rows]


def shown(what: Application) -> sql.Composable:
    """What identifies a staged row ``s``: topic, partition and offset of its record, or the row itself as JSON."""
    if what.has_record:
        return compose("{place}, NULL", place=names(("_topic", "_partition", "_offset"), "s"))
    return sql.SQL("NULL, NULL, NULL, to_jsonb(s)::text")


def refused_row(
    what: Application, said: str, reason: str, topic: str | None, partition: int, offset: int, row: str | None
) -> RefusedRow:
    """A refused row of a target from the columns of `shown`."""
    place = None if topic is None else (topic, partition, offset)
    return RefusedRow(sink=what.sink.table, said=said, reason=reason, place=place, row=row)
