"""A write-ahead log and its replay into a table: NOT a mode of the product. A crash in mid-replay repeats rows.

The log is durable before a row is written: each read is one entry, and the last entry says where the next read
begins. Up to here nothing is lost or doubled. The replay makes the difference:

- into ``append``, a sink without transactions: each row is visible at once, and a file next to the log records the
  entry after its last row. If the process is killed before that, the next replay writes the entry's first rows again.
- into ``transaction``: an entry's rows and the position of the replay change in one transaction, so that a kill at any
  point repeats no row.
"""

import argparse
import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from psycopg2.extensions import connection as Connection  # noqa: N812
from psycopg2.extensions import cursor as Cursor  # noqa: N812

from epochline_examples.two_transactions import read


class Entry(NamedTuple):
    """The values of one read, and the offset at which the next read begins."""

    values: list[str]
    until: int


class Log:
    """A file of entries, each a line of JSON, on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replayed = path.with_name(f"{path.name}.replayed")
        whole = path.read_bytes() if path.exists() else b""
        # A process that died before its entry was on the disk may leave half a line: its records are read again.
        _write_safely(path, whole[: whole.rfind(b"\n") + 1])

    @property
    def entries(self) -> list[Entry]:
        """All entries so far."""
        return [Entry(**json.loads(line)) for line in self._path.read_bytes().splitlines()]

    def append(self, entry: Entry) -> None:
        """Write an entry."""
        with self._path.open("ab") as file:
            file.write(json.dumps(entry._asdict()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def replayed(self) -> int:
        """Number of replayed entries, as recorded next to the log."""
        return int(self._replayed.read_text()) if self._replayed.exists() else 0

    def note_replayed(self, entries: int) -> None:
        """Record the number of replayed entries."""
        _write_safely(self._replayed, str(entries).encode())


def _write_safely(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


class Replay:
    """Writes the log's entries into a table of one column, and may kill this process after ``kill_after`` rows."""

    def __init__(self, log: Log, connection: Connection, kill_after: int | None) -> None:
        self._log, self._connection, self._kill_after = log, connection, kill_after
        self._rows = itertools.count(1)

    def into_append(self) -> None:
        """Write an entry row by row, each visible at once; then record the entry next to the log."""
        self._connection.autocommit = True
        for number, entry in enumerate(self._log.entries):
            if number >= self._log.replayed:
                with self._connection.cursor() as cursor:
                    self._write(cursor, "example_append", entry)
                self._log.note_replayed(number + 1)

    def into_transaction(self) -> None:
        """Write an entry's rows and the position of the replay in one transaction."""
        for number, entry in enumerate(self._log.entries):
            with self._connection, self._connection.cursor() as cursor:
                cursor.execute("SELECT coalesce(max(entries), 0) FROM example_replayed")
                [(replayed,)] = cursor.fetchall()
                if number >= replayed:
                    self._write(cursor, "example_transaction", entry)
                    cursor.execute("INSERT INTO example_replayed (entries) VALUES (%s)", (number + 1,))

    def _write(self, cursor: Cursor, table: str, entry: Entry) -> None:
        for value in entry.values:
            cursor.execute(f"INSERT INTO {table} (value) VALUES (%s)", (value,))  # noqa: S608 - one of two names
            if next(self._rows) == self._kill_after:
                os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Log new records, replay the log, and print a report. PGHOST, PGUSER and so on name the database."""
    import psycopg2

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka's host:port")
    parser.add_argument("--topic", required=True, help="a topic with one partition")
    parser.add_argument("--log", required=True, type=Path, help="the log's file, another one for each --into")
    parser.add_argument("--into", required=True, choices=("append", "transaction"), help="kind of sink to replay into")
    parser.add_argument("--kill-after", type=int, help="number of rows after which this process kills itself (-9)")
    options = parser.parse_args(arguments)

    log = Log(options.log)
    start = log.entries[-1].until if log.entries else 0
    values, until = read(options.bootstrap_servers, options.topic, start)
    if until > start:
        log.append(Entry(values, until))
    with closing(psycopg2.connect("")) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS example_append (value text NOT NULL);"
                "CREATE TABLE IF NOT EXISTS example_transaction (value text NOT NULL);"
                "CREATE TABLE IF NOT EXISTS example_replayed (entries integer PRIMARY KEY)"
            )
        replay = Replay(log, connection, options.kill_after)
        if options.into == "append":
            replay.into_append()
        else:
            replay.into_transaction()
        print(_report(options.into, log, connection))


def _report(into: str, log: Log, connection: Connection) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT value FROM example_{into}")  # noqa: S608 - one of two names
        rows = Counter(value for (value,) in cursor.fetchall())
    records = Counter(value for entry in log.entries for value in entry.values)
    repeated, missing = (rows - records).total(), (records - rows).total()
    return f"{into}: {records.total()} records, {rows.total()} rows, {repeated} repeated, {missing} missing"


if __name__ == "__main__":
    main()
