"""Run statements with table and column names that ``psycopg2.sql`` composed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

from psycopg2 import sql
from sqlalchemy import Connection


def as_text(connection: Connection, statement: sql.Composable) -> str:
    """A composed statement as text, for a person to run."""
    driver = connection.connection.dbapi_connection
    if driver is None:
        raise RuntimeError("the connection is closed")
    return statement.as_string(cast("Any", driver))


def execute_sql(
    connection: Connection, statement: sql.Composable, values: Sequence[Any] = ()
) -> tuple[int, list[tuple[Any, ...]]]:
    """Run a composed statement in the connection's transaction.

    Returns:
        The number of rows that the statement wrote or returned, and the returned rows.
    """
    driver = connection.connection.dbapi_connection
    if driver is None:
        raise RuntimeError("the connection is closed")
    with closing(driver.cursor()) as cursor:
        # SQLAlchemy types the driver's cursor for text only; psycopg2's cursor also takes composed statements.
        # Without values the driver must not look for placeholders, because a quoted name may contain a %.
        cursor.execute(cast("str", statement), tuple(values) or None)
        return cursor.rowcount, list(cursor.fetchall()) if cursor.description else []
