"""N12: a connection is not made again within a transaction. A cut leads to the whole transaction again, never to half."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import connection, cursor
from sqlalchemy import event
from sqlalchemy.engine import Engine

from epochline.protocol.epoch import CommitOutcome
from tests.integration.bench import Bench, NewBench, Row

WRITES = ("INSERT", "UPDATE", "DELETE", "WITH", "DROP")


@dataclass(eq=False)
class Cut:
    """Ends the session of the n-th statement that writes, right after it, and looks at what another session sees."""

    one: Bench
    at: int
    writes: int = 0
    seen: Any = None

    def __call__(self, session: connection, statement: str) -> None:
        self.writes += statement.lstrip().startswith(WRITES)
        if self.seen is None and self.writes == self.at:
            assert self.one.sql("SELECT pg_terminate_backend(%s, 5000)", (session.info.backend_pid,)) == [(True,)]
            self.seen = standing(self.one)


@contextmanager
def cutting(cut: Cut) -> Iterator[Cut]:
    class Watched(cursor):
        def execute(self, statement: Any, values: Any = None) -> None:
            super().execute(statement, values)
            cut(self.connection, (self.query or b"").decode())

    def watch(session: Any, _: object) -> None:
        session.cursor_factory = Watched

    event.listen(Engine, "connect", watch)
    try:
        yield cut
    finally:
        event.remove(Engine, "connect", watch)


def standing(one: Bench) -> Any:
    """Rows, committed epochs, heads and receipts, in one snapshot."""
    return one.sql(
        "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM epochline.epochs WHERE state = 'COMMITTED'),"
        " (SELECT sum(next_offset) FROM epochline.heads), (SELECT count(*) FROM epochline.receipts)"
    )


def test_a_connection_cut_after_any_write_of_a_commit_repeats_the_whole_transaction(bench: NewBench) -> None:
    one, row = bench(), Row(k="a", v=1)
    for at in itertools.count(1):
        sealed, before = one.sealed(row, row), standing(one)
        with cutting(Cut(one, at)) as cut:
            result = one.commit(sealed)

        assert result.outcome is CommitOutcome.COMMITTED
        assert standing(one) == [(2 * at, at, 2 * at, at)]
        if cut.seen != before:
            break
        assert cut.writes > at, "the transaction was not made again"
    assert at > 5
    # The cut that came after COMMIT, while the commit noted its mirror, took nothing back.
    assert cut.seen in (None, standing(one))
