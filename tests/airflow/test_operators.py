"""What operators do in the Airflow UI, on a real scheduler: each run's colour tells the truth, each target is exact."""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from epochline import NoRestart, Settings
from epochline.airflow import operators
from epochline.airflow.dag import build_dag
from epochline.airflow.operators import PlanEpochOperator
from epochline.coordinator import LEASE, abort, recover, renew
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import EpochState, Run
from tests.airflow.conftest import Scheduler, Values, eventually
from tests.airflow.half_way import (
    AFTER,
    BEFORE,
    feed,
    half_written,
    hold,
    in_airflow,
    let_go,
    next_runs,
    pause_while_spark_writes,
    produced,
    sealed_but_paused,
)
from tests.contract.worlds import fake_world, orders
from tests.crash.reliability import Recovery
from tests.e2e.own_servers import running
from tests.waiting import stop_process

PARTITIONS = range(4)
STARTS = [datetime(2026, 1, 29, tzinfo=UTC) + number * timedelta(weeks=4) for number in range(3)]
"""Of the intervals that are backfilled."""
DAYS = [datetime(2026, 2, day, tzinfo=UTC) for day in range(1, 13)]


def added(values: Values, more: Values) -> Values:
    return {p: [*values.get(p, []), *more.get(p, [])] for p in PARTITIONS}


def one_each(what: str) -> dict[int, list[str]]:
    return {p: [f"{what}-{p}"] for p in PARTITIONS}


def wait_until_committed(scheduler: Scheduler, pipeline: str, values: Values) -> None:
    heads = {p: len(some) for p, some in values.items()}
    eventually("a scheduled run commits them", lambda: scheduler.heads(pipeline) == heads)


def test_scheduled_epochs_follow_each_other_without_gap_or_overlap(scheduler: Scheduler) -> None:
    """U2, K8: three scheduled epochs, each range starts where the one before ended."""
    values: Values = {}
    scheduler.prepare("scheduled", {})
    scheduler.pause("scheduled", False)
    try:
        for number in ("1", "2", "3"):
            more = one_each(number)
            scheduler.produce("scheduled", more)
            values = added(values, more)
            wait_until_committed(scheduler, "scheduled", values)
        runs = scheduler.query("SELECT run_id FROM epochline.epochs WHERE pipeline = 'scheduled'")
        assert len(runs) >= 3
        assert all(run.startswith("scheduled__") for (run,) in runs)
        assert {scheduler.wait("scheduled", run) for (run,) in runs} == {"success"}
    finally:
        scheduler.pause("scheduled", True)

    scheduler.assert_exact("scheduled", values)


def backfill(scheduler: Scheduler, pipeline: str, starts: Sequence[datetime] = STARTS, **options: Any) -> list[str]:
    made = scheduler.call(
        "POST", "/api/v2/backfills",
        {"dag_id": pipeline, "from_date": starts[0].isoformat(), "to_date": starts[-1].isoformat(), **options},
    )  # fmt: skip
    path = f"/api/v2/backfills/{made['id']}"
    eventually("the backfill is over", lambda: scheduler.call("GET", path)["completed_at"], every=0.5)
    runs = scheduler.call("GET", f"/api/v2/dags/{pipeline}/dagRuns?run_type=backfill&limit=100")["dag_runs"]
    return [run["state"] for run in runs]


@pytest.mark.fault("F10")
def test_backfills_in_any_order_and_any_number_give_the_same_target(scheduler: Scheduler) -> None:
    """U3: backwards, again with "reprocess completed", and once more during a manual run."""
    scheduler.prepare("backfilled", {})
    scheduler.pause("backfilled", False)
    # The schedule's own run for its last interval finds nothing, and is out of the way.
    path = "/api/v2/dags/backfilled/dagRuns?state=success"
    eventually("the scheduled run is over", lambda: scheduler.call("GET", path)["dag_runs"])
    inside: Values = {}
    for start in STARTS:
        more = {p: [f"{start:%m-%d} {p}", f"{start:%m-%d} {p} again"] for p in PARTITIONS}
        scheduler.produce("backfilled", more, at=start)
        inside = added(inside, more)
    after = one_each("after")
    scheduler.produce("backfilled", after, at=datetime(2026, 6, 1, tzinfo=UTC))

    assert backfill(scheduler, "backfilled", run_backwards=True, max_active_runs=2) == ["success"] * 3
    scheduler.assert_exact("backfilled", inside)
    kind = "SELECT kind FROM epochline.epochs WHERE pipeline = 'backfilled' ORDER BY epoch_id LIMIT 1"
    assert scheduler.query(kind) == [("backfill",)]

    epochs = scheduler.committed("backfilled")
    assert backfill(scheduler, "backfilled", reprocess_behavior="completed") == ["success"] * 3
    assert scheduler.committed("backfilled") == epochs
    scheduler.assert_exact("backfilled", inside)

    external = scheduler.trigger("backfilled")
    assert backfill(scheduler, "backfilled", reprocess_behavior="completed") == ["success"] * 3
    assert scheduler.wait("backfilled", external) == "success"
    scheduler.assert_exact("backfilled", added(inside, after))


@pytest.mark.slow
@pytest.mark.fault("F61")
def test_more_runs_at_once_than_airflow_has_workers_all_succeed(scheduler: Scheduler, recovery: Recovery) -> None:
    """F61, U3: max_active_runs raised by hand, and Airflow's default for a backfill: ten runs at once, eight workers."""
    scheduler.prepare("crowded", {})
    scheduler.pause("crowded", False)
    # The schedule's own run, which would read everything, finds nothing.
    path = "/api/v2/dags/crowded/dagRuns?state=success"
    eventually("the scheduled run is over", lambda: scheduler.call("GET", path)["dag_runs"])
    values: Values = {}
    for start in DAYS:
        more = {p: [f"{start:%m-%d} {p}"] for p in PARTITIONS}
        scheduler.produce("crowded", more, at=start)
        values = added(values, more)
    recovery.last_fault()

    by_hand = [scheduler.trigger("crowded", record_limit=4) for _ in range(3)]
    assert backfill(scheduler, "crowded", DAYS) == ["success"] * len(DAYS)
    assert {scheduler.wait("crowded", run) for run in by_hand} == {"success"}

    assert scheduler.run("crowded")["run"] == "success"
    scheduler.assert_exact("crowded", values)
    recovery.took()


@pytest.mark.slow
def test_plans_of_a_backfill_wait_as_long_as_the_epoch_before_them_takes(scheduler: Scheduler) -> None:
    """U3: longer than the two leases that a plan waits in a worker. No retry is declared, and none is needed."""
    name = "waited_for"
    scheduler.prepare(name, {})
    scheduler.pause(name, False)
    # The schedule's own run finds nothing, and is out of the way.
    path = f"/api/v2/dags/{name}/dagRuns?state=success"
    eventually("the scheduled run is over", lambda: scheduler.call("GET", path)["dag_runs"])
    values: Values = {0: [f"wait {name}-may-go"], 1: ["a"], 2: ["b"], 3: ["c"]}
    scheduler.produce(name, values, at=STARTS[0])
    rescheduled = f"/api/v2/dags/{name}/dagRuns/~/taskInstances?state=up_for_reschedule"

    with ThreadPoolExecutor() as aside:
        states = aside.submit(backfill, scheduler, name)
        eventually("a plan waits without a worker", lambda: scheduler.call("GET", rescheduled)["total_entries"])
        let_go(scheduler, name)
        assert states.result() == ["success"] * len(STARTS)

    scheduler.assert_exact(name, values)


def test_a_plan_that_waits_takes_no_retry_while_the_other_run_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """U3, K14: none is declared. Once nobody renews the lease, the plan takes the range over."""
    world, waited, at_work = fake_world(), [0.0], [True]
    world.pipeline = orders(settings=Settings(restart=NoRestart()))
    _, ticket = world.to_begun("run-1")

    def sleep(seconds: float) -> None:
        waited[0] += seconds
        world.let_pass(seconds)
        if at_work[0]:
            renew(world.ledger, ticket, world.run_of("run-1"), lease=LEASE)

    monkeypatch.setattr(recover, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: waited[0]))
    reached = SimpleNamespace(ledger=lambda _: world.ledger, offsets=lambda _: world.kafka)
    monkeypatch.setattr(operators, "adapters", lambda: reached)
    monkeypatch.setattr(operators, "writers_of", lambda _: None)
    task, shown = build_dag(world.pipeline).get_task("plan_epoch"), list[str]()
    assert isinstance(task, PlanEpochOperator)
    assert task.retries == 0
    task.record_limit = task.note = None  # Airflow renders templates
    run = SimpleNamespace(dag_id="orders", run_id="run-2", conf={}, run_type="manual")
    context: Any = {"dag_run": run, "ti": SimpleNamespace(xcom_push=lambda key, value: shown.append(value))}

    for _ in range(3):
        with pytest.raises(AirflowRescheduleException) as asked:
            task.execute(context)
        assert asked.value.reschedule_date > datetime.now(UTC)
    assert waited[0] >= 6 * LEASE.total_seconds()
    assert shown == ["no epoch · epoch busy · Airflow tries again, or the next run plans"] * 3
    assert world.epoch(1).state is EpochState.PLANNED

    at_work[0] = False
    assert task.execute(context) == "2"
    assert (world.epoch(1).state, world.epoch(2).run.run_id) == (EpochState.ABORTED, "run-2")


def test_a_task_marked_failed_aborts_its_epoch_and_the_cleared_run_commits_it(scheduler: Scheduler) -> None:
    """U4, U6: marked failed while Spark writes; the run is red, staging is gone, and the same range is read again."""
    values, run = half_written(scheduler, "marked")

    scheduler.call("PATCH", f"/api/v2/dags/marked/dagRuns/{run}/taskInstances/pre_commit", {"new_state": "failed"})

    assert scheduler.wait("marked", run) == "failed"
    assert scheduler.epoch("marked", 1)[0] == "ABORTED"
    assert scheduler.staging_tables("marked") == []
    assert scheduler.query("SELECT count(*) FROM marked") == [(0,)]

    let_go(scheduler, "marked")
    scheduler.produce("marked", {0: ["later"]})
    assert scheduler.cleared("marked", run, "plan_epoch") == "success"
    assert scheduler.epoch("marked", 1)[0] == "COMMITTED"
    scheduler.assert_exact("marked", values)


@pytest.mark.slow
@pytest.mark.fault("F10")
def test_clearing_an_old_failed_run_after_a_newer_one_took_its_range_commits_nothing(
    scheduler: Scheduler, recovery: Recovery, forgive: Path
) -> None:
    """U5."""
    values = {0: ["good", "bad"], 1: ["fine"], 2: [], 3: []}
    scheduler.prepare("overtaken", values)
    old = scheduler.trigger("overtaken")
    assert scheduler.wait("overtaken", old) == "failed"
    assert scheduler.epoch("overtaken", 1)[0] == "ABORTED"

    forgive.touch()
    scheduler.produce("overtaken", {2: ["newer"]})
    assert scheduler.run("overtaken")["run"] == "success"
    scheduler.assert_exact("overtaken", added(values, {2: ["newer"]}))

    recovery.last_fault()
    assert scheduler.cleared("overtaken", old, "plan_epoch") == "success"
    assert scheduler.tasks("overtaken", old)["plan_epoch"] == "skipped"
    assert "nothing to read" in scheduler.log("overtaken", old, "plan_epoch")
    assert scheduler.epoch("overtaken", 1)[0] == "ABORTED"
    scheduler.assert_exact("overtaken", added(values, {2: ["newer"]}))
    recovery.took()


@pytest.mark.slow
def test_a_paused_epoch_waits_and_a_failed_commit_is_cleared_alone(scheduler: Scheduler, recovery: Recovery) -> None:
    """U4, P6: paused in the middle; "only failed" clears of the commit task, before and after an abort.

    C4: the last of its runs goes on under another scheduler than the one that sealed its epoch.
    """
    first, second = one_each("first"), one_each("second")
    scheduler.prepare("half_cleared", first)
    run = sealed_but_paused(scheduler, "half_cleared", 1)
    scheduler.query("ALTER TABLE half_cleared RENAME COLUMN value TO other")
    scheduler.pause("half_cleared", False)

    # What is sealed is not lost: the commit fails for good, the teardown leaves the epoch, the run is red.
    assert scheduler.wait("half_cleared", run) == "failed"
    assert scheduler.tasks("half_cleared", run)["commit_epoch"] == "failed"
    assert scheduler.epoch("half_cleared", 1)[0] == "PRE_COMMITTED"
    assert scheduler.query("SELECT count(*) FROM half_cleared_again") == [(0,)]

    scheduler.query("ALTER TABLE half_cleared RENAME COLUMN other TO value")
    assert scheduler.cleared("half_cleared", run, "commit_epoch", only_failed=True) == "success"
    scheduler.assert_exact("half_cleared", first)

    scheduler.produce("half_cleared", second)
    run = sealed_but_paused(scheduler, "half_cleared", 2)
    abort(
        PostgresLedger(scheduler.stack.postgres.dsn()), "half_cleared", 2,
        Run(dag_id="operator", run_id="test", host="here"), reason="an operator decided", by_operator=True,
    )  # fmt: skip
    scheduler.pause("half_cleared", False)
    assert scheduler.wait("half_cleared", run) == "failed"
    assert scheduler.cleared("half_cleared", run, "commit_epoch", only_failed=True) == "failed"
    assert "Clear the run from plan_epoch" in scheduler.log("half_cleared", run, "commit_epoch")
    scheduler.assert_exact("half_cleared", first)

    scheduler.clear("half_cleared", run, "plan_epoch")
    pause_while_spark_writes(scheduler, "half_cleared", 2, run, attempt=2)
    kill_scheduler(scheduler)
    recovery.last_fault()
    scheduler.stack.airflow.start()
    scheduler.stack.airflow.wait()
    scheduler.pause("half_cleared", False)
    assert scheduler.wait("half_cleared", run) == "success"
    scheduler.assert_exact("half_cleared", added(first, second))
    recovery.took()


@pytest.mark.slow
@pytest.mark.fault("F9")
def test_a_killed_worker_is_noticed_within_minutes_and_its_epoch_is_staged_again(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F9, C4: nobody tells Airflow that the task failed; its heartbeats are missing."""
    values, run = half_written(scheduler, "lost_worker")

    task = scheduler.task_process("lost_worker", run, "pre_commit")
    for process in (task.parent(), task):
        assert process is not None
        process.kill()
    recovery.last_fault()
    let_go(scheduler, "lost_worker")

    assert scheduler.wait("lost_worker", run) == "success"
    assert scheduler.epoch("lost_worker", 1) == ("COMMITTED", 2)
    scheduler.assert_exact("lost_worker", values)
    recovery.took()


@pytest.mark.slow
@pytest.mark.fault("F9")
def test_a_scheduler_killed_together_with_its_tasks_finishes_their_runs_after_its_restart(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F9, C4: the task counts as running, for a scheduler that is gone; the new one takes it over."""
    values, run = half_written(scheduler, "lost_together")

    pid = scheduler.stack.airflow.pids["scheduler"]
    tasks = psutil.Process(pid).children(recursive=True)
    kill_scheduler(scheduler)
    for process in tasks:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    recovery.last_fault()
    let_go(scheduler, "lost_together")
    scheduler.stack.airflow.start()
    scheduler.stack.airflow.wait()

    assert scheduler.wait("lost_together", run) == "success"
    scheduler.assert_exact("lost_together", values)
    recovery.took()


def test_an_epoch_cancelled_between_pre_commit_and_commit_is_kept_or_deleted_as_its_run_says(
    scheduler: Scheduler,
) -> None:
    """K13: the next run commits what was retained, and reads again what was deleted; no reader sees a difference."""
    values: Values = {}
    for epoch, on_cancel, state in ((1, "retain", "PRE_COMMITTED"), (2, "delete", "ABORTED")):
        more = one_each(on_cancel)
        scheduler.prepare("cancelled", more)
        run = sealed_but_paused(scheduler, "cancelled", epoch, on_cancel=on_cancel)
        task = f"/api/v2/dags/cancelled/dagRuns/{run}/taskInstances/commit_epoch"
        scheduler.call("PATCH", task, {"new_state": "failed"})
        scheduler.pause("cancelled", False)

        assert scheduler.wait("cancelled", run) == "failed"
        assert scheduler.epoch("cancelled", epoch)[0] == state
        assert bool(scheduler.staging_tables("cancelled")) == (on_cancel == "retain")
        assert scheduler.query("SELECT count(*) FROM cancelled") == [(sum(map(len, values.values())),)]

        assert scheduler.run("cancelled")["run"] == "success"
        values = added(values, more)
        scheduler.assert_exact("cancelled", values)


@pytest.mark.fault("F9")
def test_a_scheduler_killed_while_spark_writes_finishes_the_run_after_its_restart(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F9, C4: SIGKILL for the scheduler in a transaction, then a start as `epochline up` does it.

    Its workers share the socket of its session, and so they keep the transaction and its locks.
    """
    values, run = half_written(scheduler, "rescheduled")

    freeze_scheduler_with_the_lock(scheduler, "rescheduled", run)
    kill_scheduler(scheduler)
    recovery.last_fault()
    assert is_locked(scheduler, "rescheduled", run)
    let_go(scheduler, "rescheduled")
    scheduler.stack.airflow.start()
    scheduler.stack.airflow.wait()

    assert scheduler.wait("rescheduled", run) == "success"
    scheduler.assert_exact("rescheduled", values)
    recovery.took()


@pytest.mark.fault("F9")
def test_another_scheduler_finishes_the_epoch_of_one_that_was_killed_beside_the_task_of_the_dead_one(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F9, C4: two schedulers on one database; the next try begins while the orphaned task still works.

    The dead scheduler's workers keep its session, and so the lock of the run, until the database ends that transaction.
    """
    airflow = scheduler.stack.airflow
    values, run = half_written(scheduler, "taken_over")

    # Frozen before the other one starts, which would take the lock of the run now and then.
    freeze_scheduler_with_the_lock(scheduler, "taken_over", run)
    with another_scheduler(scheduler):
        kill_scheduler(scheduler)
        recovery.last_fault()
        assert is_locked(scheduler, "taken_over", run)
        eventually("the next try has begun", lambda: scheduler.epoch("taken_over", 1)[1] == 2)
        let_go(scheduler, "taken_over")

        assert scheduler.wait("taken_over", run) == "success"
        assert scheduler.epoch("taken_over", 1) == ("COMMITTED", 2)
        scheduler.assert_exact("taken_over", values)
        recovery.took()
    airflow.start()
    airflow.wait()


@pytest.mark.slow
@pytest.mark.fault("F9")
@pytest.mark.fault("F61")
@pytest.mark.parametrize("tasks", ["killed", "that go on", "that go on beside their next try"])
def test_another_scheduler_finishes_what_one_was_doing_at_each_step_when_it_was_killed(
    scheduler: Scheduler, recovery: Recovery, forgive: Path, tasks: str
) -> None:
    """F9, F61, INV-4, INV-5: two schedulers; one of them is killed, with its tasks or without them."""
    held = hold(scheduler, BEFORE if tasks == "killed" else AFTER)
    with another_scheduler(scheduler):
        pid = scheduler.stack.airflow.pids["scheduler"]
        started = psutil.Process(pid).children(recursive=True)
        kill_scheduler(scheduler)
        for process in started if tasks == "killed" else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        recovery.last_fault()
        for one in held.values():
            if tasks.endswith("next try"):
                eventually(f"{one.step} is tried again", lambda one=one: one.instance()["id"] != one.id)  # type: ignore[misc]
            one.let_go()

        assert {step: (one.state(), one.epoch()[1]) for step, one in held.items()} == {
            **dict.fromkeys(held, ("success", "COMMITTED")), "abort_epoch": ("failed", "ABORTED"),
        }  # fmt: skip
        forgive.touch()
        next_runs(held)
        recovery.took()
    scheduler.stack.airflow.start()
    scheduler.stack.airflow.wait()


@pytest.mark.slow
@pytest.mark.fault("F61")
@pytest.mark.parametrize(("by", "places"), [("the API", BEFORE), ("the API", AFTER), ("the database", BEFORE)])
def test_the_next_run_goes_on_after_a_run_that_was_deleted_at_each_step(
    scheduler: Scheduler, recovery: Recovery, forgive: Path, by: str, places: dict[str, str]
) -> None:
    """F61, INV-6, INV-8: Airflow knows nothing of the run any more, and a task of it still works."""
    held = hold(scheduler, places)
    for one in held.values():
        path = f"/api/v2/dags/{one.pipeline}/dagRuns/{one.run}"
        if by == "the database":
            in_airflow(scheduler, "DELETE FROM dag_run WHERE dag_id = %s AND run_id = %s", one.pipeline, one.run)
        else:
            # Airflow refuses to delete a run that is running.
            scheduler.call("PATCH", path, {"state": "failed"})
            if one.step == "abort_epoch":  # which is left to work, as a teardown
                one.let_go()
            # Green, where only its commit is done.
            scheduler.wait(one.pipeline, one.run)
            scheduler.call("DELETE", path)
    recovery.last_fault()
    forgive.touch()
    for one in held.values():
        one.let_go()
        # The consumer group follows with the next commit, if the task that committed was ended before it wrote there.
        feed(scheduler, one.pipeline)
    runs = {step: scheduler.trigger(one.pipeline) for step, one in held.items()}

    assert {step: scheduler.wait(held[step].pipeline, run) for step, run in runs.items()} == dict.fromkeys(
        held, "success"
    )
    for one in held.values():
        eventually("its task ended", lambda one=one: not one.task.is_running())  # type: ignore[misc]
    next_runs(held)
    recovery.took()


@pytest.mark.slow
@pytest.mark.fault("F61")
def test_the_id_of_a_deleted_run_goes_on_with_its_epoch_and_shows_the_receipt_of_a_committed_one(
    scheduler: Scheduler, recovery: Recovery, forgive: Path
) -> None:
    """F61, F10, INV-3, INV-8: the id is triggered again after an epoch that is unfinished, committed or aborted.

    Nothing is read twice. What came since is left to the next run.
    """
    held = hold(scheduler, {**BEFORE, "plan_epoch": AFTER["plan_epoch"]})
    epochs = {step: one.epoch()[0] for step, one in held.items()}
    for step, one in held.items():
        if step in ("publish", "abort_epoch"):
            one.let_go()
            one.state()
        in_airflow(scheduler, "DELETE FROM dag_run WHERE dag_id = %s AND run_id = %s", one.pipeline, one.run)
        with suppress(psutil.NoSuchProcess):
            one.task.kill()
        feed(scheduler, one.pipeline)
    recovery.last_fault()
    forgive.touch()
    for one in held.values():
        scheduler.trigger_as(one.pipeline, one.run)

    assert {step: one.state() for step, one in held.items()} == dict.fromkeys(held, "success")
    assert {step: one.epoch() for step, one in held.items()} == {
        step: (epoch, "COMMITTED") for step, epoch in epochs.items()
    }
    for one in held.values():
        everything = sum(map(len, produced(scheduler, one.pipeline).values()))
        assert scheduler.count(f"SELECT count(*) FROM {one.pipeline}") == everything - len(PARTITIONS)
    next_runs(held)
    recovery.took()


@contextmanager
def another_scheduler(scheduler: Scheduler) -> Iterator[None]:
    """A second one, which soon notices when the other is gone."""
    quicker = {"ORPHANED_TASKS_CHECK_INTERVAL": "5", "SCHEDULER_HEALTH_CHECK_THRESHOLD": "15"}
    airflow, newest = scheduler.stack.airflow, "SELECT max(id) FROM job WHERE job_type = 'SchedulerJob'"
    first = in_airflow(scheduler, newest)
    options = {f"AIRFLOW__SCHEDULER__{name}": value for name, value in quicker.items()}
    with running(
        airflow.command(["scheduler", "--skip-serve-logs"]), lambda: in_airflow(scheduler, newest) > first,
        env={**airflow.whole_environment(), **options},
    ):  # fmt: skip
        yield


def kill_scheduler(scheduler: Scheduler) -> None:
    airflow = scheduler.stack.airflow
    pid = airflow.pids["scheduler"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually("the scheduler is gone", lambda: airflow.pids["scheduler"] is None, 30)


def freeze_scheduler_with_the_lock(scheduler: Scheduler, dag: str, run: str) -> None:
    """Stop it, not end it, while it holds the lock of a run, which it takes for a moment each time it looks at the run."""
    pid = scheduler.stack.airflow.pids["scheduler"]
    assert pid is not None

    def has_it() -> bool:
        stop_process(pid)
        if is_locked(scheduler, dag, run):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    eventually("the scheduler holds the lock of the run", has_it, 60, every=0.01)


def is_locked(scheduler: Scheduler, dag: str, run: str) -> bool:
    unlocked = "SELECT run_id FROM dag_run WHERE dag_id = %s AND run_id = %s FOR UPDATE SKIP LOCKED"
    return in_airflow(scheduler, unlocked, dag, run) == []
