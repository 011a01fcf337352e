"""INV-2 and INV-5 on real PostgreSQL: every snapshot sees all of an epoch or nothing, whoever commits, races or breaks off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from epochline import PostgresTable
from epochline.coordinator import CommitResult, Plan, PlanOutcome, abort, commit, plan
from epochline.declare.names import QUARANTINE
from epochline.errors import (
    EpochlineError,
    EpochStateError,
    LedgerUnavailableError,
    LockTimeoutError,
    PlanChangedError,
)
from epochline.postgres.ledger.parts import Part, end_job, insert_manifest, insert_parts, message_of
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import AbortOutcome, CommitOutcome, EpochState
from tests.contract.worlds import WRITE_ID, World, orders, postgres_world, rows_of, run, seen_in

BOTH = """
SELECT (SELECT count(*) FROM public.orders), (SELECT count(*) FROM public.copies),
       (SELECT coalesce(max(_epoch), 0) FROM public.orders), (SELECT coalesce(max(_epoch), 0) FROM public.copies),
       (SELECT coalesce(sum(next_offset - origin_offset), 0)::bigint FROM epochline.heads),
       (SELECT count(*) FROM epochline.epochs WHERE state = 'COMMITTED')
"""


class TwoTables(World):
    """A world whose pipeline writes two tables; both get every row."""

    def stage(self, planned: Plan, ticket: Any) -> None:
        rows = [row for one in planned.ranges for row in rows_of(one)]
        seen = {(one.tp.topic, one.tp.partition): seen_in(one) for one in planned.ranges}
        connection = psycopg2.connect(self.dsn, application_name=ticket.application_name)
        counts = {"orders": len(rows), "copies": len(rows), QUARANTINE: 0}
        try:
            with connection, connection.cursor() as cursor:
                for sink in ("orders", "copies"):
                    table = ticket.table(sink).table
                    for row in rows:
                        cursor.execute(
                            f'INSERT INTO epochline_staging."{table}" ({", ".join(row)}) VALUES (%s, %s, %s, %s, %s)',
                            list(row.values()),
                        )
                parts = [
                    Part(sink=name, rows=count, message=message_of(seen) if name == QUARANTINE else {})
                    for name, count in counts.items()
                ]
                assert insert_parts(cursor, ticket.attempt_id, WRITE_ID, 0, parts)
                assert insert_manifest(cursor, ticket.attempt_id, WRITE_ID, 1, counts)
                assert end_job(cursor, ticket.attempt_id)
        finally:
            connection.close()


@pytest.fixture
def world(postgres_dsn: str) -> TwoTables:
    tables = [PostgresTable(table=name, columns={"value": "text"}) for name in ("orders", "copies")]
    one = TwoTables(**vars(postgres_world(postgres_dsn)))
    one.dsn = postgres_dsn
    one.pipeline = orders(sinks=tables, lock_timeout=timedelta(seconds=1))
    with one.ledger.transaction() as tx:
        tx.targets.create(one.pipeline)
    return one


@contextmanager
def session(dsn: str, isolation: str = "READ COMMITTED") -> Iterator[Any]:
    connection = psycopg2.connect(dsn)
    connection.set_session(isolation_level=isolation)
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def answer(cursor: Any, statement: str = BOTH) -> tuple[Any, ...]:
    cursor.execute(statement)
    return tuple(cursor.fetchone())


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls in threads that start together; each result, or the error that it raised."""
    barrier, results = threading.Barrier(len(calls)), [None] * len(calls)

    def one(place: int, call: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[place] = call()
        except EpochlineError as error:
            results[place] = error

    threads = [threading.Thread(target=one, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def wait_until(dsn: str, condition: str) -> None:
    deadline = time.monotonic() + 20
    with session(dsn) as cursor:
        cursor.connection.autocommit = True
        while not answer(cursor, f"SELECT {condition}")[0]:
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)


WAITING = "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"


# INV-2


def test_a_snapshot_from_before_a_commit_shows_nothing_of_it_and_one_from_after_shows_all(world: TwoTables) -> None:
    """INV-2, P2."""
    world.to_sealed()
    with session(world.dsn, "REPEATABLE READ") as before:
        assert answer(before) == (0, 0, 0, 0, 0, 0)

        world.commit(1)

        assert answer(before) == (0, 0, 0, 0, 0, 0)
        before.connection.rollback()
        assert answer(before) == (15, 15, 1, 1, 15, 1)


def test_no_reader_ever_sees_a_part_of_an_epoch(world: TwoTables) -> None:
    """INV-2, G3: targets and ledger agree in every snapshot that readers take during many commits."""
    world.kafka.produce("orders", 0, 200)
    done, seen, mixed = threading.Event(), set(), []

    def read() -> None:
        with session(world.dsn, "REPEATABLE READ") as cursor:
            while not done.is_set():
                first = answer(cursor)
                again = answer(cursor)
                rows, copies, newest, newest_copy, offsets, epochs = first
                if not (first == again and rows == copies == offsets == epochs * 4 and newest == newest_copy == epochs):
                    mixed.append((first, again))
                seen.add(epochs)
                cursor.connection.rollback()
                time.sleep(0.003)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 22):
            world.to_committed(f"run-{number}", record_limit=4)
    finally:
        done.set()
        for reader in readers:
            reader.join()

    assert mixed == []
    assert len(seen) > 5


def test_a_reader_of_the_target_is_never_kept_waiting_by_staging_or_commit(world: TwoTables) -> None:
    """C7: answered with the old rows at every step, by a session that waits for no lock at all."""
    world.to_committed("run-1")
    world.kafka.produce("orders", 0, 5)
    with session(world.dsn) as reader:
        reader.connection.autocommit = True
        reader.execute("SET lock_timeout = '1ms'")
        reader.execute("SET statement_timeout = '5s'")
        planned = world.plan("run-2")
        steps = [answer(reader)[:2]]
        ticket = world.begin(2, "run-2")
        assert ticket is not None
        steps.append(answer(reader)[:2])
        world.stage(planned, ticket)
        steps.append(answer(reader)[:2])
        world.seal(ticket, "run-2")
        steps.append(answer(reader)[:2])
        with world.ledger.transaction() as tx:  # held open between applying and COMMIT
            from epochline.coordinator.commit import commit_in

            commit_in(tx, tx.epochs.lock("orders", 2), ())
            steps.append(answer(reader)[:2])

        assert steps == [(15, 15)] * 5
        assert answer(reader)[:2] == (20, 20)


# Races


@pytest.mark.fault("F10")
def test_two_plans_at_once_write_one_epoch_and_the_other_run_is_told_so(world: TwoTables) -> None:
    """K14, U1, trap 7."""

    def planning(who: str) -> Callable[[], Plan]:
        ledger = PostgresLedger(world.dsn, lock_timeout=10)
        return lambda: plan(ledger, world.kafka, world.pipeline, run(who), lease=timedelta(seconds=0.6))

    results = at_once(planning("run-1"), planning("run-2"))

    planned = [one for one in results if isinstance(one, Plan)]
    refused = [one for one in results if isinstance(one, EpochlineError)]
    with session(world.dsn) as cursor:
        states = answer(cursor, "SELECT array_agg(state ORDER BY epoch_id) FROM epochline.epochs")[0]
    # The other one failed retryably, or waited until the first one's lease, which nobody renews here, was over.
    if refused:
        assert states == ["PLANNED"]
        assert isinstance(refused[0], PlanChangedError)
        assert refused[0].retryable
        assert "another run planned or committed while this one asked Kafka" in str(refused[0])
    else:
        assert states == ["ABORTED", "PLANNED"]
    assert len(planned) + len(refused) == 2
    assert [one.outcome for one in planned] == [PlanOutcome.PLANNED] * len(planned)


def test_two_commits_at_once_commit_once(world: TwoTables) -> None:
    """INV-5."""
    world.to_sealed()

    results = at_once(lambda: world.commit(1), lambda: world.commit(1))

    assert {one.outcome for one in results} == {CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED}
    with session(world.dsn) as cursor:
        assert answer(cursor) == (15, 15, 1, 1, 15, 1)


@pytest.mark.parametrize("round_", range(4), ids=lambda number: f"round {number}")
def test_of_a_commit_and_an_operators_abort_exactly_one_wins(world: TwoTables, round_: int) -> None:
    """Trap 5, INV-7: one row lock; the loser gets a clear word."""
    world.to_sealed()

    def operator() -> AbortOutcome:
        time.sleep(round_ * 0.01)
        return abort(world.ledger, "orders", 1, run("cli"), reason="wrong data", by_operator=True)

    committed, aborted = at_once(lambda: world.commit(1), operator)

    with session(world.dsn) as cursor:
        rows = answer(cursor)[:2]
    if isinstance(committed, CommitResult):
        assert (aborted, rows) == (AbortOutcome.ALREADY_COMMITTED, (15, 15))
        assert world.epoch(1).state is EpochState.COMMITTED
    else:
        assert (aborted, rows) == (AbortOutcome.ABORTED, (0, 0))
        assert isinstance(committed, EpochStateError)
        assert "was aborted (wrong data)" in str(committed)
        assert world.epoch(1).state is EpochState.ABORTED


# Lost answers


class LosesAnAnswer:
    """A ledger whose connection breaks once: before the COMMIT of the transaction that committed an epoch, or after it."""

    def __init__(self, ledger: PostgresLedger, *, after: bool) -> None:
        self._ledger = ledger
        self._after = after
        self.lost = False

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        lose = False
        with self._ledger.transaction() as tx:
            yield tx
            lose = not self.lost and tx.epochs.lock("orders", 1).state is EpochState.COMMITTED
            self.lost = self.lost or lose
            if lose and not self._after:
                raise LedgerUnavailableError("broken before COMMIT")
        if lose:
            raise LedgerUnavailableError("broken after COMMIT")


@pytest.mark.parametrize(
    ("after", "outcome"),
    [(True, CommitOutcome.ALREADY_COMMITTED), (False, CommitOutcome.COMMITTED)],
    ids=["after COMMIT", "before COMMIT"],
)
def test_a_commit_whose_answer_is_lost_is_settled_by_asking_the_ledger(
    world: TwoTables, after: bool, outcome: CommitOutcome
) -> None:
    """INV-5, trap 4, P6."""
    world.to_sealed()
    ledger = LosesAnAnswer(world.ledger, after=after)  # type: ignore[arg-type]

    receipt = commit(ledger, world.kafka, "orders", 1)

    assert ledger.lost
    assert receipt.outcome is outcome
    assert receipt.epoch.state is EpochState.COMMITTED
    assert receipt.epoch.rows_written == 30
    with session(world.dsn) as cursor:
        assert answer(cursor) == (15, 15, 1, 1, 15, 1)
    assert world.kafka.mirrored("epochline.orders")["orders", 0].offset == 10


def test_a_commit_whose_session_is_killed_while_it_waits_commits_once_by_its_second_try(
    world: TwoTables, stack: Any
) -> None:
    """INV-5, P6, G8."""
    world.pipeline = orders(sinks=world.pipeline.sinks, lock_timeout=timedelta(seconds=20))
    world.to_sealed()
    results: list[Any] = []
    with session(world.dsn) as blocker:
        blocker.execute("LOCK TABLE public.copies IN SHARE MODE")
        committing = threading.Thread(target=lambda: results.extend(at_once(lambda: world.commit(1))))
        committing.start()
        wait_until(world.dsn, WAITING)
        with session(world.dsn) as killer:
            killed = answer(
                killer,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            wait_until(world.dsn, WAITING)  # the second try
        blocker.connection.rollback()
    committing.join(60)

    assert killed == (1,)
    assert isinstance(results[0], CommitResult), results[0]
    assert results[0].outcome is CommitOutcome.COMMITTED
    with session(world.dsn) as cursor:
        assert answer(cursor) == (15, 15, 1, 1, 15, 1)


@pytest.mark.parametrize("table", ["public.orders", "public.copies", "epochline.committed_range"])
def test_a_commit_that_cannot_get_a_lock_in_time_changes_nothing_and_succeeds_later(
    world: TwoTables, table: str
) -> None:
    """P6: lock time-out is a setting of the declaration; trying again helps."""
    world.to_sealed()
    with session(world.dsn) as blocker:
        blocker.execute(f"LOCK TABLE {table} IN SHARE MODE")
        with pytest.raises(
            LockTimeoutError, match="Another transaction holds what this one needs; nothing was"
        ) as caught:
            world.commit(1)
        assert caught.value.retryable
        assert answer(blocker)[:2] == (0, 0)
        blocker.connection.rollback()

    assert world.epoch(1).state is EpochState.PRE_COMMITTED
    assert world.commit(1).outcome is CommitOutcome.COMMITTED
    with session(world.dsn) as cursor:
        assert answer(cursor) == (15, 15, 1, 1, 15, 1)
