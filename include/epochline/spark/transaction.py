"""The one PostgreSQL transaction in which a Spark partition stages its rows."""

from __future__ import annotations

import contextlib
import io
import re
import socket
from collections.abc import Callable, Iterator, Sequence

import psycopg2
from psycopg2 import errors, sql

from epochline.errors import (
    BadRecordError,
    EpochFencedError,
    LedgerUnavailableError,
    NonDeterministicPartError,
    RecordsRefusedError,
)
from epochline.failpoints import failpoint
from epochline.postgres.ledger.parts import (
    EXTERNAL,
    Part,
    first_parts,
    insert_parts,
    record_fenced_write,
    refuse_record,
    standing,
)
from epochline.protocol.refused import Place
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.spark.connection import LOST, connect, transaction

_REFUSED_COLUMN = re.compile(r"^COPY [^,]+, \D+ (?P<line>\d+)(?:, \S+ (?P<column>[^:]+?)\s*:)?")
"""Without words, because they are in the language of the server's ``lc_messages``."""
_REPORTER = "epochline:refused"
"""Application name of the session that records a refused write. It differs, so that a fence does not end it too."""


class PartTransaction:
    """Stages the rows of one Spark partition, all or none.

    If the process dies before `finish` commits, PostgreSQL rolls the transaction back and no row is left. `finish`
    inserts the part rows on condition that the attempt is neither fenced nor sealed.
    """

    def __init__(self, ticket: StagingTicket, dsn: str, write_id: str, spark_partition: int) -> None:
        self._ticket = ticket
        self._dsn = dsn
        self._write_id = write_id
        self._spark_partition = spark_partition
        failpoint("write.connect")
        self._session = connect(dsn, ticket.application_name)
        self._backend_pid = self._session.info.backend_pid

    def copy(
        self, table: StagedTable, options: str, data: bytes, place: Callable[[int], Place | None] = lambda _: None
    ) -> None:
        """Append encoded rows to a staging table.

        Args:
            table: the staging table.
            options: COPY options of the encoder that made the data.
            data: one complete COPY stream.
            place: returns the record of a row by its number in the stream, or None if it cannot be set aside.

        Raises:
            EpochFencedError: the attempt was fenced, and its session or table is gone.
            LedgerUnavailableError: the session is gone, and the attempt is live.
            RecordsRefusedError: PostgreSQL refuses a value; the next attempt sets its record aside.
            BadRecordError: PostgreSQL refuses a value.
        """
        statement = sql.SQL("COPY {table} ({columns}) FROM STDIN WITH ({options})").format(
            table=sql.Identifier("epochline_staging", table.table),
            columns=sql.SQL(", ").join(map(sql.Identifier, table.columns)),
            options=sql.SQL(options),
        )
        with self._asking(f"copy into {table.table}"), self._session.cursor() as cursor:
            failpoint("write.copy")
            try:
                cursor.copy_expert(statement, io.BytesIO(data), size=1 << 16)
            except (psycopg2.DataError, psycopg2.IntegrityError) as error:
                raise self._refusal(table, error, place) from None

    def finish(self, parts: Sequence[Part]) -> dict[str, Part]:
        """Insert the part rows and commit; return this Spark partition's counted parts, by sink.

        A second try of a part rolls back its own rows and returns the parts that the first one committed.

        Raises:
            EpochFencedError: the attempt is fenced, sealed or gone; the refused write is recorded.
            NonDeterministicPartError: an earlier try committed other rows.
            LedgerUnavailableError: the session is gone, and the attempt is live.
        """
        with self._asking("insert parts"):
            try:
                accepted = self._insert(parts)
            except errors.UniqueViolation:
                failpoint("write.repeated")
                self._session.rollback()
                return self._first(parts)
            if accepted:
                failpoint("write.commit")
                self._session.commit()
                failpoint("write.committed")
                return {part.sink: part for part in parts}
            failpoint("write.refused")
            self._session.rollback()
        raise self._refused("insert parts")

    def close(self) -> None:
        """End the session; PostgreSQL rolls back an unfinished transaction."""
        with contextlib.suppress(psycopg2.Error):
            self._session.close()

    def _insert(self, parts: Sequence[Part]) -> bool:
        with self._session.cursor() as cursor:
            return insert_parts(cursor, self._ticket.attempt_id, self._write_id, self._spark_partition, parts)

    def _first(self, parts: Sequence[Part]) -> dict[str, Part]:
        with self._session.cursor() as cursor:
            first = first_parts(cursor, self._ticket.attempt_id, self._write_id, self._spark_partition)
        failpoint("write.answer")
        self._session.rollback()
        for part in parts:
            earlier = first.get(part.sink)
            if earlier is None or _compared(earlier) != _compared(part):
                raise NonDeterministicPartError(
                    f"{self._ticket}: a second try of Spark partition {self._spark_partition} gave other rows for"
                    f" {part.sink} than the first ({_brief(part)} against {_brief(earlier)}). Its rows were rolled"
                    " back. Check that parse and transform do not depend on randomness, clocks or the order of rows."
                )
        return {part.sink: first[part.sink] for part in parts}

    def _refusal(
        self, table: StagedTable, error: psycopg2.Error, place: Callable[[int], Place | None]
    ) -> BadRecordError | RecordsRefusedError:
        # The server's own message contains the value, which must not appear in logs.
        found = _REFUSED_COLUMN.match(error.diag.context or "")
        where = f", column {found['column']}" if found and found["column"] else ""
        said = (
            f"{self._ticket}: PostgreSQL refused a row for {table.sink}{where}:"
            f" {type(error).__name__} (SQLSTATE {error.pgcode})"
        )
        record = place(int(found["line"]) - 1) if found else None
        if record is None:
            return BadRecordError(said)
        failpoint("write.taken_back")
        self._session.rollback()
        reason = f"{table.sink}: {_said(error)}"
        failpoint("refused.connect")
        with _asked(self._ticket), transaction(self._dsn, _REPORTER) as session, session.cursor() as cursor:
            refuse_record(cursor, self._ticket, table.sink, record, reason)
        topic, partition, offset = record
        return RecordsRefusedError(
            f"{said}. It is of {topic}-{partition} offset {offset}, which the next attempt sets aside in the quarantine"
        )

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turn a lost session or table into the error that says whether the attempt is still live."""
        try:
            yield
        except LOST as error:
            reason = _said(error)
            self.close()
            if not self._live():
                raise self._refused(what) from None
            raise LedgerUnavailableError(f"{self._ticket}: {what}: {reason}") from None

    def _live(self) -> bool:
        with _asked(self._ticket), transaction(self._dsn, _REPORTER) as session, session.cursor() as cursor:
            found = standing(cursor, self._ticket.attempt_id)
        return found is not None and found.live

    def _refused(self, what: str) -> EpochFencedError:
        """Record the refused write of this session in a separate transaction."""
        attempt_id = self._ticket.attempt_id
        with _asked(self._ticket), transaction(self._dsn, _REPORTER) as session, session.cursor() as cursor:
            found = standing(cursor, attempt_id)
            if found is not None and not found.live:
                record_fenced_write(cursor, attempt_id, self._backend_pid, socket.gethostname(), what)
        return EpochFencedError(
            f"{self._ticket}: was fenced or sealed before Spark partition {self._spark_partition} was written"
            f" ({what}); nothing of the partition was kept"
        )


@contextlib.contextmanager
def _asked(ticket: StagingTicket) -> Iterator[None]:
    try:
        yield
    except psycopg2.Error as error:
        raise LedgerUnavailableError(f"{ticket}: the ledger cannot tell whether it is live: {_said(error)}") from None


def _said(error: psycopg2.Error) -> str:
    """The server's message, without the line of COPY data that may follow it."""
    return " ".join((error.diag.message_primary or str(error).partition("CONTEXT:")[0]).split())


def _compared(part: Part) -> dict[str, object]:
    """The part of a message that must be equal in two tries. Each try writes its own files to external sinks."""
    return {name: value for name, value in part.message.items() if name != EXTERNAL}


def _brief(part: Part | None) -> str:
    return "nothing" if part is None else f"{part.rows} rows, {dict(part.message)}"
