"""A PostgreSQL table that only grows, as a source: its positions are the table's identity column."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import ISOLATION_LEVEL_REPEATABLE_READ

from epochline.config.connections import Connection, libpq_url
from epochline.config.logins import log_in
from epochline.declare.text_settings import TEXT_SETTINGS, UTF8
from epochline.errors import SourceError, SourceUnavailableError, one_line
from epochline.protocol.source import SourcePartition, SourceRecord
from epochline.sources.growth import Growth, drawn, examine, open_writers, why_not

_ROWS = 200
"""Rows that a read asks the server for at once, as a row may be large."""

_LOOK_AGAIN_SECONDS = 0.05

_SETTINGS: Mapping[str, str | int] = {
    **TEXT_SETTINGS,
    "search_path": "pg_catalog",
    "IntervalStyle": "iso_8601",
    "lock_timeout": "30s",
    # Without it a policy hides rows in silence.
    "row_security": "off",
    "synchronous_commit": "on",
}
"""Settings of each transaction. The text of a row depends on them."""

_FLUSH = "SELECT pg_logical_emit_message(true, 'epochline', '')"
"""A commit that PostgreSQL writes to disk, so that no crash gives an id again that was drawn before and not used."""


class GrowingTable:
    """The rows of a table, each once, in the order of its identity column. Declare it with ``positions="sparse"``.

    A record's value is the row as JSON, its key is the id as text, its position is the id. A row with a lower id that
    commits later is not lost: `partitions` gives an end below which no transaction may still commit an id. See
    docs/sources.md for what the table's writers must keep.

    Args:
        connection: of the primary server; its login reads the table and the identity column's sequence.
        table: name of the table.
        key: name of its column ``GENERATED ALWAYS AS IDENTITY``.
        schema: the table's schema.
        columns: which columns a record has; None for all.
        patience_seconds: how long `partitions` waits for transactions that write to the table. One that is still open
            then holds the whole table back until the next plan.
    """

    def __init__(
        self,
        connection: Connection,
        table: str,
        key: str,
        schema: str = "public",
        columns: Sequence[str] | None = None,
        patience_seconds: float = 5,
    ) -> None:
        self._url = libpq_url(connection)
        self._name = f"{schema}.{table}"
        self._place = schema, table, key
        row: sql.Composable = sql.SQL("row_to_json(rows)")
        if columns is not None:
            chosen = sql.SQL(", ").join(sql.Identifier("rows", column) for column in columns)
            row = sql.SQL("(SELECT row_to_json(chosen) FROM (SELECT {}) AS chosen)").format(chosen)
        self._names = {"table": sql.Identifier(schema, table), "key": sql.Identifier("rows", key), "row": row}
        self._patience = patience_seconds

    def partitions(self) -> Sequence[SourcePartition]:
        """The table as one partition; waits for open transactions. Raises `SourceError`."""
        with self._session() as session:
            with self._transaction(session) as cursor:
                growth = self._examined(cursor)
                newest, highest = drawn(cursor, growth, *self._place)
            if highest is not None and highest >= newest:
                raise SourceError(
                    f"table {self._name} has a row with id {highest}, which its sequence has not given yet: a writer"
                    " gives ids of its own. Nothing was planned. ALTER TABLE … ALTER COLUMN … RESTART WITH a higher id."
                )
            writers = self._writers_left(session, growth)
            with self._transaction(session) as cursor:
                cursor.execute(_FLUSH)
        return [
            SourcePartition(
                partition=0,
                identity=growth.identity,
                start=growth.first,
                end=growth.first if writers else newest,
                newest=newest,
                waits_for=f"table {self._name} is being written by {', '.join(writers)}" if writers else None,
            )
        ]

    def read(self, partition: int, start: int, until: int) -> Iterator[SourceRecord]:
        """The rows with ids in the range, by a cursor of the server. Raises as `partitions`."""
        with self._session() as session, self._transaction(session) as checking:
            self._examined(checking)
            with session.cursor(name="epochline") as cursor:
                cursor.itersize = _ROWS
                select = "SELECT {key}, {row}::text FROM ONLY {table} AS rows WHERE {range} ORDER BY {key}"
                cursor.execute(sql.SQL(select).format(**self._names, range=self._range(start, until)))
                for position, row in cursor:
                    yield SourceRecord(position=position, key=str(position).encode(), value=row.encode())

    def count(self, partition: int, start: int, until: int) -> int:
        """The number of rows with ids in the range. Raises as `partitions`."""
        with self._session() as session, self._transaction(session) as cursor:
            self._examined(cursor)
            select = sql.SQL("SELECT count(*) FROM ONLY {table} AS rows WHERE {range}")
            cursor.execute(select.format(table=self._names["table"], range=self._range(start, until)))
            return int(cursor.fetchone()[0])

    def _range(self, start: int, until: int) -> sql.Composed:
        # No parameters: the driver would take a % in a name for one.
        within = sql.SQL("{key} >= {start} AND {key} < {until}")
        return within.format(key=self._names["key"], start=sql.Literal(start), until=sql.Literal(until))

    def _examined(self, cursor: Any) -> Growth:
        growth = examine(cursor, *self._place)
        if growth is None:
            raise SourceError(f"there is no table {self._name} with a column {self._place[2]}.")
        problem = why_not(growth)
        if problem is not None:
            raise SourceError(f"table {self._name} cannot be read as a growing table: {problem}")
        return growth

    def _writers_left(self, session: Any, growth: Growth) -> Sequence[str]:
        """Wait for the transactions that could hold an id at or below the newest; name those that are left.

        A transaction locks the table before it draws an id, and keeps the lock until it ends. So each transaction
        that drew one of these ids and has not ended holds the lock now. Later ones draw higher ids.
        """
        until, awaited = time.monotonic() + self._patience, None
        while True:
            with self._transaction(session) as cursor:
                open_now = open_writers(cursor, growth.table)
            # A transaction that is prepared gets another name.
            left = [writer for writer in open_now if awaited is None or writer.prepared or writer.name in awaited]
            if not left or time.monotonic() >= until:
                return [str(writer) for writer in left]
            awaited = {writer.name for writer in left}
            time.sleep(_LOOK_AGAIN_SECONDS)

    @contextmanager
    def _session(self) -> Iterator[Any]:
        try:
            with closing(
                log_in(
                    self._url, application_name="epochline source", connect_timeout=30, **UTF8,
                    keepalives=1, keepalives_idle=30, keepalives_interval=10, keepalives_count=3,
                )
            ) as session:  # fmt: skip
                session.set_session(isolation_level=ISOLATION_LEVEL_REPEATABLE_READ)
                yield session
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            # libpq's message names host, port, user and database, but never the password.
            raise SourceUnavailableError(f"table {self._name}: PostgreSQL does not answer: {one_line(error)}") from None
        except psycopg2.Error as error:
            # The driver's text may quote a value; the primary message names objects.
            raise SourceError(
                f"table {self._name}: PostgreSQL: {error.diag.message_primary or error.pgcode}."
            ) from None

    @contextmanager
    def _transaction(self, session: Any) -> Iterator[Any]:
        """One transaction with its settings, because a pooler may give each another session."""
        with session, session.cursor() as cursor:
            cursor.execute("; ".join(f"SET LOCAL {name} TO '{value}'" for name, value in _SETTINGS.items()))
            yield cursor
