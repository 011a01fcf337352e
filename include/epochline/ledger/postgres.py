"""The ledger on PostgreSQL: where its transactions come from, and what the driver's errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg2
from psycopg2 import errorcodes
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from epochline.errors import (
    ConfigurationError,
    EpochlineError,
    LedgerError,
    LedgerUnavailableError,
    LockTimeoutError,
    PlanChangedError,
    StatementTimeoutError,
)
from epochline.ledger.attempts import PostgresAttempts
from epochline.ledger.chain import PostgresChain
from epochline.ledger.epochs import PostgresEpochs
from epochline.ledger.history import PostgresHistory
from epochline.ledger.operators import PostgresOperators
from epochline.ledger.quarantine import PostgresQuarantine
from epochline.ledger.receipts import PostgresReceipts
from epochline.ledger.savepoints import PostgresSavepoints
from epochline.ledger.states import PostgresStates
from epochline.ledger.times import PostgresTimes
from epochline.pipeline import Pipeline
from epochline.sink import Sink
from epochline.sinks.postgres import PostgresTargets

LOCK_TIMEOUT_SECONDS = 30
_IDLE_SECONDS = 10.0
STATEMENT_TIMEOUT_SECONDS = 900
_DATA_EXCEPTION = errorcodes.CLASS_DATA_EXCEPTION
"""What PostgreSQL says of a value that it cannot take begins with the value itself."""


Outlets = Callable[["PostgresLedger", Pipeline, str], Sink]
"""Makes the sinks of a declaration that show an epoch after its commit."""


class PostgresTransaction:
    """One transaction of the target database, seen from the sides of `epochline.ports.Transaction`."""

    def __init__(self, connection: Connection) -> None:
        self.epochs = PostgresEpochs(connection)
        self.chain = PostgresChain(connection)
        self.attempts = PostgresAttempts(connection)
        self.targets = PostgresTargets(connection)
        self.quarantine = PostgresQuarantine(connection)
        self.operators = PostgresOperators(connection)
        self.history = PostgresHistory(connection)
        self.states = PostgresStates(connection)
        self.times = PostgresTimes(connection)
        self.savepoints = PostgresSavepoints(connection)
        self.receipts = PostgresReceipts(connection)


class PostgresLedger:
    """Transactions on one PostgreSQL database, each on a connection of its own.

    Args:
        dsn: libpq URL or SQLAlchemy URL of the target database.
        application_name: shown in ``pg_stat_activity``.
        lock_timeout: seconds that a lock is waited for before `LockTimeoutError`.
        outlets: makes the sinks that show an epoch after its commit; who has no such sinks needs none.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application_name: str = "epochline",
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
        outlets: Outlets | None = None,
    ) -> None:
        self._outlets = outlets
        url = make_url(dsn).set(drivername="postgresql+psycopg2")
        self._engine = create_engine(
            url,
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
            connect_args={
                "application_name": application_name,
                "connect_timeout": 10,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                # synchronous_commit: what is answered as committed must survive a crash, whatever the role's default.
                # TimeZone: times are shown, and text is read, the same on every machine.
                "options": (
                    f"-c lock_timeout={int(lock_timeout * 1000)}"
                    f" -c statement_timeout={STATEMENT_TIMEOUT_SECONDS * 1000}"
                    f" -c idle_in_transaction_session_timeout={int(self._idle_limit(lock_timeout) * 1000)}"
                    " -c synchronous_commit=on -c TimeZone=UTC"
                ),
            },
        )

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        """A sink of a declaration that shows an epoch after its commit."""
        if self._outlets is None:
            raise ConfigurationError(f"{pipeline.name}: {name} cannot be reached from here: nobody said how.")
        return self._outlets(self, pipeline, name)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A transaction, for what is no use case: a topic's publisher reads its outbox by it.

        Raises:
            LedgerUnavailableError, LockTimeoutError, LedgerError: as `transaction` does.
        """
        with _explaining(), self._engine.begin() as connection:
            yield connection

    @staticmethod
    def _idle_limit(lock_timeout: float) -> float:
        """Seconds that a transaction may stand still: less than others wait for its locks, where that is long enough.

        A process that was stopped inside a transaction then loses it before the next attempt gives up (F7, F15).
        """
        return max(_IDLE_SECONDS, lock_timeout / 2)

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        """Commit where the block ends well, roll back where it raises.

        Raises:
            LedgerUnavailableError: the connection failed; a commit in flight may have happened or not.
            LockTimeoutError: another transaction held a lock too long.
            StatementTimeoutError: a statement took too long, or somebody cancelled it.
            PlanChangedError: another run wrote an unfinished epoch at the same moment.
            LedgerError: PostgreSQL refused a statement.
        """
        with self.connection() as connection:
            yield PostgresTransaction(connection)


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except EpochlineError:
        raise
    except DBAPIError as error:
        # Not chained: a driver's error shows the row in question, and a traceback shows the whole chain.
        raise explained(error.orig) from None
    except psycopg2.Error as error:
        raise explained(error) from None


def explained(error: BaseException | None) -> EpochlineError:
    """The driver's error as one of ours, without values of rows: details are left out, and what is said of a value."""
    if not isinstance(error, psycopg2.Error):
        return LedgerError(str(error))
    code = error.pgcode or ""
    message = (error.diag.message_primary or str(error)).strip().splitlines()[0] if (error.diag or error.args) else code
    if code.startswith(_DATA_EXCEPTION):
        message = f"{errorcodes.lookup(code).lower().replace('_', ' ')} (the value is not shown)"
    if code in (
        errorcodes.LOCK_NOT_AVAILABLE,
        errorcodes.DEADLOCK_DETECTED,
        errorcodes.SERIALIZATION_FAILURE,
    ):
        return LockTimeoutError(
            f"PostgreSQL: {message}. Another transaction holds what this one needs; nothing was changed."
        )
    if code == errorcodes.UNIQUE_VIOLATION and error.diag.constraint_name == "one_unfinished_epoch":
        return PlanChangedError("another run wrote an unfinished epoch of the pipeline at the same moment")
    if code in (errorcodes.UNDEFINED_TABLE, errorcodes.INVALID_SCHEMA_NAME) and "epochline." in message:
        return LedgerError(
            f"PostgreSQL: {message}. The ledger is missing or older than this code: run `epochline migrate`."
        )
    if code == errorcodes.INSUFFICIENT_PRIVILEGE:
        return LedgerError(
            f"PostgreSQL: {message}. This login may not do that; nothing was changed. Whoever runs the ledger is a"
            " member of epochline_owner: `epochline migrate` grants what is missing and prints what a DBA has to run."
        )
    if code == errorcodes.QUERY_CANCELED:
        return StatementTimeoutError(f"PostgreSQL: {message}. The transaction was rolled back; nothing was changed.")
    # 53: resources that are short now (memory, disk, connections); 58: the operating system refused.
    lost = not code or code.startswith(("08", "57P", "53", "58"))
    # The server ended the session of a process that stood still in a transaction; no class of codes says so.
    stood_still = code == errorcodes.IDLE_IN_TRANSACTION_SESSION_TIMEOUT
    if lost or stood_still or isinstance(error, psycopg2.InterfaceError):
        return LedgerUnavailableError(f"PostgreSQL cannot be reached or broke off: {message}")
    return LedgerError(f"PostgreSQL refused ({code}): {message}")
