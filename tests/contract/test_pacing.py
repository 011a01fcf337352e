"""Pauses, failure rates and settings of epochs, over both ledgers and their own clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg2
import pytest

from epochline import FailureRate, FixedDelay, Settings
from epochline.config.resolve import resolve_settings
from epochline.coordinator import PlanOutcome, abort
from epochline.declare.settings import PerRun
from epochline.errors import PipelinePausedError, RestartsExhaustedError
from epochline.protocol.epoch import AbortOutcome, EpochState
from epochline.testing import FakeLedger
from tests.contract.worlds import World, fake_world, orders, postgres_world, run


@dataclass
class Clock:
    """Lets time pass in a ledger: the fake's clock is set, on PostgreSQL what has happened is moved back."""

    world: World
    let_pass: Callable[[float], None]
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.let_pass(seconds)


@pytest.fixture(params=["fake", pytest.param("postgres", marks=pytest.mark.server)])
def clock(request: pytest.FixtureRequest) -> Iterator[Clock]:
    if request.param == "fake":
        world = fake_world()
        assert isinstance(world.ledger, FakeLedger)
        ledger, passed = world.ledger, [datetime(2026, 1, 1, tzinfo=UTC)]
        ledger.now = lambda: passed[0]

        def turn(seconds: float) -> None:
            passed[0] += timedelta(seconds=seconds)

        return Clock(world, turn)
    dsn = request.getfixturevalue("postgres_dsn")

    def move_back(seconds: float) -> None:
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            for table, columns in {"epoch": ["committed_at", "lease_until"], "attempt": ["ended_at"]}.items():
                moved = ", ".join(f"{name} = {name} - make_interval(secs => %(seconds)s)" for name in columns)
                cursor.execute(f"UPDATE epochline.{table} SET {moved}", {"seconds": seconds})
        connection.close()

    return Clock(postgres_world(dsn), move_back)


# The minimum pause


def test_a_plan_waits_until_the_last_commit_is_the_minimum_pause_ago(clock: Clock) -> None:
    """K9: commit at t, pause 1000 s: the next plan is made at t + 1000 s, whatever was produced."""
    clock.world.to_committed()
    clock.world.kafka.produce("orders", 0, 3)
    clock.world.pipeline = orders(settings=Settings(minimum_pause=1000))

    planned = clock.world.plan("run-2", sleep=clock.sleep)

    assert planned.outcome is PlanOutcome.PLANNED
    assert sum(clock.slept) == pytest.approx(1000, abs=60)


def test_a_pause_that_is_over_and_a_pipeline_without_a_commit_are_not_waited_for(clock: Clock) -> None:
    """K9."""
    clock.world.pipeline = orders(settings=Settings(minimum_pause=1000))
    clock.world.to_committed(sleep=clock.sleep)
    clock.world.kafka.produce("orders", 0, 3)
    clock.let_pass(1001)

    clock.world.plan("run-2", sleep=clock.sleep)

    assert clock.slept == []


def test_a_run_goes_on_with_its_own_epoch_without_a_pause(clock: Clock) -> None:
    """K9: a pause lies between epochs; a retry of the plan is no new one."""
    clock.world.to_committed()
    clock.world.kafka.produce("orders", 0, 3)
    clock.world.plan("run-2")
    clock.world.pipeline = orders(settings=Settings(minimum_pause=1000))

    assert clock.world.plan("run-2", sleep=clock.sleep).outcome is PlanOutcome.RESUMED
    assert clock.slept == []


# Failure rates


def fail_at(clock: Clock, moments: Sequence[float]) -> int:
    """Let one attempt after another end without a word at these seconds; how many attempts were made."""
    clock.world.pipeline = orders(settings=Settings(restart=FailureRate(max_failures=3, interval=timedelta(minutes=5))))
    planned = clock.world.plan(lease=timedelta(hours=1))
    assert planned.epoch is not None
    clock.world.begin(planned.epoch.epoch_id)
    for made, (before, now) in enumerate(pairwise([0, *moments]), start=1):
        clock.let_pass(now - before)
        try:
            clock.world.begin(planned.epoch.epoch_id)
        except RestartsExhaustedError:
            return made
    return len(moments) + 1


def test_more_failures_than_the_rate_allows_end_the_restarts(clock: Clock) -> None:
    """R2: failures at 0, 10, 20 and 30 s: there is no attempt after the fourth; aborted, no offset moves."""
    assert fail_at(clock, [0, 10, 20, 30, 40]) == 4

    abort(clock.world.ledger, "orders", 1, run(), reason="teardown")
    assert clock.world.epoch(1).state is EpochState.ABORTED
    assert clock.world.heads() == {0: 0, 1: 0}


def test_failures_that_left_the_window_do_not_count(clock: Clock) -> None:
    """R2: failures at 0, 100, 200 and 310 s are never more than three within five minutes."""
    assert fail_at(clock, [0, 100, 200, 310]) == 5


def test_a_refused_attempt_says_why_and_changes_nothing(clock: Clock) -> None:
    fail_at(clock, [0, 10, 20, 30])

    with pytest.raises(RestartsExhaustedError, match="4 attempts failed within 0:05:00, .* strategy allows 3"):
        clock.world.begin(1)
    assert clock.world.epoch(1).attempt == 4
    assert clock.world.epoch(1).state is EpochState.PLANNED


def test_attempts_that_were_sealed_are_no_failures(clock: Clock) -> None:
    """R2: what committed, and what was sealed and then discarded, did not fail."""
    clock.world.pipeline = orders(settings=Settings(restart=FailureRate(max_failures=1, interval=300)))
    for number in range(3):
        clock.world.kafka.produce("orders", 0, 3)
        clock.world.to_committed(f"run-{number}")

    clock.world.kafka.produce("orders", 0, 3)
    assert clock.world.to_sealed("run-9").epoch is not None


# Settings of epochs


def settings_of(world: World, epoch_id: int) -> Any:
    with world.ledger.transaction() as tx:
        return tx.history.settings(tx.epochs.lock("orders", epoch_id))


def test_an_epoch_keeps_the_settings_in_force_and_what_decided_each(clock: Clock) -> None:
    """C10: global 60 s, declaration 10 s, run conf 5 s: 5 s, from the run's conf."""
    world = clock.world
    world.pipeline = orders(settings=Settings(minimum_pause=10, restart=FixedDelay(attempts=3)))

    world.plan(settings=resolve_settings(world.pipeline, file=Settings(minimum_pause=60), run=PerRun(minimum_pause=5)))

    kept = settings_of(world, 1)
    assert kept["minimum_pause"] == {"value": 5.0, "from": "run conf"}
    assert kept["restart"] == {
        "value": {"kind": "fixed_delay", "attempts": 3, "delay": 10.0}, "from": "declaration",
    }  # fmt: skip
    assert kept["timeout"] == {"value": 3600.0, "from": "default"}


def test_an_epoch_that_is_tried_again_keeps_the_settings_of_that_time(clock: Clock) -> None:
    """C10: its settings are recorded again, as its declaration is."""
    world = clock.world
    world.plan()
    abort(world.ledger, "orders", 1, run(), reason="test")
    world.pipeline = orders(settings=Settings(timeout=7))

    assert world.plan().outcome is PlanOutcome.REOPENED
    assert settings_of(world, 1)["timeout"] == {"value": 7.0, "from": "declaration"}


# Failures in a row


def abort_epochs(world: World, number: int, first: int = 1) -> None:
    """Plan and abort an epoch so many times, each in a run of its own."""
    for run_number in range(first, first + number):
        planned = world.plan(f"run-{run_number}")
        assert planned.epoch is not None
        abort(world.ledger, "orders", planned.epoch.epoch_id, run(f"run-{run_number}"), reason="test")


def paused(world: World) -> str | None:
    with world.ledger.transaction() as tx:
        decision = tx.operators.standing("orders").paused
    return None if decision is None else f"{decision.by}: {decision.reason}"


def resume(world: World) -> None:
    with world.ledger.transaction() as tx:
        tx.epochs.lock_pipeline("orders")
        tx.operators.resume("orders")


@pytest.mark.parametrize("tolerable", [0, 10])
def test_one_abort_more_than_tolerated_pauses_the_pipeline(clock: Clock, tolerable: int) -> None:
    """K11: with 0 the first abort pauses; with 10 ten aborts go on, the eleventh pauses."""
    world = clock.world
    world.pipeline = orders(settings=Settings(tolerable_failures=tolerable))

    abort_epochs(world, tolerable)
    assert paused(world) is None
    abort_epochs(world, 1, first=tolerable + 1)

    said = f"{tolerable + 1} epochs in a row were aborted, of which {tolerable} are tolerated"
    assert paused(world) == f"epochline: {said}"
    with pytest.raises(PipelinePausedError, match=said):
        world.plan("run-99")


def test_a_commit_begins_the_count_anew(clock: Clock) -> None:
    """K11: a success resets."""
    world = clock.world
    world.pipeline = orders(settings=Settings(tolerable_failures=1))
    abort_epochs(world, 1)
    world.to_committed("run-2")
    world.kafka.produce("orders", 0, 3)

    abort_epochs(world, 1, first=3)

    assert paused(world) is None


def test_who_resumes_a_pipeline_begins_to_count_anew(clock: Clock) -> None:
    """K11: one more failure after a resume is one failure, not one too many."""
    world = clock.world
    world.pipeline = orders(settings=Settings(tolerable_failures=1))
    abort_epochs(world, 2)
    assert paused(world) is not None
    resume(world)

    abort_epochs(world, 1, first=3)
    assert paused(world) is None
    abort_epochs(world, 1, first=4)
    assert paused(world) is not None


def test_the_same_epoch_aborted_twice_has_failed_twice(clock: Clock) -> None:
    """K11: a cleared run tries its epoch again; that it has one id does not hide its failures."""
    world = clock.world
    world.pipeline = orders(settings=Settings(tolerable_failures=1))
    for _ in range(2):
        assert world.plan().outcome in (PlanOutcome.PLANNED, PlanOutcome.REOPENED)
        abort(world.ledger, "orders", 1, run(), reason="test")

    assert paused(world) is not None


def test_an_epoch_that_nobody_came_back_for_counts_as_aborted(clock: Clock) -> None:
    """K11: recovery by another run counts it, and that run's plan is refused."""
    world = clock.world
    world.pipeline = orders(settings=Settings(tolerable_failures=0))
    world.plan(lease=timedelta(seconds=-1))

    with pytest.raises(PipelinePausedError, match="1 epochs in a row"):
        world.plan("run-2")
    assert world.epoch(1).state is EpochState.ABORTED


@pytest.mark.parametrize("settings", [{}, {"fail_on_epoch_error": False}], ids=["default", "go on"])
def test_without_a_tolerance_the_next_epoch_takes_the_range(clock: Clock, settings: dict[str, Any]) -> None:
    """K12: abort epoch 2; epoch 3 covers the ranges of 2 and 3."""
    world = clock.world
    world.pipeline = orders(settings=Settings(**settings))
    world.to_committed()
    world.kafka.produce("orders", 0, 3)
    abort_epochs(world, 1, first=2)
    world.kafka.produce("orders", 0, 4)

    planned = world.plan("run-3")

    assert [str(one) for one in planned.ranges] == ["orders-0[10, 17)"]
    assert paused(world) is None


def test_fail_on_epoch_error_pauses_at_the_first_abort(clock: Clock) -> None:
    """K12."""
    clock.world.pipeline = orders(settings=Settings(fail_on_epoch_error=True))

    abort_epochs(clock.world, 1)

    assert paused(clock.world) is not None


# Cancellation


def test_retained_a_sealed_epoch_of_a_cancelled_run_is_committed_by_the_next(clock: Clock) -> None:
    """K13, INV-6: cancelled between pre_commit and commit: staging is kept and resumed; the target is unchanged."""
    world = clock.world
    world.pipeline = orders(settings=Settings(on_cancel="retain"))
    world.to_sealed()

    assert abort(world.ledger, "orders", 1, run(), reason="cancelled") is AbortOutcome.LEFT_FOR_RECOVERY
    assert world.visible() == []
    world.plan("run-2")

    assert world.epoch(1).state is EpochState.COMMITTED
    assert len(world.visible()) == 15


def test_deleted_a_sealed_epoch_of_a_cancelled_run_is_gone_and_its_range_is_read_again(clock: Clock) -> None:
    """K13, INV-7: staging is gone, no offset moved, the target is unchanged; once it is read again it is there once."""
    world = clock.world
    world.pipeline = orders(settings=Settings(on_cancel="delete"))
    world.to_sealed()

    assert abort(world.ledger, "orders", 1, run(), reason="cancelled") is AbortOutcome.ABORTED
    assert (world.visible(), world.heads(), world.left_over()) == ([], {0: 0, 1: 0}, 0)

    assert [str(one) for one in world.to_committed("run-2").ranges] == ["orders-0[0, 10)", "orders-1[0, 5)"]
    assert len(world.visible()) == 15


def test_delete_touches_no_committed_epoch(clock: Clock) -> None:
    """K13, INV-7."""
    world = clock.world
    world.pipeline = orders(settings=Settings(on_cancel="delete"))
    world.to_committed()

    assert abort(world.ledger, "orders", 1, run(), reason="cancelled") is AbortOutcome.ALREADY_COMMITTED
    assert len(world.visible()) == 15
