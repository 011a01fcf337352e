"""Pauses, failure rates and settings of epochs, over both ledgers and their own clocks."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from epochline import Endless, FailureRate, FixedDelay, NoRestart, Settings
from epochline.config.resolve import resolve_settings
from epochline.coordinator import PlanOutcome, pause_before_retry
from epochline.declare.settings import PerRun, RestartStrategy
from epochline.errors import EpochBusyError, PipelinePausedError, RestartsExhaustedError
from epochline.protocol.epoch import AbortOutcome, EpochState
from epochline.protocol.failures import RecordedError
from tests.contract.operators import act
from tests.contract.worlds import World, orders, ranges
from tests.driver import epoch_of


def test_a_plan_waits_until_the_last_commit_is_the_minimum_pause_ago(world: World) -> None:
    """K9: commit at t, pause 1000 s: the next plan is made at t + 1000 s, whatever was produced."""
    world.to_committed()
    world.kafka.produce("orders", 0, 3)
    world.pipeline = orders(settings=Settings(minimum_pause=1000))

    planned = world.plan("run-2", sleep=world.sleep)

    assert planned.outcome is PlanOutcome.PLANNED
    assert sum(world.slept) == pytest.approx(1000, abs=60)


def test_a_pause_that_is_over_and_a_pipeline_without_a_commit_are_not_waited_for(world: World) -> None:
    """K9."""
    world.pipeline = orders(settings=Settings(minimum_pause=1000))
    world.to_committed(sleep=world.sleep)
    world.kafka.produce("orders", 0, 3)
    world.let_pass(1001)

    world.plan("run-2", sleep=world.sleep)

    assert world.slept == []


def test_a_run_goes_on_with_its_own_epoch_without_a_pause(world: World) -> None:
    """K9: a pause lies between epochs; a retry of the plan is no new one."""
    world.to_committed()
    world.kafka.produce("orders", 0, 3)
    world.plan("run-2")
    world.pipeline = orders(settings=Settings(minimum_pause=1000))

    assert world.plan("run-2", sleep=world.sleep).outcome is PlanOutcome.RESUMED
    assert world.slept == []


@pytest.mark.parametrize(("passed", "waited"), [(4, 6), (11, 0)])
def test_a_scheduled_epoch_starts_an_interval_after_the_one_before(world: World, passed: float, waited: float) -> None:
    """K8: Airflow starts a run at each tick, and a run that was late is followed by the next one too soon."""
    world.pipeline = orders(schedule=timedelta(seconds=10))
    world.to_committed("run-1")
    world.kafka.produce("orders", 0, 3)
    world.let_pass(passed)

    planned = world.plan("run-2", sleep=world.sleep, scheduled=True)

    assert planned.outcome is PlanOutcome.PLANNED
    assert sum(world.slept) <= waited
    assert epoch_of(planned).planned_at - world.epoch(1).planned_at >= timedelta(seconds=10)


def test_a_plan_does_not_wait_hours_for_its_interval_and_says_so(world: World) -> None:
    """K8: a wait holds a worker slot."""
    world.pipeline = orders(schedule=timedelta(days=1))
    world.to_committed("run-1")
    world.kafka.produce("orders", 0, 3)
    world.let_pass(3600)

    planned = world.plan("run-2", sleep=world.sleep, scheduled=True)

    assert (planned.outcome, world.slept) == (PlanOutcome.PLANNED, [])
    assert [note for note in planned.notes if "after the one before, and the interval is 1 d" in note]


@pytest.mark.parametrize("declared", [{"schedule": timedelta(seconds=10)}, {"schedule": "@daily"}, {}])
def test_a_run_that_a_person_starts_and_a_schedule_without_an_interval_wait_for_nothing(
    world: World, declared: dict[str, Any]
) -> None:
    """K8, U1."""
    world.pipeline = orders(**declared)
    world.to_committed("run-1")
    world.kafka.produce("orders", 0, 3)

    planned = world.plan("run-2", sleep=world.sleep, scheduled=declared.get("schedule") == "@daily")

    assert (planned.outcome, world.slept) == (PlanOutcome.PLANNED, [])


def fail_at(world: World, moments: Sequence[float]) -> int:
    """Let one attempt after another end without a word at these seconds; how many attempts were made."""
    world.pipeline = orders(settings=Settings(restart=FailureRate(max_failures=3, interval=timedelta(minutes=5))))
    world.to_begun(lease=timedelta(hours=1))
    for made, (before, now) in enumerate(pairwise([0, *moments]), start=1):
        world.let_pass(now - before)
        try:
            world.begin(1)
        except RestartsExhaustedError:
            return made
    return len(moments) + 1


def test_more_failures_than_the_rate_allows_end_the_restarts(world: World) -> None:
    """R2: failures at 0, 10, 20 and 30 s: there is no attempt after the fourth; aborted, no offset moves."""
    assert fail_at(world, [0, 10, 20, 30, 40]) == 4

    with pytest.raises(RestartsExhaustedError, match="4 attempts failed within 5 min, .* strategy allows 3"):
        world.begin(1)
    assert (world.epoch(1).attempt, world.epoch(1).state) == (4, EpochState.PLANNED)
    world.abort()
    assert world.epoch(1).state is EpochState.ABORTED
    assert world.heads() == {0: 0, 1: 0}


def test_failures_that_left_the_window_do_not_count(world: World) -> None:
    """R2: failures at 0, 100, 200 and 310 s are never more than three within five minutes."""
    assert fail_at(world, [0, 100, 200, 310]) == 5


def test_attempts_that_were_sealed_are_no_failures(world: World) -> None:
    """R2: what committed, and what was sealed and then discarded, did not fail."""
    world.pipeline = orders(settings=Settings(restart=FailureRate(max_failures=1, interval=300)))
    for number in range(3):
        world.kafka.produce("orders", 0, 3)
        world.to_committed(f"run-{number}")

    world.kafka.produce("orders", 0, 3)
    assert world.to_sealed("run-9").epoch is not None


def fail(world: World, error: RecordedError) -> None:
    world.begin(1)
    note(world, error)


def note(world: World, error: RecordedError) -> None:
    attempt = world.live()
    with world.ledger.transaction() as tx:
        tx.attempts.note_error(attempt, error)


REFUSED = RecordedError(error_class="RowsRefusedError", said="a NULL in its key")
RAISED = RecordedError(error_class="KeyError", said="'city'")
AWAY = RecordedError(error_class="SourceUnavailableError", said="Kafka does not answer")
LOST = RecordedError(error_class="JobLostError", said="killed by signal 9")
BAD = RecordedError(error_class="BadRecordError", said="orders-0 offset 7: no JSON")


@pytest.mark.parametrize("restart", [Endless(), FixedDelay(attempts=3), NoRestart()], ids=lambda one: one.kind)
def test_rows_that_would_be_refused_again_stop_the_pipeline_at_once(world: World, restart: RestartStrategy) -> None:
    """N1: no restart helps, whatever the strategy; somebody mends the table and resumes."""
    world.pipeline = orders(settings=Settings(restart=restart))
    world.plan()
    fail(world, REFUSED)

    world.abort()

    assert paused(world) == f"epochline: epoch 1 failed, and a restart would fail again: {REFUSED}"
    with pytest.raises(PipelinePausedError, match="a NULL in its key"):
        world.plan("run-2")
    act(world, "resume")
    assert world.plan("run-2").outcome is PlanOutcome.PLANNED


def test_a_resume_after_the_last_restart_forgives_that_failure_where_none_is_tolerated(world: World) -> None:
    """N1, K11: a second pause, for the failure that the resume had answered, would need a second resume."""
    settings = Settings(restart=FixedDelay(attempts=1), tolerable_failures=0)
    world.pipeline = orders(settings=settings, schedule=timedelta(minutes=1))
    world.plan()
    fail(world, RAISED)
    fail(world, RAISED)
    world.abort()
    assert "is used up" in (paused(world) or "")

    act(world, "resume")

    assert world.plan("run-2").outcome is PlanOutcome.PLANNED
    assert paused(world) is None


def test_code_that_raises_stops_the_pipeline_after_the_last_restart_only(world: World) -> None:
    """N1: fixedDelay(2): three tries, then down. A run that is cleared after a resume has its restarts again."""
    world.pipeline = orders(settings=Settings(restart=FixedDelay(attempts=2)), schedule=timedelta(minutes=1))
    world.plan()
    for tries in (1, 2, 3):
        fail(world, RAISED)
        assert (world.epoch(1).attempt, paused(world)) == (tries, None)
    world.abort()
    assert paused(world) == f"epochline: epoch 1 failed, and its restart strategy is used up: {RAISED}"

    act(world, "resume")
    assert world.plan().outcome is PlanOutcome.REOPENED
    fail(world, RAISED)
    world.abort()  # by hand, before its restarts are used up
    assert paused(world) is None


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (Settings(restart=Endless()), RAISED),
        (Settings(restart=NoRestart()), RAISED),
        (Settings(restart=FixedDelay(attempts=0)), BAD),
        (Settings(restart=FixedDelay(attempts=0)), AWAY),
        (Settings(restart=FixedDelay(attempts=0)), LOST),
    ],
    ids=["endless", "by hand", "a bad record, by hand", "a server", "a process"],
)
def test_a_failure_that_the_next_run_may_survive_stops_nothing(
    world: World, settings: Settings, error: RecordedError
) -> None:
    """N1, K11: servers and processes come back; a pipeline that only people start needs no stop."""
    world.pipeline = orders(settings=settings)
    world.plan()
    fail(world, error)

    world.abort()

    assert paused(world) is None
    assert world.plan("run-2").outcome is PlanOutcome.PLANNED


@pytest.mark.parametrize(("restart", "error"), [(NoRestart(), RAISED), (Endless(), BAD)], ids=["raised", "bad"])
def test_a_schedule_stays_down_where_no_restart_is_left(
    world: World, restart: RestartStrategy, error: RecordedError
) -> None:
    """N1, R3: nobody sees the next scheduled run fail in the same way."""
    world.pipeline = orders(settings=Settings(restart=restart), schedule=timedelta(minutes=1))
    world.plan()
    fail(world, error)

    world.abort()

    assert paused(world) is not None


def attempt_fails(number: int) -> RecordedError:
    return RecordedError(error_class="TargetCodeError", said=f"attempt {number} of epoch 1 of orders: division by zero")


@pytest.mark.parametrize(
    ("settings", "errors", "given_up"),
    [
        (Settings(), [RAISED] * 3, True),
        (Settings(), [attempt_fails(1), attempt_fails(2), attempt_fails(3)], True),
        (Settings(), [AWAY, RAISED, RAISED, RAISED], True),
        (Settings(), [RAISED, RAISED], False),
        (Settings(), [RAISED, attempt_fails(2), RAISED], False),
        (Settings(), [AWAY] * 4, False),
        (Settings(restart=Endless()), [RAISED] * 4, False),
    ],
    ids=["raised", "with its number", "in the end", "twice", "another between", "a server", "declared endless"],
)
def test_the_same_error_of_code_three_times_in_a_row_ends_the_retries_that_nobody_declared(
    world: World, settings: Settings, errors: Sequence[RecordedError], given_up: bool
) -> None:
    """R4, N1: endless retries are for failures that pass. A cleared run after the resume has its retries again."""
    world.pipeline = orders(settings=settings, schedule=timedelta(minutes=1))
    world.plan()
    for error in errors:
        fail(world, error)

    if not given_up:
        assert world.begin(1) is not None
        world.abort()
        assert paused(world) is None
        return
    with pytest.raises(RestartsExhaustedError, match="its last 3 attempts failed of the same error: .*resume orders"):
        world.begin(1)
    world.abort()
    assert "its restart strategy is used up" in (paused(world) or "")
    act(world, "resume")
    assert world.plan().outcome is PlanOutcome.REOPENED
    fail(world, errors[-1])
    assert world.begin(1) is not None


@pytest.mark.parametrize(
    ("restart", "errors", "pauses"),
    [
        (Endless(delay=10), [RAISED] * 7, [10, 20, 40, 80, 160, 300, 300]),
        (Endless(delay=10), [RAISED, RAISED, AWAY, AWAY, RAISED, BAD], [10, 20, 10, 10, 10, 10]),
        (Endless(delay=400), [RAISED] * 2, [400, 400]),
        (Endless(delay=0), [RAISED] * 2, [0, 0]),
        (FixedDelay(attempts=9, delay=120), [RAISED] * 3, [120, 120, 120]),
        (FixedDelay(attempts=2, delay=120), [RAISED] * 3, [120, 120, None]),
        (NoRestart(), [AWAY], [None]),
    ],
    ids=["the same", "one that passes between", "a long delay", "no delay", "fixed", "two", "none"],
)
def test_a_declared_endless_restart_tries_an_error_that_comes_back_at_growing_pauses(
    world: World, restart: RestartStrategy, errors: Sequence[RecordedError], pauses: Sequence[float | None]
) -> None:
    """R4, R1: a server that comes back is not waited for longer. The epoch stays its run's through the pause.

    The number of restarts is that of the epoch's plan, too, whatever Airflow read from the DAG file.
    """
    world.pipeline = orders(settings=Settings(restart=restart))
    world.plan()
    waited: list[float | None] = []
    for error in errors:
        fail(world, error)
        pause, said = pause_before_retry(world.ledger, "orders", 1)
        if pause is None:
            assert said == f"epoch 1 of orders: no restart is left; its plan allowed {restart.retries}"
            waited.append(None)
            break
        waited.append(pause.total_seconds())
        assert f"begins in {pause.total_seconds():g} s" in said
        world.let_pass(pause.total_seconds() + 30)
        with pytest.raises(EpochBusyError):
            world.plan("run-2", lease=timedelta(seconds=0.1))

    assert waited == pauses
    assert ("Endless restarts go on" in said) is (errors == [RAISED] * 7)


def test_a_failure_rate_that_is_used_up_leaves_the_pipeline_down(world: World) -> None:
    """N1, R2."""
    rate = FailureRate(max_failures=1, interval=300)
    world.pipeline = orders(settings=Settings(restart=rate), schedule=timedelta(minutes=1))
    world.plan()
    for _ in range(2):
        fail(world, RAISED)
    with pytest.raises(RestartsExhaustedError):
        world.begin(1)

    world.abort()

    assert paused(world) is not None


@pytest.mark.parametrize(
    "end",
    [lambda world: world.abort(reason="asked for", by_operator=True), lambda world: act(world, "abort", epoch=1)],
    ids=["by a command", "by the action"],
)
def test_an_operator_who_ends_an_epoch_stops_nothing(world: World, end: Callable[[World], object]) -> None:
    """ADR 0026: an operator who repaired the cause can run it again, and a run that fails again stops by itself."""
    world.plan()
    fail(world, REFUSED)

    end(world)

    assert world.epoch(1).state is EpochState.ABORTED
    assert paused(world) is None


def test_a_run_that_vanished_leaves_its_pipeline_down_all_the_same(world: World) -> None:
    """N1, INV-6: the next run settles what the lost one left, and stops as its teardown would have."""
    world.plan()
    fail(world, REFUSED)
    world.let_pass(3600)

    with pytest.raises(PipelinePausedError, match="a NULL in its key"):
        world.plan("run-2")
    assert world.epoch(1).state is EpochState.ABORTED


def test_the_first_reason_stays_first_and_is_written_once(world: World) -> None:
    """U7: the teardown adds to what the failed attempt wrote, and replaces nothing."""
    world.plan()
    fail(world, RAISED)
    note(world, RAISED)

    world.abort(reason="teardown of the run")

    assert world.epoch(1).error == f"{RAISED}; teardown of the run"


def settings_of(world: World) -> Mapping[str, Mapping[str, Any]]:
    with world.ledger.transaction() as tx:
        return tx.history.settings(tx.epochs.lock("orders", 1))


def test_an_epoch_keeps_the_settings_in_force_and_what_decided_each(world: World) -> None:
    """C10: global 60 s, declaration 10 s, run conf 5 s: 5 s, from the run's conf."""
    world.pipeline = orders(settings=Settings(minimum_pause=10, restart=FixedDelay(attempts=3)))

    world.plan(settings=resolve_settings(world.pipeline, file=Settings(minimum_pause=60), run=PerRun(minimum_pause=5)))

    kept = settings_of(world)
    assert kept["minimum_pause"] == {"value": 5.0, "from": "run conf"}
    restart = {"kind": "fixed_delay", "attempts": 3, "delay": 10.0}
    assert kept["restart"] == {"value": restart, "from": "declaration"}
    assert kept["timeout"] == {"value": 3600.0, "from": "default"}


def test_an_epoch_that_is_tried_again_keeps_the_settings_of_that_time(world: World) -> None:
    """C10: its settings are recorded again, as its declaration is."""
    world.plan()
    world.abort()
    world.pipeline = orders(settings=Settings(timeout=7))

    assert world.plan().outcome is PlanOutcome.REOPENED
    assert settings_of(world)["timeout"] == {"value": 7.0, "from": "declaration"}


def abort_epochs(world: World, number: int, first: int = 1) -> None:
    for run_number in range(first, first + number):
        planned = world.plan(f"run-{run_number}")
        world.abort(epoch_of(planned).epoch_id, f"run-{run_number}")


def paused(world: World) -> str | None:
    with world.ledger.transaction() as tx:
        decision = tx.operators.standing("orders").paused
    return None if decision is None else f"{decision.by}: {decision.reason}"


@pytest.mark.parametrize(
    ("settings", "tolerated"),
    [
        (Settings(tolerable_failures=0), 0),
        (Settings(tolerable_failures=10), 10),
        (Settings(fail_on_epoch_error=True), 0),
    ],
    ids=["none", "ten", "fail_on_epoch_error"],
)
def test_one_abort_more_than_tolerated_pauses_the_pipeline(world: World, settings: Settings, tolerated: int) -> None:
    """K11, K12: with 0 the first abort pauses; with 10 ten aborts go on, the eleventh pauses."""
    world.pipeline = orders(settings=settings)

    abort_epochs(world, tolerated)
    assert paused(world) is None
    abort_epochs(world, 1, first=tolerated + 1)

    said = f"{tolerated + 1} epochs in a row were aborted, of which {tolerated} are tolerated"
    assert paused(world) == f"epochline: {said}"
    with pytest.raises(PipelinePausedError, match=said):
        world.plan("run-99")


def test_a_commit_and_a_resume_start_the_count_again(world: World) -> None:
    """K11: one more failure after either is one failure, not one too many."""
    world.pipeline = orders(settings=Settings(tolerable_failures=1))
    abort_epochs(world, 1)
    world.to_committed("run-2")
    world.kafka.produce("orders", 0, 3)

    abort_epochs(world, 1, first=3)
    assert paused(world) is None
    abort_epochs(world, 1, first=4)
    assert paused(world) is not None
    act(world, "resume")
    abort_epochs(world, 1, first=5)
    assert paused(world) is None
    abort_epochs(world, 1, first=6)
    assert paused(world) is not None


def test_the_same_epoch_aborted_twice_has_failed_twice(world: World) -> None:
    """K11: a cleared run tries its epoch again; that it has one id does not hide its failures."""
    world.pipeline = orders(settings=Settings(tolerable_failures=1))
    for _ in range(2):
        assert world.plan().outcome in (PlanOutcome.PLANNED, PlanOutcome.REOPENED)
        world.abort()

    assert paused(world) is not None


def test_an_abandoned_epoch_counts_as_aborted(world: World) -> None:
    """K11: recovery by another run counts it, and that run's plan is refused."""
    world.pipeline = orders(settings=Settings(tolerable_failures=0))
    world.plan(lease=timedelta(seconds=-1))

    with pytest.raises(PipelinePausedError, match="1 epochs in a row"):
        world.plan("run-2")
    assert world.epoch(1).state is EpochState.ABORTED


@pytest.mark.parametrize("settings", [Settings(), Settings(fail_on_epoch_error=False)], ids=["default", "go on"])
def test_without_a_tolerance_the_next_epoch_takes_the_range(world: World, settings: Settings) -> None:
    """K12: abort epoch 2; epoch 3 covers the ranges of 2 and 3."""
    world.pipeline = orders(settings=settings)
    world.to_committed()
    world.kafka.produce("orders", 0, 3)
    abort_epochs(world, 1, first=2)
    world.kafka.produce("orders", 0, 4)

    assert ranges(world.plan("run-3")) == ["orders-0[10, 17)"]
    assert paused(world) is None


def test_retained_a_sealed_epoch_of_a_cancelled_run_is_committed_by_the_next(world: World) -> None:
    """K13, INV-6: cancelled between pre_commit and commit: staging is kept and resumed; the target is unchanged."""
    world.pipeline = orders(settings=Settings(on_cancel="retain"))
    world.to_sealed()

    assert world.abort() is AbortOutcome.LEFT_FOR_RECOVERY
    assert world.visible() == []
    world.plan("run-2")

    assert world.epoch(1).state is EpochState.COMMITTED
    assert len(world.visible()) == 15


def test_deleted_a_sealed_epoch_of_a_cancelled_run_is_gone_and_its_range_is_read_again(world: World) -> None:
    """K13, INV-7: staging is gone, no offset moved, the target is unchanged; once it is read again it is there once."""
    world.pipeline = orders(settings=Settings(on_cancel="delete"))
    world.to_sealed()

    assert world.abort() is AbortOutcome.ABORTED
    assert (world.visible(), world.heads(), world.left_over()) == ([], {0: 0, 1: 0}, 0)

    assert ranges(world.to_committed("run-2")) == ["orders-0[0, 10)", "orders-1[0, 5)"]
    assert len(world.visible()) == 15
    assert world.abort(2, "run-2") is AbortOutcome.ALREADY_COMMITTED
    assert len(world.visible()) == 15


def limit_of(world: World, epoch_id: int) -> Mapping[str, Any]:
    """The recorded limit with its origin, which the epoch's own row repeats."""
    with world.ledger.transaction() as tx:
        epoch = tx.epochs.lock("orders", epoch_id)
        kept = tx.history.settings(epoch)["record_limit"]
    assert kept["value"] == epoch.record_limit
    return kept


def test_an_epoch_keeps_the_place_that_decided_its_record_limit(world: World) -> None:
    """C10, B1: the default, the declaration, the target duration and the run itself, the last of which wins."""
    world.kafka.produce("orders", 0, 400)
    world.to_committed("run-1", record_limit=4)
    assert limit_of(world, 1) == {"value": 4, "from": "run"}
    world.kafka.produce("orders", 0, 400)
    source = world.pipeline.source.model_copy(update={"records_per_epoch": 100})
    world.pipeline = orders(source=source)
    planned = world.plan("run-2")
    assert limit_of(world, 2) == {"value": 100, "from": "declaration"}
    world.let_pass(20)
    world.finish(planned, "run-2")
    world.pipeline = orders(source=source, settings=Settings(target_duration=10))
    world.to_committed("run-3")
    assert limit_of(world, 3)["from"] == "adapted to target_duration"
    assert limit_of(world, 3)["value"] < 100
    world.pipeline = orders()
    world.plan("run-4")
    assert limit_of(world, 4) == {"value": 1_000_000, "from": "default"}


def test_an_epoch_that_is_tried_again_keeps_the_limit_of_its_ranges(world: World) -> None:
    """INV-3: its ranges stay as they were planned, so the limit that made them does as well."""
    world.plan(record_limit=4)
    world.abort()

    assert world.plan(record_limit=2).outcome is PlanOutcome.REOPENED
    assert limit_of(world, 1) == {"value": 4, "from": "run"}


def test_a_plan_reads_less_after_an_epoch_that_took_longer_than_its_target(world: World) -> None:
    """B1, K8: the ledger says what the newest epoch took; the limit of the next follows, and the log says why."""
    world.kafka.produce("orders", 0, 400)
    source = world.pipeline.source.model_copy(update={"records_per_epoch": 200})
    world.pipeline = orders(source=source, schedule=timedelta(seconds=15), settings=Settings(target_duration=10))
    first = world.plan("run-1")
    world.let_pass(20)
    world.finish(first, "run-1")

    second = world.plan("run-2")

    read, later = (sum(len(one.range) for one in planned.ranges) for planned in (first, second))
    assert read == 200
    done = world.epoch(1)
    assert done.committed_at is not None
    assert later == int(read * timedelta(seconds=10) / (done.committed_at - done.planned_at))
    assert [note for note in second.notes if note.startswith("the interval of 15 s was not kept: epoch 1 of orders")]
    assert epoch_of(second).record_limit == later
