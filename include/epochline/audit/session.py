"""The audit's session: the expected rows are in temporary tables, which no other session has."""

import io
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Self

import psycopg2
import pyarrow as pa
from psycopg2 import sql
from psycopg2.extensions import connection

from epochline.arrow.stage.encoding import CopyEncoder
from epochline.declare.text_settings import UTF8
from epochline.errors import ConfigurationError
from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.session_settings import one_transaction, set_local
from epochline.postgres.queries.statements import compose, names

_BEGIN = f"{set_local({'lock_timeout': 30_000})}; SELECT pg_backend_pid()"


class AuditSession(connection):
    """One session of the server. Each snapshot is a transaction."""

    _process: int | None = None

    @contextmanager
    def snapshot(self, *, read_only: bool = False) -> Iterator[Self]:
        """Begin a transaction, which writes at most to temporary tables if it is ``read_only``; commit it at the end.

        Raises:
            ConfigurationError: the connection leads to another session now.
        """
        with one_transaction(self):
            with self.cursor() as cursor:
                cursor.execute(f"SET TRANSACTION READ ONLY; {_BEGIN}" if read_only else _BEGIN)
                [(process,)] = cursor.fetchall()
            if self._process not in (None, process):
                raise ConfigurationError(
                    "the audit needs one session of the server, but its connection leads to another session in each"
                    " transaction, as a pooler in transaction mode does. Give it a direct connection to PostgreSQL."
                )
            self._process = process
            yield self

    def copy_rows(self, table: str | sql.Composable, columns: Mapping[str, str], rows: pa.RecordBatch) -> None:
        """Copy rows, encoded as in staging, into a temporary table that has at least these columns; in a `snapshot`."""
        if not rows.num_rows:
            return
        encoder = CopyEncoder(columns)
        data = b"".join((encoder.begin(), encoder.encode(rows.select(list(columns))), encoder.end()))
        statement = compose(
            "COPY {table} ({columns}) FROM STDIN WITH ({options})",
            table=table, columns=names(columns), options=sql.SQL(encoder.copy_options),
        )  # fmt: skip
        with self.cursor() as cursor:
            cursor.copy_expert(statement, io.BytesIO(data), size=1 << 16)


@contextmanager
def open_session(dsn: str) -> Iterator[AuditSession]:
    """Open the session that an audit needs; raises `LedgerUnavailableError` or `LedgerError` as PostgreSQL does."""
    try:
        session = psycopg2.connect(
            dsn, connection_factory=AuditSession, application_name="epochline audit", connect_timeout=10, **UTF8
        )
        session.set_session(isolation_level="REPEATABLE READ")
        with closing(session):
            yield session
    except psycopg2.Error as error:
        raise explained(error) from error
