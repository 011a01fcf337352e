"""I3: every snapshot sees all of an epoch or nothing, over two tables and the ledger, at commits it straddles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import psycopg2

from tests.crash.checker import assert_exact
from tests.crash.line import Line

EPOCHS, READERS = 10, 5


def seen_by(cursor: Any, line: Line) -> tuple[int, ...]:
    cursor.execute(
        f"SELECT (SELECT count(*) FROM {line.name}), (SELECT count(*) FROM {line.name}_again),"
        f" (SELECT coalesce(max(_epoch), 0) FROM {line.name}), (SELECT coalesce(max(_epoch), 0) FROM {line.name}_again),"
        " (SELECT coalesce(sum(next_offset - origin_offset), 0)::bigint FROM epochline.heads),"
        " (SELECT count(*) FROM epochline.epochs WHERE state = 'COMMITTED')"
    )
    return tuple(cursor.fetchone())


def test_fifty_snapshots_that_straddle_a_commit_show_one_moment(new_line: Callable[..., Line]) -> None:
    """INV-2, I3: opened before a commit and read again after it; a fresh one shows the whole epoch."""
    line = new_line()
    line.produce({p: [f"{p}-{i}" for i in range(EPOCHS)] for p in (0, 1)})
    straddled = 0
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(psycopg2.connect(line.dsn))) for _ in range(READERS)]
        for reader in readers:
            reader.set_session(isolation_level="REPEATABLE READ")
        cursors = [reader.cursor() for reader in readers]
        for epoch in range(1, EPOCHS + 1):
            line.to_sealed(f"run-{epoch}", record_limit=2)
            before = [seen_by(cursor, line) for cursor in cursors]
            line.commit(epoch)
            during = [seen_by(cursor, line) for cursor in cursors]
            for reader in readers:
                reader.rollback()
            after = [seen_by(cursor, line) for cursor in cursors]
            for reader in readers:
                reader.rollback()

            done = (epoch - 1) * 2
            assert set(before + during) == {(done, done, epoch - 1, epoch - 1, done, epoch - 1)}
            assert set(after) == {(done + 2, done + 2, epoch, epoch, done + 2, epoch)}
            straddled += len(during)
    assert straddled >= 50
    assert_exact(line)
