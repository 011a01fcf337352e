"""What operators do in the Airflow UI, on a real scheduler: each run's colour tells the truth, each target is exact."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epochline.coordinator import abort
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from tests.airflow.checker import assert_exact, committed
from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import held, let_go, sealed_but_paused, some_parts_but_not_all
from tests.crash.reliability import Recovery

PARTITIONS = range(4)
FOUR_WEEKS = [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 29, tzinfo=UTC), datetime(2026, 2, 26, tzinfo=UTC),
              datetime(2026, 3, 26, tzinfo=UTC), datetime(2026, 4, 23, tzinfo=UTC)]  # fmt: skip


def added(values: dict[int, list[str]], more: dict[int, list[str]]) -> dict[int, list[str]]:
    return {p: [*values.get(p, []), *more.get(p, [])] for p in PARTITIONS}


def test_scheduled_epochs_follow_each_other_without_gap_or_overlap(scheduler: Scheduler) -> None:
    """U2, K8: three scheduled epochs, each range starts where the one before ended."""
    values: dict[int, list[str]] = {}
    scheduler.prepare("scheduled", {p: [] for p in PARTITIONS})
    scheduler.pause("scheduled", False)
    try:
        for number in (1, 2, 3):
            more = {p: [f"{number}-{p}"] for p in PARTITIONS}
            scheduler.produce("scheduled", more)
            values = added(values, more)
            heads = {p: len(some) for p, some in values.items()}
            eventually("a scheduled run commits them", lambda heads=heads: scheduler.heads("scheduled") == heads)
        runs = [run for (run,) in scheduler.query("SELECT run_id FROM epochline.epochs WHERE pipeline = 'scheduled'")]
        assert len(runs) >= 3
        assert all(run.startswith("scheduled__") for run in runs)
        assert {scheduler.wait("scheduled", run) for run in runs} == {"success"}
    finally:
        scheduler.pause("scheduled", True)

    assert overlaps(scheduler, "scheduled") == []
    assert_exact(scheduler, "scheduled", values)


def overlaps(scheduler: Scheduler, pipeline: str) -> list[tuple[Any, ...]]:
    """Ranges that do not start where the one before ended."""
    return scheduler.query(
        "SELECT * FROM (SELECT partition, start_offset, lag(until_offset) OVER (PARTITION BY partition ORDER BY"
        " epoch_id) AS before FROM epochline.offsets WHERE pipeline = %s AND state = 'COMMITTED') o"
        " WHERE start_offset <> coalesce(before, 0)",
        pipeline,
    )


@pytest.mark.slow
def test_a_backfill_beside_the_schedule_takes_its_turn(scheduler: Scheduler) -> None:
    """U2, U3: Airflow runs it beside the schedule's runs; the ledger takes one after the other."""
    values = {p: [f"first-{p}"] for p in PARTITIONS}
    scheduler.prepare("beside", values)
    scheduler.pause("beside", False)
    try:
        heads = dict.fromkeys(PARTITIONS, 1)
        eventually("a scheduled run commits them", lambda: scheduler.heads("beside") == heads)
        more = {p: [f"beside-{p}"] for p in PARTITIONS}
        scheduler.produce("beside", more)
        values = added(values, more)
        now = datetime.now(UTC)
        again = backfill(
            scheduler, "beside", from_date=(now - timedelta(seconds=40)).isoformat(),
            to_date=(now - timedelta(seconds=20)).isoformat(), reprocess_behavior="completed",
        )  # fmt: skip
        assert {run["state"] for run in again} == {"success"}
        heads = dict.fromkeys(PARTITIONS, 2)
        eventually("the schedule goes on", lambda: scheduler.heads("beside") == heads)
    finally:
        scheduler.pause("beside", True)

    assert overlaps(scheduler, "beside") == []
    assert_exact(scheduler, "beside", values)


def backfill(scheduler: Scheduler, pipeline: str, **options: Any) -> list[dict[str, Any]]:
    """Make a backfill as the UI does, wait for it, and give its runs in the order in which they ran."""
    made = scheduler.call(
        "POST", "/api/v2/backfills",
        {"dag_id": pipeline, "from_date": FOUR_WEEKS[1].isoformat(), "to_date": FOUR_WEEKS[3].isoformat(), **options},
    )  # fmt: skip
    eventually(
        "the backfill is over",
        lambda: scheduler.call("GET", f"/api/v2/backfills/{made['id']}")["completed_at"],
        every=0.5,
    )
    runs = scheduler.call("GET", f"/api/v2/dags/{pipeline}/dagRuns?run_type=backfill&limit=100")["dag_runs"]
    return sorted(runs, key=lambda run: run["start_date"])


@pytest.mark.slow
@pytest.mark.fault("F10")
def test_backfills_in_any_order_and_any_number_give_the_same_target(scheduler: Scheduler) -> None:
    """U3: backwards, again with "reprocess completed", and once more during a manual run."""
    scheduler.prepare("backfilled", {p: [] for p in PARTITIONS})
    scheduler.pause("backfilled", False)
    # The schedule's own run for its last interval finds nothing, and is out of the way.
    eventually(
        "the scheduled run is over",
        lambda: [
            run
            for run in scheduler.call("GET", "/api/v2/dags/backfilled/dagRuns?limit=10")["dag_runs"]
            if run["state"] == "success"
        ],
    )
    inside: dict[int, list[str]] = {p: [] for p in PARTITIONS}
    for start in FOUR_WEEKS[1:4]:
        more = {p: [f"{start:%m-%d} {p}", f"{start:%m-%d} {p} again"] for p in PARTITIONS}
        scheduler.produce("backfilled", more, at=start)
        inside = added(inside, more)
    after = {p: [f"after {p}"] for p in PARTITIONS}
    scheduler.produce("backfilled", after, at=datetime(2026, 6, 1, tzinfo=UTC))

    runs = backfill(scheduler, "backfilled", run_backwards=True, max_active_runs=2)
    assert [run["state"] for run in runs] == ["success"] * 3
    assert_exact(scheduler, "backfilled", inside)
    first = scheduler.query(
        "SELECT kind, interval_end FROM epochline.epochs WHERE pipeline = 'backfilled' ORDER BY epoch_id"
    )
    assert first[0][0] == "backfill"

    epochs = committed(scheduler, "backfilled")
    runs = backfill(scheduler, "backfilled", reprocess_behavior="completed")
    assert [run["state"] for run in runs] == ["success"] * 3
    assert committed(scheduler, "backfilled") == epochs
    assert_exact(scheduler, "backfilled", inside)

    external = scheduler.trigger("backfilled")
    runs = backfill(scheduler, "backfilled", reprocess_behavior="completed")
    assert [run["state"] for run in runs] == ["success"] * 3
    assert scheduler.wait("backfilled", external) == "success"
    assert_exact(scheduler, "backfilled", added(inside, after))


@pytest.mark.slow
def test_a_task_marked_failed_aborts_its_epoch_and_the_cleared_run_commits_it(scheduler: Scheduler) -> None:
    """U4, U6: marked failed while Spark writes; the run is red, staging is gone, and the same range is read again."""
    values = held("marked")
    scheduler.prepare("marked", values)
    run = scheduler.trigger("marked")
    some_parts_but_not_all(scheduler, "marked")

    scheduler.call("PATCH", f"/api/v2/dags/marked/dagRuns/{run}/taskInstances/pre_commit", {"new_state": "failed"})

    assert scheduler.wait("marked", run) == "failed"
    assert scheduler.epoch("marked", 1)[0] == "ABORTED"
    assert not [name for name in scheduler.staging_tables() if "marked" in name]
    assert scheduler.query("SELECT count(*) FROM marked") == [(0,)]

    let_go(scheduler, "marked")
    scheduler.produce("marked", {0: ["later"]})
    scheduler.clear("marked", run, ["plan_epoch"])
    assert scheduler.wait("marked", run) == "success"
    assert scheduler.epoch("marked", 1)[0] == "COMMITTED"
    assert_exact(scheduler, "marked", values)


@pytest.mark.slow
def test_a_run_marked_failed_while_spark_writes_is_red_and_the_next_run_takes_its_range(scheduler: Scheduler) -> None:
    """U4, U6: the run that was marked failed shows as failed; nothing that its driver still wrote is there."""
    values = held("marked_run")
    scheduler.prepare("marked_run", values)
    run = scheduler.trigger("marked_run")
    some_parts_but_not_all(scheduler, "marked_run")

    scheduler.call("PATCH", f"/api/v2/dags/marked_run/dagRuns/{run}", {"state": "failed"})

    eventually("the run shows as failed", lambda: scheduler.state("marked_run", run) == "failed")
    let_go(scheduler, "marked_run")
    assert scheduler.run("marked_run")["run"] == "success"
    assert scheduler.state("marked_run", run) == "failed"
    assert scheduler.epoch("marked_run", 1)[0] == "ABORTED"
    assert scheduler.epoch("marked_run", 2)[0] == "COMMITTED"
    assert_exact(scheduler, "marked_run", values)


@pytest.mark.slow
@pytest.mark.fault("F10")
def test_clearing_an_old_failed_run_after_a_newer_one_took_its_range_commits_nothing(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """U5."""
    forgive = scheduler.stack.home.root / "forgive"
    forgive.unlink(missing_ok=True)
    values = {0: ["good", "bad"], 1: ["fine"], 2: [], 3: []}
    scheduler.prepare("overtaken", values)
    old = scheduler.trigger("overtaken")
    assert scheduler.wait("overtaken", old) == "failed"
    assert scheduler.epoch("overtaken", 1)[0] == "ABORTED"

    forgive.touch()
    scheduler.produce("overtaken", {2: ["newer"]})
    assert scheduler.run("overtaken")["run"] == "success"
    assert_exact(scheduler, "overtaken", added(values, {2: ["newer"]}))

    recovery.last_fault()
    scheduler.clear("overtaken", old, ["plan_epoch"])
    assert scheduler.wait("overtaken", old) == "success"
    assert scheduler.tasks("overtaken", old)["plan_epoch"] == "skipped"
    assert "nothing to read" in scheduler.log("overtaken", old, "plan_epoch")
    assert scheduler.epoch("overtaken", 1)[0] == "ABORTED"
    assert_exact(scheduler, "overtaken", added(values, {2: ["newer"]}))
    recovery.took()


@pytest.mark.slow
def test_a_paused_epoch_waits_and_a_failed_commit_is_cleared_alone(scheduler: Scheduler, recovery: Recovery) -> None:
    """U4, P6: paused in the middle; "only failed" clears of the commit task, before and after an abort.

    C4: the last of its runs goes on under another scheduler than the one that sealed its epoch.
    """
    first = {p: [f"first-{p}"] for p in PARTITIONS}
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
    scheduler.clear("half_cleared", run, ["commit_epoch"], only_failed=True)
    assert scheduler.wait("half_cleared", run) == "success"
    assert_exact(scheduler, "half_cleared", first)

    second = {p: [f"second-{p}"] for p in PARTITIONS}
    scheduler.produce("half_cleared", second)
    run = sealed_but_paused(scheduler, "half_cleared", 2)
    abort(
        PostgresLedger(scheduler.stack.postgres.dsn()), "half_cleared", 2,
        Run(dag_id="operator", run_id="test", host="here"), reason="an operator decided", by_operator=True,
    )  # fmt: skip
    scheduler.pause("half_cleared", False)
    assert scheduler.wait("half_cleared", run) == "failed"
    scheduler.clear("half_cleared", run, ["commit_epoch"], only_failed=True)
    assert scheduler.wait("half_cleared", run) == "failed"
    assert "Clear the run from plan_epoch" in scheduler.log("half_cleared", run, "commit_epoch")
    assert_exact(scheduler, "half_cleared", first)

    scheduler.clear("half_cleared", run, ["plan_epoch"])
    eventually("Spark has begun", lambda: scheduler.epoch("half_cleared", 2)[1] == 2)
    scheduler.pause("half_cleared", True)
    eventually("its task ended", lambda: scheduler.tasks("half_cleared", run)["pre_commit"] == "success")
    assert scheduler.epoch("half_cleared", 2)[0] == "PRE_COMMITTED"
    kill_scheduler(scheduler)
    recovery.last_fault()
    start_scheduler(scheduler)
    scheduler.pause("half_cleared", False)
    assert scheduler.wait("half_cleared", run) == "success"
    assert_exact(scheduler, "half_cleared", added(first, second))
    recovery.took()


@pytest.mark.slow
def test_an_epoch_cancelled_between_pre_commit_and_commit_is_kept_or_deleted_as_its_run_says(
    scheduler: Scheduler,
) -> None:
    """K13: the next run commits what was retained, and reads again what was deleted; no reader sees a difference."""
    values: dict[int, list[str]] = {}
    for number, (on_cancel, state) in enumerate([("retain", "PRE_COMMITTED"), ("delete", "ABORTED")]):
        more = {p: [f"{on_cancel}-{p}"] for p in PARTITIONS}
        scheduler.prepare("cancelled", more)
        epoch = number + 1
        run = sealed_but_paused(scheduler, "cancelled", epoch, on_cancel=on_cancel)
        scheduler.call(
            "PATCH", f"/api/v2/dags/cancelled/dagRuns/{run}/taskInstances/commit_epoch", {"new_state": "failed"}
        )
        scheduler.pause("cancelled", False)

        assert scheduler.wait("cancelled", run) == "failed"
        assert scheduler.epoch("cancelled", epoch)[0] == state
        assert bool([name for name in scheduler.staging_tables() if "cancelled" in name]) == (on_cancel == "retain")
        assert scheduler.query("SELECT count(*) FROM cancelled") == [(sum(map(len, values.values())),)]

        assert scheduler.run("cancelled")["run"] == "success"
        values = added(values, more)
        assert_exact(scheduler, "cancelled", values)


@pytest.mark.fault("F9")
def test_a_scheduler_killed_while_spark_writes_finishes_the_run_after_its_restart(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F9, C4: SIGKILL for the scheduler and its executor, then a start as `epochline up` does it."""
    values = held("rescheduled")
    scheduler.prepare("rescheduled", values)
    run = scheduler.trigger("rescheduled")
    some_parts_but_not_all(scheduler, "rescheduled")

    kill_scheduler(scheduler)
    recovery.last_fault()
    let_go(scheduler, "rescheduled")
    start_scheduler(scheduler)

    assert scheduler.wait("rescheduled", run) == "success"
    assert_exact(scheduler, "rescheduled", values)
    recovery.took()


def kill_scheduler(scheduler: Scheduler) -> None:
    airflow = scheduler.stack.airflow
    pid = airflow.pids["scheduler"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually("the scheduler is gone", lambda: airflow.pids["scheduler"] is None, 30)


def start_scheduler(scheduler: Scheduler) -> None:
    scheduler.stack.airflow.start()
    scheduler.stack.airflow.wait()
