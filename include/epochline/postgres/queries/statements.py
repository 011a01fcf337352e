"""Run named statements on a connection of SQLAlchemy."""

from typing import Any

from sqlalchemy import Connection, CursorResult

from epochline.postgres.queries.named import statement


def run(connection: Connection, name: str, **values: Any) -> CursorResult[Any]:
    """Run a named statement in the connection's transaction, with bound values. It ignores values that it has not."""
    return connection.exec_driver_sql(statement(name), values)


class InTransaction:
    """What every adapter of the ledger is: named statements in the transaction of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _run(self, name: str, **values: Any) -> CursorResult[Any]:
        return run(self._connection, name, **values)
