"""I3: every snapshot sees all of an epoch or nothing, over two tables and the ledger, at commits it straddles."""

import threading
from contextlib import closing
from functools import partial

import psycopg2
import psycopg2.extensions

from tests.checker import assert_exact
from tests.crash.conftest import NewLine
from tests.crash.line import Line, in_background
from tests.waiting import wait_until

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


def test_eighty_snapshots_that_straddle_a_commit_show_one_moment(new_line: NewLine) -> None:
    """INV-2, I3: each reader opens a snapshot before each commit, and reads it again after that commit."""
    line = new_line()
    line.produce({p: [f"{p}-{i}" for i in range(EPOCHS)] for p in (0, 1)})
    opened = [-1] * READERS
    over = threading.Event()

    def read(number: int) -> None:
        with closing(psycopg2.connect(line.dsn)) as reader, closing(psycopg2.connect(line.dsn)) as fresh:
            reader.set_session(isolation_level="REPEATABLE READ")
            fresh.autocommit = True
            for epochs in range(EPOCHS):
                with reader, reader.cursor() as cursor, fresh.cursor() as now:
                    first = seen_by(cursor, line)
                    assert first == whole(epochs)
                    opened[number] = epochs
                    while (latest := seen_by(now, line)) == first and not over.wait(0.01):
                        pass
                    assert latest == whole(epochs + 1)
                    assert seen_by(cursor, line) == first

    readers = [in_background(partial(read, number)) for number in range(READERS)]

    def all_opened_one_with(epochs: int) -> bool:
        return set(opened) == {epochs} or any(one.done() for one in readers)

    try:
        for epoch in range(1, EPOCHS + 1):
            line.to_sealed(f"run-{epoch}", record_limit=2)
            wait_until(partial(all_opened_one_with, epoch - 1))
            line.commit(epoch)
        for reader in readers:
            reader.result(90)
    finally:
        over.set()
    assert_exact(line)
