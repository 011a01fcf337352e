"""The one PostgreSQL transaction in which a Spark partition stages its rows."""

import contextlib
import io
import re
import socket
from collections.abc import Iterator, Mapping, Sequence

import psycopg2
from psycopg2 import errors, sql
from psycopg2.extensions import cursor as Cursor  # noqa: N812 - it is a class

from epochline.errors import EpochFencedError, LedgerUnavailableError, NonDeterministicPartError
from epochline.failpoints import failpoint
from epochline.postgres.ledger import parts as ledger
from epochline.postgres.ledger.job_session import LOST, connect, transaction
from epochline.postgres.ledger.parts import (
    EXTERNAL,
    Part,
)
from epochline.protocol.refused import RefusedRow
from epochline.protocol.staging import StagedTable, StagingTicket

_REFUSED_COLUMN = re.compile(r"^(?:.*\n)??COPY [^,]+, \D+ (?P<line>\d+)(?:, \S+ (?P<column>[^:]+?)\s*(?::|$))?")
"""Without words, which are in the language of the server's ``lc_messages``. A JSON document has a line before it."""


class RowRefusedError(Exception):
    """PostgreSQL refuses a row of a COPY. Neither the message nor ``said``, the kind of the error, has a value of it.

    ``reason`` is the server's message, for the ledger. ``row`` is the row's number in the stream, from 0; None if the
    server does not say.
    """

    def __init__(self, message: str, said: str, reason: str, row: int | None) -> None:
        super().__init__(f"{message}: {said}")
        self.said, self.reason, self.row = said, reason, row


class PartTransaction:
    """Stages the rows of one Spark partition, all or none.

    If the process dies before `finish` commits, PostgreSQL rolls the transaction back and no row is left.
    """

    def __init__(self, ticket: StagingTicket, dsn: str, write_id: str, spark_partition: int) -> None:
        self.ticket = ticket
        self._dsn = dsn
        self._write_id = write_id
        self._spark_partition = spark_partition
        self._connect()

    def _connect(self) -> None:
        failpoint("write.connect")
        self._session = connect(self._dsn, self.ticket.application_name)
        self._backend_pid = self._session.info.backend_pid

    def copy(self, table: StagedTable, options: str, data: bytes, *, apart: bool = False) -> None:
        """Append a COPY stream of encoded rows to a staging table.

        With ``apart`` the transaction goes on after a refusal, with all rows before this stream.

        Raises:
            EpochFencedError: the attempt was fenced, and its session or table is gone.
            LedgerUnavailableError: the session is gone, and the attempt is live.
            RowRefusedError: PostgreSQL refuses a value.
        """
        statement = sql.SQL("COPY {table} ({columns}) FROM STDIN WITH ({options})").format(
            table=sql.Identifier("epochline_staging", table.table),
            columns=sql.SQL(", ").join(map(sql.Identifier, table.columns)),
            options=sql.SQL(options),
        )
        with self._asking(f"copy into {table.table}"), self._session.cursor() as cursor:
            if apart:
                failpoint("write.savepoint")
                cursor.execute("SAVEPOINT rows")
            failpoint("write.copy")
            try:
                cursor.copy_expert(statement, io.BytesIO(data), size=1 << 16)
            except (psycopg2.DataError, psycopg2.IntegrityError) as error:
                if apart:
                    failpoint("write.undo")
                    cursor.execute("ROLLBACK TO SAVEPOINT rows; RELEASE SAVEPOINT rows")
                raise self._refusal(table, error) from None
            if apart:
                failpoint("write.release")
                cursor.execute("RELEASE SAVEPOINT rows")

    def take_back(self) -> None:
        """Roll back every row, and begin again in a new session."""
        failpoint("write.taken_back")
        self._session.rollback()
        self.close()
        self._connect()

    def refuse(self, rows: Sequence[RefusedRow]) -> None:
        """Record rows that staging refuses, in a separate transaction.

        Raises `EpochFencedError` if the attempt was fenced or sealed; then nothing is recorded.
        """
        failpoint("refused.connect")
        with self._apart() as cursor:
            ledger.refuse_rows(cursor, self.ticket.attempt_id, rows)
        if not self._live():
            raise self._refused("refuse rows")

    def finish(self, parts: Sequence[Part]) -> dict[str, Part]:
        """Insert the part rows and commit; return this Spark partition's counted parts, by sink.

        A second try of a part rolls back its own rows and returns the parts that the first one committed.

        Raises:
            EpochFencedError: the attempt is fenced, sealed or gone; the refused write is recorded.
            NonDeterministicPartError: an earlier try committed other rows.
            LedgerUnavailableError: the session is gone, and the attempt is live.
        """
        place = self.ticket.attempt_id, self._write_id, self._spark_partition
        with self._asking("insert parts"), self._session.cursor() as cursor:
            try:
                accepted = ledger.insert_parts(cursor, *place, parts)
            except errors.UniqueViolation:
                failpoint("write.repeated")
                self._session.rollback()
                first = ledger.first_parts(cursor, *place)
                failpoint("write.answer")
                self._session.rollback()
                return self._same(parts, first)
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

    def _same(self, parts: Sequence[Part], first: Mapping[str, Part]) -> dict[str, Part]:
        """The parts of the first try, if those of this one are equal."""
        for part in parts:
            earlier = first.get(part.sink)
            if earlier is None or _compared(earlier) != _compared(part):
                raise NonDeterministicPartError(
                    f"{self.ticket}: a second try of Spark partition {self._spark_partition} gave other rows for"
                    f" {part.sink} than the first ({_brief(part)} against {_brief(earlier)}). Its rows were rolled"
                    " back. Check that parse and transform do not depend on randomness, clocks or the order of rows."
                )
        return {part.sink: first[part.sink] for part in parts}

    def _refusal(self, table: StagedTable, error: psycopg2.Error) -> RowRefusedError:
        # The server's own message contains the value, which must not appear in logs.
        match = _REFUSED_COLUMN.match(error.diag.context or "")
        where = f"column {match['column']}, " if match and match["column"] else ""
        kind = f"{where}{type(error).__name__} (SQLSTATE {error.pgcode})"
        row = int(match["line"]) - 1 if match else None
        return RowRefusedError(f"{self.ticket}: PostgreSQL refused a row for {table.sink}", kind, _message(error), row)

    @contextlib.contextmanager
    def _asking(self, action: str) -> Iterator[None]:
        """Turn a lost session or table into the error that says whether the attempt is still live."""
        try:
            yield
        except LOST as error:
            reason = _message(error)
            self.close()
            if not self._live():
                raise self._refused(action) from None
            raise LedgerUnavailableError(f"{self.ticket}: {action}: {reason}") from None

    @contextlib.contextmanager
    def _apart(self) -> Iterator[Cursor]:
        """A separate transaction. Its session has another application name, so that a fence does not end it too."""
        try:
            with transaction(self._dsn, "epochline:refused") as session, session.cursor() as cursor:
                yield cursor
        except psycopg2.Error as error:
            raise LedgerUnavailableError(
                f"{self.ticket}: the ledger cannot tell whether it is live: {_message(error)}"
            ) from None

    def _live(self) -> bool:
        with self._apart() as cursor:
            return bool(ledger.is_live(cursor, self.ticket.attempt_id))

    def _refused(self, action: str) -> EpochFencedError:
        """Record the refused write of this session."""
        attempt_id = self.ticket.attempt_id
        with self._apart() as cursor:
            if ledger.is_live(cursor, attempt_id) is False:
                ledger.record_fenced_write(cursor, attempt_id, self._backend_pid, socket.gethostname(), action)
        return EpochFencedError(
            f"{self.ticket}: was fenced or sealed before Spark partition {self._spark_partition} was written"
            f" ({action}); nothing of the partition was kept"
        )


def _message(error: psycopg2.Error) -> str:
    """The server's message, without the line of COPY data that may follow it."""
    return " ".join((error.diag.message_primary or str(error).partition("CONTEXT:")[0]).split())


def _compared(part: Part) -> dict[str, object]:
    """The part of a message that must be equal in two tries. Each try writes its own files to external sinks."""
    return {name: value for name, value in part.message.items() if name != EXTERNAL}


def _brief(part: Part | None) -> str:
    return "nothing" if part is None else f"{part.rows} rows, {dict(part.message)}"
