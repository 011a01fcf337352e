"""Opens a job's sessions on PostgreSQL, and lists the errors that mean a lost session."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2 import errors
from psycopg2.extensions import ISOLATION_LEVEL_READ_COMMITTED, ISOLATION_LEVEL_REPEATABLE_READ, connection

from epochline.config.logins import log_in
from epochline.declare.text_settings import UTF8
from epochline.errors import LedgerUnavailableError, one_line
from epochline.failpoints import failpoint
from epochline.postgres.queries.versions import opening, refuse_unfit

# Without these a writer that lost its network could hold its transaction, and make a fence wait, for hours.
_KEEPALIVES: dict[str, Any] = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_CONNECT_TIMEOUT_S = 30
_IDLE_IN_TRANSACTION = "30min"
"""Longer than Kafka may take for the next batch; short enough to release the locks of a hanging worker."""

_SETTINGS = opening(
    {
        "idle_in_transaction_session_timeout": _IDLE_IN_TRANSACTION,
        "synchronous_commit": "on",
        "search_path": "pg_catalog",
    }
)

LOST = (
    psycopg2.InterfaceError,
    psycopg2.OperationalError,
    errors.IdleInTransactionSessionTimeout,
    errors.UndefinedTable,
    errors.InvalidSchemaName,
)
"""Errors that may mean a fenced attempt, because the session ended or its table is gone. The writer checks then."""


def connect(dsn: str, application_name: str, *, snapshot: bool = False) -> connection:
    """Open a session for one transaction, at READ COMMITTED and with our settings.

    With ``snapshot`` the whole transaction sees one moment, and cannot write.

    Raises:
        LedgerUnavailableError: PostgreSQL refuses or does not answer.
        ConfigurationError: the login's sessions fire no triggers.
        VersionError: the ledger does not allow this version of epochline.
    """
    failpoint("session.connect")
    try:
        session: connection = log_in(
            dsn, application_name=application_name, connect_timeout=_CONNECT_TIMEOUT_S, **UTF8, **_KEEPALIVES
        )
    except psycopg2.OperationalError as error:
        # libpq's message names host, port, user and database, but never the password.
        raise LedgerUnavailableError(f"PostgreSQL cannot be reached: {one_line(error)}") from None
    level = ISOLATION_LEVEL_REPEATABLE_READ if snapshot else ISOLATION_LEVEL_READ_COMMITTED
    session.set_session(isolation_level=level, readonly=snapshot, autocommit=False)
    with session.cursor() as cursor:
        failpoint("session.settings")
        cursor.execute(_SETTINGS)
        [opened] = cursor.fetchall()
    refuse_unfit(session, opened)
    return session


@contextmanager
def transaction(dsn: str, application_name: str, *, snapshot: bool = False) -> Iterator[connection]:
    """Open a session, as `connect` does; commit it at the end of the block, roll it back on an error."""
    session = connect(dsn, application_name, snapshot=snapshot)
    try:
        yield session
        failpoint("session.commit")
        session.commit()
    finally:
        session.close()
