"""Run named statements on a connection of SQLAlchemy."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, CursorResult

from epochline.postgres.queries.named import statement


def run(connection: Connection, name: str, **values: Any) -> CursorResult[Any]:
    """Run a named statement in the connection's transaction, with bound values."""
    return connection.exec_driver_sql(statement(name), values)
