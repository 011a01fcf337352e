"""Sessions of a job on PostgreSQL: how they are opened, and which errors mean that one is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2 import errors
from psycopg2.extensions import ISOLATION_LEVEL_READ_COMMITTED, connection

from epochline.errors import LedgerUnavailableError
from epochline.failpoints import failpoint
from epochline.postgres.queries.session_settings import set_local

# A writer whose network is gone must not hold its transaction, and a fence must not wait for it, for hours.
_KEEPALIVES: dict[str, Any] = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_CONNECT_TIMEOUT_S = 30
_IDLE_IN_TRANSACTION = "30min"
"""Longer than Kafka may take for the next batch of rows; shorter than a worker that hangs may hold a lock."""

_SETTINGS = set_local(
    {
        "idle_in_transaction_session_timeout": _IDLE_IN_TRANSACTION,
        "synchronous_commit": "on",
        "search_path": "pg_catalog",
        "TimeZone": "UTC",
    }
)

LOST = (
    psycopg2.InterfaceError,
    psycopg2.OperationalError,
    errors.IdleInTransactionSessionTimeout,
    errors.UndefinedTable,
    errors.InvalidSchemaName,
)
"""Errors after which a writer asks whether its attempt was fenced: the session ended, or its table is gone."""


def connect(dsn: str, application_name: str) -> connection:
    """Open a session at READ COMMITTED, and its transaction with our settings in force; it serves that one alone.

    Raises:
        LedgerUnavailableError: PostgreSQL refuses or does not answer.
    """
    failpoint("session.connect")
    try:
        session: connection = psycopg2.connect(
            dsn,
            application_name=application_name,
            connect_timeout=_CONNECT_TIMEOUT_S,
            client_encoding="UTF8",
            **_KEEPALIVES,
        )
    except psycopg2.OperationalError as error:
        # libpq's message names host, port, user and database, and never the password.
        raise LedgerUnavailableError(f"PostgreSQL cannot be reached: {' '.join(str(error).split())}") from None
    session.set_session(isolation_level=ISOLATION_LEVEL_READ_COMMITTED, autocommit=False)
    with session.cursor() as cursor:
        failpoint("session.settings")
        cursor.execute(_SETTINGS)
    return session


@contextmanager
def transaction(dsn: str, application_name: str) -> Iterator[connection]:
    """A session of its own for one transaction, committed at the end of the block and rolled back by an error."""
    session = connect(dsn, application_name)
    try:
        yield session
        failpoint("session.commit")
        session.commit()
    finally:
        session.close()
