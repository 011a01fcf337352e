"""I3: every snapshot sees all of an epoch or nothing, over two tables and the ledger, at commits it straddles."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg2
import psycopg2.extensions

from tests.crash.checker import assert_exact
from tests.crash.conftest import NewLine
from tests.crash.line import Line, in_background

EPOCHS, READERS = 20, 4
Seen = tuple[int, ...]
"""Rows and offsets in both tables and the ledger, then the newest epoch of each: see `whole`."""


def whole(epochs: int) -> Seen:
    """What a look shows where every table holds each committed epoch and nothing else: two records are in each."""
    return 2 * epochs, 2 * epochs, 2 * epochs, epochs, epochs, epochs


def seen_by(cursor: psycopg2.extensions.cursor, line: Line) -> Seen:
    cursor.execute(
        f"SELECT (SELECT count(*) FROM {line.name}), (SELECT count(*) FROM {line.name}_again),"
        " (SELECT coalesce(sum(next_offset - origin_offset), 0)::bigint FROM epochline.heads),"
        f" (SELECT coalesce(max(_epoch), 0) FROM {line.name}), (SELECT coalesce(max(_epoch), 0) FROM {line.name}_again),"
        " (SELECT count(*) FROM epochline.epochs WHERE state = 'COMMITTED')"
    )
    return cursor.fetchall()[0]


def test_fifty_snapshots_that_straddle_a_commit_show_one_moment(new_line: NewLine) -> None:
    """INV-2, I3: readers open snapshots while epochs are committed one after the other, and read them twice."""
    line = new_line()
    line.produce({p: [f"{p}-{i}" for i in range(EPOCHS)] for p in (0, 1)})
    over = threading.Event()

    def read() -> int:
        """How many snapshots were opened before a commit and read again after it."""
        straddled = 0
        with closing(psycopg2.connect(line.dsn)) as reader, closing(psycopg2.connect(line.dsn)) as fresh:
            reader.set_session(isolation_level="REPEATABLE READ")
            fresh.autocommit = True
            while not over.is_set():
                with reader, reader.cursor() as cursor, fresh.cursor() as now:
                    first = seen_by(cursor, line)
                    while (latest := seen_by(now, line))[-1] == first[-1] and not over.wait(0.01):
                        assert latest == first
                    assert seen_by(cursor, line) == first
                    assert first == whole(first[-1])
                    assert latest == whole(latest[-1])
                    straddled += latest[-1] > first[-1]
        return straddled

    readers = [in_background(read) for _ in range(READERS)]
    for epoch in range(1, EPOCHS + 1):
        line.to_sealed(f"run-{epoch}", record_limit=2)
        line.commit(epoch)
    over.set()

    assert sum(reader.result(90) for reader in readers) >= 50
    assert_exact(line)
