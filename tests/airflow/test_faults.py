"""Real processes are killed and stopped under a real scheduler; then the target is compared with what was produced."""

from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import AFTER, half_written, hold, in_airflow, let_go, next_runs
from tests.crash.reliability import Recovery
from tests.databases import holding
from tests.waiting import resume_family, stop_family

FIRST_ATTEMPT = (
    "SELECT state, fenced_writes FROM epochline.attempts WHERE pipeline = %s AND epoch_id = 1 AND attempt = 1"
)


@pytest.mark.fault("F2", "F39")
@pytest.mark.parametrize("pipeline", ["killed_driver", "killed_client"])
def test_a_killed_driver_leaves_no_row_visible_and_the_retry_reads_the_same_range(
    scheduler: Scheduler, recovery: Recovery, pipeline: str
) -> None:
    """F2, F39, C14, G5, Q8: SIGKILL while rows are being copied."""
    values, run = half_written(scheduler, pipeline)

    victim = scheduler.driver(pipeline) if pipeline == "killed_driver" else scheduler.client(pipeline)
    victim.kill()
    recovery.last_fault()
    let_go(scheduler, pipeline)
    assert scheduler.count(f"SELECT count(*) FROM {pipeline}") == 0
    scheduler.produce(pipeline, {0: ["later"]})

    assert scheduler.wait(pipeline, run) == "success"
    assert scheduler.epoch(pipeline, 1) == ("COMMITTED", 2)
    assert scheduler.query(FIRST_ATTEMPT, pipeline)[0][0] == "FAILED"
    asked = "SELECT error FROM epochline.attempts WHERE pipeline = %s AND attempt = 1"
    [(error,)] = scheduler.query(asked, pipeline)
    assert error.startswith("JobLostError: ")
    assert "JVM of Spark's driver is gone" in error or "was killed by signal 9 (SIGKILL)" in error
    assert error.endswith("; attempt 2 took its place")
    scheduler.assert_exact(pipeline, values)
    recovery.took()


@pytest.mark.slow
@pytest.mark.fault("F2", "F7", "F8")
def test_a_zombie_driver_writes_nothing_that_counts(scheduler: Scheduler, recovery: Recovery) -> None:
    """U8: Airflow retries pre_commit while the first driver is stopped, then it wakes up."""
    values, run = half_written(scheduler, "zombie")

    driver = scheduler.driver("zombie")
    eventually(
        "another part is being copied", lambda: "idle in transaction" in scheduler.sessions("zombie"), 30, every=0.05
    )
    # First gone, then stopped: the kernel hangs up a group that loses its parent while members of it are stopped.
    task = scheduler.task_process("zombie", run, "pre_commit")
    task.kill()
    task.wait(10)
    recovery.last_fault()
    stopped = stop_family(driver)
    assert driver.status() == psutil.STATUS_STOPPED
    let_go(scheduler, "zombie")
    eventually("the retry is sealed", lambda: scheduler.epoch("zombie", 1)[0] in ("PRE_COMMITTED", "COMMITTED"))
    resume_family(stopped)

    assert scheduler.wait("zombie", run) == "success"
    assert scheduler.epoch("zombie", 1) == ("COMMITTED", 2)
    [(state, refused)] = scheduler.query(FIRST_ATTEMPT, "zombie")
    assert state == "FENCED"
    assert refused >= 1
    eventually("the zombie ends by itself", lambda: not driver.is_running(), 60)
    scheduler.assert_exact("zombie", values)
    recovery.took()


@pytest.mark.slow
@pytest.mark.fault("F1")
def test_a_commit_task_killed_before_and_after_its_commit_commits_once(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F1, S15, INV-5."""
    first = {p: [f"first-{p}"] for p in range(4)}
    scheduler.prepare("killed_commit", first)
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        """ AND query LIKE '%INSERT INTO "public"."killed_commit"%'"""
    )

    # Before: a lock on the target holds the commit inside its transaction.
    with holding(scheduler.stack.postgres.dsn(), "LOCK TABLE killed_commit IN SHARE ROW EXCLUSIVE MODE"):
        run = scheduler.trigger("killed_commit")
        eventually("the commit waits for the lock", lambda: scheduler.query(waiting))
        scheduler.task_process("killed_commit", run, "commit_epoch").kill()
        recovery.last_fault()
        assert scheduler.query("SELECT count(*) FROM killed_commit_again") == [(0,)]
    assert scheduler.wait("killed_commit", run) == "success"
    scheduler.assert_exact("killed_commit", first)
    recovery.took()

    # After: the pipeline's row is locked, so that the task hangs in the mirror once the epoch is committed.
    scheduler.produce("killed_commit", {p: [f"second-{p}"] for p in range(4)})
    run = scheduler.trigger("killed_commit")
    eventually("it is sealed", lambda: scheduler.epoch("killed_commit", 2)[0] == "PRE_COMMITTED", every=0.05)
    lock = "SELECT FROM epochline.pipeline WHERE pipeline = 'killed_commit' FOR NO KEY UPDATE"
    with holding(scheduler.stack.postgres.dsn(), lock):
        eventually("it is committed", lambda: scheduler.epoch("killed_commit", 2)[0] == "COMMITTED")
        scheduler.task_process("killed_commit", run, "commit_epoch").kill()
        recovery.last_fault()

    assert scheduler.wait("killed_commit", run) == "success"
    assert "already committed" in scheduler.log("killed_commit", run, "commit_epoch")
    scheduler.assert_exact("killed_commit", {p: [f"first-{p}", f"second-{p}"] for p in range(4)})
    recovery.took()


@pytest.mark.fault("F10")
def test_a_failed_run_is_red_and_can_be_cleared_and_a_committed_one_shows_its_receipt(
    scheduler: Scheduler, recovery: Recovery, forgive: Path
) -> None:
    """U4, U6, U7, P15."""
    poisoned = {0: ["good", "bad", "better"], 1: ["fine"], 2: [], 3: []}
    scheduler.prepare("cleared", poisoned)

    run = scheduler.trigger("cleared")
    assert scheduler.wait("cleared", run) == "failed"
    assert scheduler.tasks("cleared", run) == {
        "plan_epoch": "success", "pre_commit": "failed", "commit_epoch": "upstream_failed", "abort_epoch": "failed",
    }  # fmt: skip
    log = scheduler.log("cleared", run, "pre_commit")
    assert "cleared-0" in log
    assert "the record says that it is bad" in log
    assert scheduler.epoch("cleared", 1)[0] == "ABORTED"
    assert scheduler.query("SELECT count(*) FROM cleared") == [(0,)]
    assert scheduler.staging_tables("cleared") == []
    assert_each_task_says_what_it_does_and_what_came_of_it(scheduler, run)
    assert scheduler.outcome("cleared", run, "abort_epoch") == (
        "epoch 1 · 4 offsets of 2 partitions · aborted: bad record · no offset moved; the next run reads the range again"
    )

    # The commit task alone must not commit nothing.
    assert scheduler.cleared("cleared", run, "commit_epoch", only_failed=True) == "failed"
    assert scheduler.query("SELECT count(*) FROM cleared") == [(0,)]

    # The reason goes away: the same run, cleared, reads the same range again, although more was produced.
    scheduler.produce("cleared", {2: ["later"]})
    forgive.touch()
    recovery.last_fault()
    assert scheduler.cleared("cleared", run, "plan_epoch") == "success"
    assert scheduler.epoch("cleared", 1)[0] == "COMMITTED"
    scheduler.assert_exact("cleared", poisoned)
    recovery.took()

    # A committed run, cleared, shows its receipt and writes nothing twice.
    assert scheduler.cleared("cleared", run, "plan_epoch") == "success"
    assert "already committed" in scheduler.log("cleared", run, "commit_epoch")
    line = "epoch 1 · 4 offsets of 2 partitions · 8 rows · committed after 2 tries"
    assert scheduler.said("cleared", run, "commit_epoch")[-1]["event"] == f"{line}. Nothing to do."
    assert {scheduler.outcome("cleared", run, task) for task in ("commit_epoch", "abort_epoch")} == {line}
    scheduler.assert_exact("cleared", poisoned)


def assert_each_task_says_what_it_does_and_what_came_of_it(scheduler: Scheduler, run: str) -> None:
    """Issue 19: which epoch and range first; at last what came of it, and what to do. A traceback is below the reason."""
    reads = "epoch 1 of cleared reads cleared-0[0, 3), cleared-1[0, 1): this task "
    plan, staged, ended = (scheduler.said("cleared", run, task) for task in ("plan_epoch", "pre_commit", "abort_epoch"))
    assert plan[0]["event"] == f"cleared: this task plans the epoch of run {run} of cleared"
    assert plan[-1]["event"].startswith(
        "epoch 1 of cleared is PLANNED (planned): cleared-0[0, 3), cleared-1[0, 1). pre"
    )
    assert staged[0]["event"] == f"{reads}stages it with Spark and seals it"
    assert ended[0]["event"] == f"{reads}aborts it, unless it is committed or sealed"
    for said, reason, advice in (
        (staged, "BadRecordError: cleared-0 offset 1: the record says that it is bad.", "Correct the parse"),
        (ended, "epoch 1 of cleared was aborted, its staging", "Clear this run from plan_epoch"),
    ):
        line, traceback = said[-2:]
        assert line["level"] == "error"
        assert line["event"].startswith(reason)
        assert advice in line["event"]
        assert "\n" not in line["event"]
        assert not any("error_detail" in one for one in said[:-1])
        # One traceback, of the task's own error: it has no cause that says more.
        assert [one["exc_type"] for one in traceback["error_detail"]] == ["AirflowFailException"]
    path = f"dags/cleared/runs/{quote(run, safe='')}"
    links = {"Epoch": f"{path}/plugin/epochline_epoch", "Pipeline": "dags/cleared/plugin/epochline_pipeline"}
    for task in ("plan_epoch", "pre_commit"):
        assert scheduler.links("cleared", run, task) == links
    for task in ("commit_epoch", "abort_epoch"):
        assert scheduler.links("cleared", run, task) == {**links, "Spark's log": f"{path}/tasks/pre_commit"}


@pytest.mark.fault("F61")
def test_a_run_whose_xcom_is_lost_goes_on_by_the_ledger(
    scheduler: Scheduler, recovery: Recovery, forgive: Path
) -> None:
    """F61, INV-8: `airflow db clean` deletes the epoch's id before pre_commit, commit_epoch and abort_epoch begin."""
    before = {"pre_commit": "plan_epoch", "commit_epoch": "pre_commit", "abort_epoch": "abort_epoch"}
    held = hold(scheduler, {step: AFTER[step] for step in before.values()})
    for task, step in before.items():
        one = held[step]
        if task == "abort_epoch":
            one.task.kill()  # it has aborted, and its next try aborts again
        else:
            scheduler.pause(one.pipeline, True)
            one.let_go()
            eventually("its task ended", lambda one=one: one.instance()["state"] == "success")  # type: ignore[misc]
        lost = in_airflow(scheduler, "DELETE FROM xcom WHERE dag_id = %s RETURNING key", one.pipeline)
        assert ("return_value",) in lost
    recovery.last_fault()
    for one in held.values():
        scheduler.pause(one.pipeline, False)

    assert {step: one.state() for step, one in held.items()} == {
        "plan_epoch": "success", "pre_commit": "success", "abort_epoch": "failed",
    }  # fmt: skip
    assert {one.epoch()[1] for one in held.values()} == {"COMMITTED", "ABORTED"}
    forgive.touch()
    next_runs(held)
    recovery.took()
