"""Queries of the command line to the ledger and the target: read only, and without SQLAlchemy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2.extensions import connection, new_type, register_type, string_types

from epochline.config.logins import log_in
from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.named import statement
from epochline.postgres.queries.session_settings import set_local
from epochline.postgres.queries.versions import opening, refuse_version

Row = dict[str, Any]


class Session(connection):
    """A session in which each statement is a transaction of its own."""

    before = ""
    """Statements that are sent to the server in front of each statement."""


class _Reading(Session):
    """A session in which no statement may write, and values are shown alike on every database."""

    before = f"SET TRANSACTION READ ONLY; {set_local({})}; "


@contextmanager
def session(dsn: str, *, write: bool = False, any_version: bool = False) -> Iterator[Session]:
    """Open a session in which each query sees what is committed at that moment.

    Args:
        dsn: libpq URL.
        write: allow changes; otherwise the server refuses them.
        any_version: open it whatever version of epochline the ledger allows, and without a ledger.

    Raises:
        VersionError: the ledger does not allow this version of epochline.
        LedgerUnavailableError, LedgerError: PostgreSQL cannot be reached, or refuses.
    """
    try:
        connection = log_in(
            dsn,
            application_name="epochline cli",
            connect_timeout=10,
            connection_factory=Session if write else _Reading,
            client_encoding="UTF8",
        )
        try:
            connection.autocommit = True
            if not any_version:
                _, rows = execute(connection, opening({}))
                refuse_version(rows[0])
            yield connection
        finally:
            connection.close()
    except psycopg2.Error as error:
        raise explained(error) from error


_BOOLEAN, _BYTES, _FLOATS = 16, 17, (700, 701)
_TIMES = (1082, 1083, 1114, 1184, 1186, 1266, 1182, 1183, 1115, 1185, 1187, 1270)
"""Dates, times, timestamps and intervals, and arrays of them."""


def show_texts(opened: Session, *, numbers: bool) -> None:
    """Let a session give values as PostgreSQL's texts, as psql shows them: Python has no year 10000 and no month.

    With ``numbers``, numbers, arrays and JSON documents stay Python's, for a program.
    """
    as_it_is = new_type(
        _TIMES if numbers else tuple({*string_types, *_TIMES} - {_BOOLEAN, _BYTES}), "SHOWN", lambda text, _: text
    )
    register_type(as_it_is, opened)
    if numbers:
        register_type(new_type(_FLOATS, "FLOATS", _json_number), opened)


def _json_number(text: Any, _: Any) -> Any:
    """A number that JSON has, else the text."""
    return text if text is None or text in ("NaN", "Infinity", "-Infinity") else float(text)


def ask(opened: Session, name: str, **values: Any) -> list[Row]:
    """Run a named statement; returns its rows as dicts by column name."""
    columns, rows = execute(opened, statement(name), values)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def execute(
    opened: Session, query: str, values: dict[str, Any] | None = None
) -> tuple[list[str], Sequence[tuple[Any, ...]]]:
    """Run any statement; returns its column names and its rows, both empty for a statement without a result.

    Raises:
        LedgerUnavailableError, LedgerError: the session broke off, or PostgreSQL refuses.
    """
    try:
        with opened.cursor() as cursor:
            cursor.execute(opened.before + query, values)
            if cursor.description is None:
                return [], []
            return [column.name for column in cursor.description], cursor.fetchall()
    except psycopg2.Error as error:
        raise explained(error) from error
