"""Questions to the ledger and the target, read only: the statements of ``queries.sql``, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extensions import connection

from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.session_settings import set_local

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)

Row = dict[str, Any]


@cache
def _statements() -> dict[str, str]:
    _, *pieces = _NAME.split(Path(__file__).with_name("queries.sql").read_text())
    return {name: body.strip() for name, body in zip(pieces[::2], pieces[1::2], strict=True)}


class Session(connection):
    """A session in which each statement is a transaction of its own; here nothing is put before it."""

    before = ""


class _Reading(Session):
    """One in which no statement may write, and times are UTC."""

    before = f"SET TRANSACTION READ ONLY; {set_local({'TimeZone': 'UTC'})}; "


@contextmanager
def session(dsn: str, *, write: bool = False) -> Iterator[Session]:
    """A session that answers many questions, each on what is there now. It refuses to change anything unless told.

    Raises:
        LedgerUnavailableError, LedgerError: PostgreSQL cannot be reached, or refuses.
    """
    try:
        opened = psycopg2.connect(
            dsn,
            application_name="epochline cli",
            connect_timeout=10,
            connection_factory=Session if write else _Reading,
        )
        try:
            opened.autocommit = True
            yield opened
        finally:
            opened.close()
    except psycopg2.Error as error:
        raise explained(error) from error


def ask(opened: Session, name: str, **values: Any) -> list[Row]:
    """Run a named statement; its rows by column."""
    columns, rows = execute(opened, _statements()[name], values)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def execute(
    opened: Session, statement: str, values: dict[str, Any] | None = None
) -> tuple[list[str], Sequence[tuple[Any, ...]]]:
    """Run any statement; its columns and rows, none for a statement that gives none.

    Raises:
        LedgerUnavailableError, LedgerError: the session broke off, or PostgreSQL refuses.
    """
    try:
        with opened.cursor() as cursor:
            cursor.execute(opened.before + statement, values)
            if cursor.description is None:
                return [], []
            return [column.name for column in cursor.description], cursor.fetchall()
    except psycopg2.Error as error:
        raise explained(error) from error
