"""INV-2 on real PostgreSQL: every snapshot sees all of an epoch or nothing; of two that race, exactly one wins."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from epochline import PostgresTable
from epochline.coordinator import Plan
from epochline.coordinator.commit import commit_in
from epochline.errors import EpochStateError
from epochline.protocol.epoch import AbortOutcome, EpochState
from epochline.protocol.staging import StagingTicket
from tests.contract.worlds import World, orders, postgres_world, rows_of, seen_in
from tests.databases import holding, query

BOTH = """
SELECT (SELECT count(*) FROM public.orders), (SELECT count(*) FROM public.copies),
       (SELECT coalesce(max(_epoch), 0) FROM public.orders), (SELECT coalesce(max(_epoch), 0) FROM public.copies),
       (SELECT coalesce(sum(next_offset - origin_offset), 0)::bigint FROM epochline.heads),
       (SELECT count(*) FROM epochline.epochs WHERE state = 'COMMITTED')
"""


@dataclass
class TwoTables(World):
    """A world whose pipeline writes two tables; both get every row."""

    dsn: str = ""

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        for number, one in enumerate(planned.ranges):
            rows = {"orders": rows_of(one), "copies": rows_of(one)}
            assert self.writer.part(ticket, number, rows, {(one.tp.topic, one.tp.partition): seen_in(one)})
        assert self.writer.end(ticket)

    def answer(self, options: str = "") -> tuple[Any, ...]:
        (row,) = query(self.dsn, BOTH, options=options)
        return row


@pytest.fixture
def world(postgres_dsn: str) -> TwoTables:
    tables = [PostgresTable(table=name, columns={"value": "text"}) for name in ("orders", "copies")]
    one = TwoTables(**vars(postgres_world(postgres_dsn)), dsn=postgres_dsn)
    one.pipeline = orders(sinks=tables, lock_timeout=timedelta(seconds=1))
    return one.create()


def test_a_snapshot_from_before_a_commit_shows_nothing_of_it_and_one_from_after_shows_all(world: TwoTables) -> None:
    """INV-2, P2, X5."""
    world.to_sealed()
    with holding(world.dsn, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ") as before:
        before.execute(BOTH)
        assert before.fetchall() == [(0, 0, 0, 0, 0, 0)]

        world.commit(1)

        before.execute(BOTH)
        assert before.fetchall() == [(0, 0, 0, 0, 0, 0)]
    assert world.answer() == (15, 15, 1, 1, 15, 1)


def test_a_reader_of_the_target_is_never_kept_waiting_by_staging_or_commit(world: TwoTables) -> None:
    """C7: answered with the old rows at every step, to sessions that wait for no lock at all."""

    def shown() -> tuple[Any, ...]:
        return world.answer("-c lock_timeout=1ms -c statement_timeout=5s")[:2]

    world.to_committed("run-1")
    world.kafka.produce("orders", 0, 5)
    planned = world.plan("run-2")
    steps = [shown()]
    ticket = world.attempt(planned, "run-2")
    steps.append(shown())
    world.stage(planned, ticket)
    steps.append(shown())
    world.seal(ticket, "run-2")
    steps.append(shown())
    with world.ledger.transaction() as tx:  # held open between applying and COMMIT
        commit_in(tx, tx.epochs.lock("orders", 2), ())
        steps.append(shown())

    assert steps == [(15, 15)] * 5
    assert shown() == (20, 20)


@pytest.mark.parametrize("round_", range(4), ids=lambda number: f"round {number}")
def test_of_a_commit_and_an_operators_abort_exactly_one_wins(world: TwoTables, round_: int) -> None:
    """INV-7: one row lock; the loser gets a clear word."""
    world.to_sealed()

    with ThreadPoolExecutor(1) as committing:
        committed = committing.submit(world.commit, 1)
        time.sleep(round_ * 0.01)
        aborted = world.abort(1, "cli", reason="wrong data", by_operator=True)

    rows = world.answer()[:2]
    if committed.exception() is None:
        assert (aborted, rows) == (AbortOutcome.ALREADY_COMMITTED, (15, 15))
        assert world.epoch(1).state is EpochState.COMMITTED
    else:
        assert (aborted, rows) == (AbortOutcome.ABORTED, (0, 0))
        assert isinstance(committed.exception(), EpochStateError)
        assert "was aborted (wrong data)" in str(committed.exception())
        assert world.epoch(1).state is EpochState.ABORTED
