"""The ledger on PostgreSQL: its transactions and sessions."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import cast

import psycopg2
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from epochline.config.logins import log_in
from epochline.declare.pipeline import Pipeline
from epochline.declare.text_settings import UTF8
from epochline.errors import ConfigurationError
from epochline.postgres.ledger.chain import PostgresChain
from epochline.postgres.ledger.epochs import PostgresAttempts, PostgresEpochs
from epochline.postgres.ledger.erasures import PostgresErasures
from epochline.postgres.ledger.history import PostgresHistory, PostgresOperators
from epochline.postgres.ledger.quarantine import PostgresQuarantine
from epochline.postgres.ledger.receipts import PostgresReceipts
from epochline.postgres.ledger.savepoints import PostgresSavepoints
from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.session_settings import one_transaction
from epochline.postgres.queries.statements import Connection, query
from epochline.postgres.queries.versions import opening, refuse_unfit
from epochline.postgres.targets.states import PostgresStates
from epochline.postgres.targets.tables import PostgresTargets
from epochline.protocol.sink import Sink

LOCK_TIMEOUT_SECONDS = 30
CLIENT_CHECK_SECONDS = 2
"""How often the server checks that the client of a running statement is still connected."""

STATEMENT_TIMEOUT_SECONDS = 900


SinkFactory = Callable[["PostgresLedger", Pipeline, str], Sink]
"""Creates a sink that shows an epoch after its commit, from ledger, declaration and name."""


def _idle_seconds(lock_timeout: float) -> float:
    return max(10.0, lock_timeout / 2)


class PostgresTransaction:
    """One transaction on the target database, as `epochline.ports.Transaction` describes it."""

    def __init__(self, connection: Connection) -> None:
        self.epochs = PostgresEpochs(connection)
        self.chain = PostgresChain(connection)
        self.attempts = PostgresAttempts(connection)
        self.targets = PostgresTargets(connection)
        self.quarantine = PostgresQuarantine(connection)
        self.operators = PostgresOperators(connection)
        self.history = PostgresHistory(connection)
        self.states = PostgresStates(connection)
        self.savepoints = PostgresSavepoints(connection)
        self.erasures = PostgresErasures(connection)
        self.receipts = PostgresReceipts(connection)


class PostgresLedger:
    """Transactions on one PostgreSQL database, each on a connection of its own.

    Args:
        dsn: URL of the target database, as for `epochline.config.logins.log_in`.
        application_name: shown in ``pg_stat_activity``.
        lock_timeout: seconds to wait for a lock before `LockTimeoutError`.
        sink_factory: creates the sinks that show an epoch after its commit; None if no such sink is needed.
        any_version: ask no ledger whether it allows this version: for what concerns targets alone.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application_name: str = "epochline",
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
        sink_factory: SinkFactory | None = None,
        any_version: bool = False,
    ) -> None:
        self._sink_factory = sink_factory
        keepalives = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        self._engine = create_engine(
            "postgresql+psycopg2://",
            creator=lambda: log_in(dsn, application_name=application_name, connect_timeout=10, **keepalives, **UTF8),
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
        )
        self._settings = opening(
            {
                "lock_timeout": int(lock_timeout * 1000),
                "statement_timeout": STATEMENT_TIMEOUT_SECONDS * 1000,
                # The server ends a stopped process's transaction before others give up waiting for its locks.
                "idle_in_transaction_session_timeout": int(_idle_seconds(lock_timeout) * 1000),
                # A commit that was confirmed must survive a crash, whatever the default of the role.
                "synchronous_commit": "on",
                # The statement of a killed task ends within seconds. By default the server lets it run.
                "client_connection_check_interval": CLIENT_CHECK_SECONDS * 1000,
            },
            any_version=any_version,
        )

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        """Create a sink of a declaration that shows an epoch after its commit."""
        if self._sink_factory is None:
            raise ConfigurationError(f"{pipeline.name}: this process was given no way to reach {name}.")
        return self._sink_factory(self, pipeline, name)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A transaction without the sides of a use case. The publisher of a topic reads its outbox in it.

        Raises:
            LedgerUnavailableError, LockTimeoutError, LedgerError: for the reasons that `transaction` gives.
        """
        try:
            pooled = self._engine.raw_connection()
            pooled.detach()
            session = cast("Connection", pooled.dbapi_connection)
            with closing(session), one_transaction(session):
                [opened] = query(session, self._settings)
                refuse_unfit(session, opened)
                yield session
        except DBAPIError as error:
            # Not chained: the driver's error may contain a row, and a traceback shows the whole chain.
            raise explained(error.orig) from None
        except psycopg2.Error as error:
            raise explained(error) from None

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        """Commit at the end of the block, or roll back if the block raises.

        Raises:
            VersionError: the ledger does not allow this version of epochline; the block does not run.
            LedgerUnavailableError: the connection failed; a commit in progress may or may not have happened.
            LockTimeoutError: another transaction held a lock too long.
            StatementTimeoutError: a statement took too long or was cancelled.
            PlanChangedError: another run wrote an unfinished epoch at the same moment.
            LedgerError: PostgreSQL refused a statement.
        """
        with self.connection() as connection:
            yield PostgresTransaction(connection)
