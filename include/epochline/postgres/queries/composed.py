"""Statements with names of tables and columns in them, composed by the driver's own quoting."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

from psycopg2 import sql
from sqlalchemy import Connection


def execute_sql(
    connection: Connection, statement: sql.Composable, values: Sequence[Any] = ()
) -> tuple[int, list[tuple[Any, ...]]]:
    """Run a composed statement in the connection's transaction.

    Returns:
        The number of rows it touched, and the rows that it returned, if any.
    """
    driver = connection.connection.dbapi_connection
    if driver is None:
        raise RuntimeError("the connection is closed")
    with closing(driver.cursor()) as cursor:
        # SQLAlchemy's type for a driver's cursor knows text alone; psycopg2's takes what psycopg2.sql composes.
        # Without values the driver must not look for placeholders: a quoted name may hold a % of its own.
        cursor.execute(cast("str", statement), tuple(values) or None)
        return cursor.rowcount, list(cursor.fetchall()) if cursor.description else []
