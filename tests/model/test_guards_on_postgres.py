"""The same guards on a real PostgreSQL: each promise holds with the product's statements and fails without the guard."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from epochline import KafkaSource
from epochline.coordinator.commit import commit_in
from epochline.errors import HeadMovedError, LedgerError, SealRefusedError
from epochline.postgres.ledger.chain import PostgresChain
from epochline.postgres.ledger.epochs import PostgresEpochs
from tests.chains import chain_breaks
from tests.contract.worlds import World, orders, postgres_world, ranges, rows_of
from tests.databases import query
from tests.model.guards import MUTANTS, Mutant

Promise = Callable[[str], None]
Act = Callable[[], object]


def _chain(dsn: str, partition: int) -> list[Any]:
    ranges_of = "SELECT start_offset, until_offset FROM epochline.committed_range WHERE partition = %s"
    return query(dsn, ranges_of, partition)


def _assert_exact(world: World, dsn: str) -> None:
    """The chain is whole, and the target holds each record below a head once."""
    below = []
    for partition in (0, 1):
        chain = _chain(dsn, partition)
        assert chain_breaks(chain) == []
        below += [(partition, offset) for start, until in chain if start is not None for offset in range(start, until)]
    assert sorted(row[1:3] for row in world.visible()) == sorted(below)


def _refuses(error: type[Exception], act: Act) -> bool:
    """Whether the guard refuses; a mutant's promise must fail with an `AssertionError`, as `pytest.raises` does not."""
    try:
        act()
    except error:
        return True
    return False


def a_commit_starts_at_the_head(dsn: str) -> None:
    """INV-1."""
    world = postgres_world(dsn)
    world.to_sealed()
    query(
        dsn,
        "INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset,"
        " until_offset, epoch_id, chosen_by) VALUES ('orders', 1, 'orders', 'id-of-orders', 0, 0, 4, 1, 'by hand')",
    )

    refused = _refuses(HeadMovedError, lambda: world.commit(1))

    assert chain_breaks(_chain(dsn, 0)) == []
    assert refused
    assert world.visible() == []


def a_fenced_attempt_s_part_is_refused(dsn: str) -> None:
    """INV-4: the attempt is fenced, its sessions and tables are not gone yet."""
    world = postgres_world(dsn)
    planned, ticket = world.to_begun()
    with world.ledger.transaction() as tx:
        attempt = tx.attempts.live(tx.epochs.lock("orders", 1))
        assert attempt is not None
        tx.attempts.fence(attempt, "a test says so")

    assert not world.write(ticket, planned.ranges[0])


def a_part_after_the_seal_is_refused_and_the_epoch_commits(dsn: str) -> None:
    """INV-6: what is sealed can commit."""
    world = postgres_world(dsn)
    planned, ticket = world.to_begun()
    world.stage(planned, ticket)
    world.seal(ticket)

    assert not world.write(ticket, planned.ranges[0], 9)
    world.commit(1)
    _assert_exact(world, dsn)


def parts_that_the_manifest_does_not_know_are_not_sealed(dsn: str) -> None:
    """INV-9: an executor that was given up wrote its part again, under another number."""
    world = postgres_world(dsn)
    planned, ticket = world.to_begun()
    world.stage(planned, ticket)
    assert world.writer.part(ticket, 9, {"orders": rows_of(planned.ranges[0])}, {})

    assert _refuses(SealRefusedError, lambda: world.seal(ticket))


def what_is_produced_after_the_seal_is_not_skipped(dsn: str) -> None:
    """INV-3: the range is what the ledger wrote first. ``log_end`` is what the log holds now."""
    world = postgres_world(dsn)
    query(dsn, "CREATE TABLE log_end (partition integer, until_offset bigint)")
    query(dsn, "INSERT INTO log_end VALUES (0, 10), (1, 5)")
    world.to_sealed()
    query(dsn, "INSERT INTO log_end VALUES (0, 13)")
    world.kafka.produce("orders", 0, 3)

    world.commit(1)

    _assert_exact(world, dsn)


def what_comes_after_a_first_plan_by_latest_is_read(dsn: str) -> None:
    """S9: the first plan had nothing to read, and its origin stays."""
    world = postgres_world(dsn)
    world.pipeline = orders(source=KafkaSource(topics="orders", startup="latest"))
    world.plan("run-1")
    world.kafka.produce("orders", 0, 3)

    assert ranges(world.plan("run-2")) == ["orders-0[10, 13)"]


def a_commit_between_two_reads_of_a_plan_leaves_no_stale_range(dsn: str) -> None:
    """INV-1, INV-6: READ COMMITTED; the other run's commit waits for nothing that the plan has locked."""
    world, other = postgres_world(dsn), postgres_world(dsn)
    other.source = world.kafka

    def commit() -> None:
        with other.ledger.transaction() as tx:
            commit_in(tx, tx.epochs.lock("orders", 1), ())

    with _between_the_reads_of_the_last_step(lambda: other.to_sealed("run-1", record_limit=5), commit) as happened:
        planned = world.plan("run-2")

    assert happened == ["before", "between"]
    assert all(one.range.start == world.heads()[one.tp.partition] for one in planned.ranges), planned.ranges
    world.finish(planned, "run-2")
    _assert_exact(world, dsn)


@contextmanager
def _between_the_reads_of_the_last_step(before: Act, between: Act) -> Iterator[list[str]]:
    """Let another run act before a plan's last transaction takes its lock, and after its first read in it.

    Which of the two reads comes first is the product's choice.
    """
    happened: list[str] = []
    locks, busy = 0, False
    lock, heads, unfinished = PostgresEpochs.lock_pipeline, PostgresChain.heads, PostgresEpochs.unfinished

    def acts(what: str, action: Act) -> None:
        nonlocal busy
        busy = True
        happened.append(what)
        action()
        busy = False

    def locked(self: PostgresEpochs, pipeline: str) -> Any:
        nonlocal locks
        locks += not busy
        if locks == 4 and not busy and not happened:
            acts("before", before)
        return lock(self, pipeline)

    def read(original: Any) -> Any:
        def reading(self: Any, *args: Any) -> Any:
            answer = original(self, *args)
            if happened == ["before"] and not busy:
                acts("between", between)
            return answer

        return reading

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresEpochs, "lock_pipeline", locked)
        patch.setattr(PostgresChain, "heads", read(heads))
        patch.setattr(PostgresEpochs, "unfinished", read(unfinished))
        yield happened


PROMISES: dict[str, Promise] = {
    "the commit does not compare and swap": a_commit_starts_at_the_head,
    "a part is accepted after the fence": a_fenced_attempt_s_part_is_refused,
    "a part is accepted after the seal": a_part_after_the_seal_is_refused_and_the_epoch_commits,
    "the seal does not hold parts and rows against the manifest": parts_that_the_manifest_does_not_know_are_not_sealed,
    "an attempt reads what the log holds now": what_is_produced_after_the_seal_is_not_skipped,
    "the first plan leaves no origin": what_comes_after_a_first_plan_by_latest_is_read,
    "the plan reads the heads before it looks for an unfinished epoch": (
        a_commit_between_two_reads_of_a_plan_leaves_no_stale_range
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_promise_holds_with_the_guard(mutant: Mutant, postgres_dsn: str) -> None:
    PROMISES[mutant.name](postgres_dsn)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_promise_fails_without_the_guard(mutant: Mutant, postgres_dsn: str) -> None:
    """What would be let in is let in: the test above can fail."""
    if mutant.unconstrained:
        for name in ("starts_where_one_ended", "nothing_ends_twice", "nothing_starts_twice"):
            query(postgres_dsn, f"ALTER TABLE epochline.committed_range DROP CONSTRAINT {name}")

    with mutant.in_force(), pytest.raises(AssertionError):
        PROMISES[mutant.name](postgres_dsn)


def test_the_chain_s_constraints_refuse_what_the_commit_lets_through(postgres_dsn: str) -> None:
    """INV-1: the second line of defence."""
    with MUTANTS[0].in_force(), pytest.raises(LedgerError, match=re.escape("PostgreSQL refused (23")):
        a_commit_starts_at_the_head(postgres_dsn)


def test_a_mutant_that_finds_nothing_to_take_away_says_so() -> None:
    """Rewording a guard fails the test until its mutant follows."""
    gone = Mutant(name="n", where="advance_head", old="what nobody wrote", new="", world="", breaks="")

    with pytest.raises(LookupError, match="says 0 times"), gone.in_force():
        pass
