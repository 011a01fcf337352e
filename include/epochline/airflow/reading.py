"""Read the ledger with a reader's login: one snapshot per page, read only, with a time limit for each statement."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg2
from psycopg2.errors import InsufficientPrivilege, InvalidParameterValue
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from epochline.adapters import Adapters
from epochline.config.logins import log_in
from epochline.declare.names import INSPECTOR
from epochline.declare.text_settings import UTF8
from epochline.errors import LedgerError, LedgerUnavailableError
from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.named import statement
from epochline.postgres.queries.versions import opening, refuse_version
from epochline.protocol.why import Why

_STATEMENT_TIMEOUT_SECONDS = 10
_WAIT_FOR_SESSION_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows by column name, and the SQL that made them."""

    rows: list[dict[str, Any]]
    sql: str
    columns: Sequence[str] = ()


class Snapshot:
    """A transaction in which every statement sees the same moment of the ledger."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, name: str, **values: Any) -> Table:
        """Run a named statement with bound values."""
        with closing(self._driver.cursor()) as cursor:
            # The driver quotes the values once, for the server and for a person to copy.
            text: bytes = cursor.mogrify(statement(name), values)
            cursor.execute(text)
            names = [column[0] for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            return Table(rows=rows, sql=text.decode(), columns=names)

    def explain(self, table: str, key: Sequence[str], most: int, pipeline: str) -> Why:
        """What made rows of a pipeline's table: as `epochline.postgres.ledger.why.explain`, with its errors."""
        return Adapters.explain(self._driver, table, key, most, pipeline)

    @property
    def _driver(self) -> Any:
        driver = self._connection.connection.dbapi_connection
        if driver is None:
            raise RuntimeError("the connection is closed")
        return driver


@contextmanager
def snapshot(
    dsn: str, *, inspect: bool = False, statement_seconds: int = _STATEMENT_TIMEOUT_SECONDS
) -> Iterator[Snapshot]:
    """Open a transaction that reads one moment of the ledger and may write nothing.

    Args:
        dsn: libpq URL of a reader's login.
        inspect: take the role that sees the bytes and reasons of quarantined records, for this transaction alone.
        statement_seconds: PostgreSQL ends each statement after so long.

    Raises:
        LedgerUnavailableError, LedgerError: PostgreSQL cannot be reached, has no session left, or refuses.
        VersionError: the ledger does not allow this version of epochline.
    """
    try:
        with _engine(dsn).begin() as connection:
            opened = connection.exec_driver_sql(opening({"statement_timeout": statement_seconds * 1000}))
            refuse_version(tuple(opened.one()))
            if inspect:
                _take_role(connection, dsn)
            yield Snapshot(connection)
    except (DBAPIError, psycopg2.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, InsufficientPrivilege):
            raise LedgerError(
                "The login of the pages may not read the ledger's views. Run"
                f" `GRANT epochline_reader TO {_login(dsn)}` in PostgreSQL."
            ) from error
        raise explained(cause) from error
    except PoolTimeoutError as error:
        raise LedgerUnavailableError("every session of the pages is busy; try again") from error


def _take_role(connection: Connection, dsn: str) -> None:
    """Become an inspector until the transaction ends."""
    try:
        connection.exec_driver_sql(f"SET LOCAL ROLE {INSPECTOR}")
    except DBAPIError as error:
        if not isinstance(error.orig, InsufficientPrivilege | InvalidParameterValue):
            raise
        raise LedgerError(
            f"The login of the pages may not see the bytes of quarantined records. Run `epochline migrate`, and then"
            f" `GRANT {INSPECTOR} TO {_login(dsn)} WITH INHERIT FALSE` in PostgreSQL."
        ) from error


def _login(dsn: str) -> str:
    return unquote(urlsplit(dsn).username or "")


@lru_cache(maxsize=8)
def _engine(dsn: str) -> Engine:
    """A few sessions that stay open, so that a page does not wait for a login."""
    return create_engine(
        "postgresql+psycopg2://",
        creator=lambda: log_in(dsn, application_name="epochline pages", connect_timeout=5, **UTF8),
        pool_size=3,
        max_overflow=5,
        pool_timeout=_WAIT_FOR_SESSION_SECONDS,
        pool_pre_ping=True,
        pool_recycle=600,
        isolation_level="REPEATABLE READ",
        execution_options={"postgresql_readonly": True},
    )
