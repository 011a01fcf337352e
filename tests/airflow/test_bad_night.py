"""An operator's bad night: after each fault, the ledger, the log and the command say the reason and the way on."""

import re
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.airflow.conftest import Scheduler, Terminal, eventually
from tests.airflow.half_way import AFTER, BEFORE, feed, half_written, hold, let_go, next_runs, sealed_but_paused
from tests.crash.reliability import Recovery

RUN = re.compile(r"run (\S+) is failed")


def one_each(pipeline: str) -> dict[int, list[str]]:
    return {p: [f"{pipeline}-{p}"] for p in range(4)}


def test_rows_that_a_constraint_refuses_end_the_run_at_once_and_pause_the_pipeline(
    scheduler: Scheduler, terminal: Terminal
) -> None:
    """N1, U7: a strategy without end is not applied; the pipeline goes on after the constraint is dropped."""
    values = {**one_each("constrained"), 0: ["bad value"]}
    scheduler.prepare("constrained", values)
    scheduler.query("ALTER TABLE constrained ADD CONSTRAINT no_spaces CHECK (value NOT LIKE '%% %%'); SELECT 1")

    said = terminal("trigger", "constrained", code=1)

    assert "epoch 1 of constrained is ABORTED: RowsRefusedError: attempt 1 of epoch 1 of constrained" in said
    assert "check no_spaces" in said
    assert "constrained is paused by epochline" in said
    assert "`epochline resume constrained --reason …`" in said
    found = RUN.search(said)
    assert found is not None
    log = scheduler.log("constrained", found[1], "abort_epoch")
    assert "check no_spaces" in log
    assert "epochline resume constrained" in log
    shown = terminal("ledger", "constrained", "--epoch", "1")
    assert "attempt 1: RowsRefusedError: " in shown
    assert "`epochline resume constrained --reason …`" in shown
    assert scheduler.epoch("constrained", 1) == ("ABORTED", 1)
    assert terminal("trigger", "constrained", code=1).endswith("`epochline resume constrained --reason …`")

    scheduler.query("ALTER TABLE constrained DROP CONSTRAINT no_spaces; SELECT 1")
    terminal("resume", "constrained", "--reason", "the constraint was wrong", "--yes")
    assert "is committed: 4 records read" in terminal("trigger", "constrained")
    scheduler.assert_exact("constrained", values)


@pytest.mark.parametrize(("pipeline", "attempts"), [("raising", 2), ("raising_by_default", 3)])
def test_code_that_raises_leaves_a_scheduled_pipeline_down_until_somebody_resumes_it(
    scheduler: Scheduler, terminal: Terminal, pipeline: str, attempts: int
) -> None:
    """N1, R1, R4: one run, and as many tries as are declared, or three; the next runs are skipped with the reason."""
    values = {**one_each(pipeline), 0: ["raise"]}
    scheduler.prepare(pipeline, values)
    forgive = scheduler.stack.home.root / "forgive"
    forgive.unlink(missing_ok=True)
    paused = "SELECT paused_reason FROM epochline.pipeline WHERE pipeline = %s AND paused_at IS NOT NULL"
    states = "SELECT string_agg(state, ' ' ORDER BY attempt) FROM epochline.attempts WHERE pipeline = %s"
    scheduler.pause(pipeline, False)
    try:
        eventually("an attempt failed", lambda: scheduler.query(states, pipeline)[0][0] in ("FAILED", "FAILED RUNNING"))
        said = terminal("lag", pipeline, "--fail-above", "1000", code=3)
        if not scheduler.query(paused, pipeline):  # a busy machine may have made the last attempt meanwhile
            assert "failing" in said
            assert "Epoch 1: KeyError: 'city'" in said
        eventually("the pipeline is down", lambda: scheduler.query(paused, pipeline))
        [(reason,)] = scheduler.query(paused, pipeline)
        assert re.match(
            r"epoch 1 failed, and its restart strategy is used up: KeyError: 'city' \(\w+\.py, line", reason
        )
        assert scheduler.epoch(pipeline, 1) == ("ABORTED", attempts)
        assert scheduler.query(states, pipeline) == [(" ".join(["FAILED"] * attempts),)]
        eventually("a scheduled run is skipped", lambda: "skipped" in plans(scheduler, pipeline))
        assert len(scheduler.query("SELECT 1 FROM epochline.epochs WHERE pipeline = %s", pipeline)) == 1

        forgive.touch()
        terminal("resume", pipeline, "--reason", "the parse is mended", "--yes")
        eventually("a scheduled run commits", lambda: scheduler.heads(pipeline) == dict.fromkeys(range(4), 1))
        # A commit task mirrors the offsets to Kafka after its commit.
        [(run,)] = scheduler.query(
            "SELECT run_id FROM epochline.epochs WHERE pipeline = %s AND state = 'COMMITTED'", pipeline
        )
        assert scheduler.wait(pipeline, run) == "success"
    finally:
        scheduler.pause(pipeline, True)
        forgive.unlink(missing_ok=True)
    scheduler.assert_exact(pipeline, values)


def plans(scheduler: Scheduler, dag: str) -> set[str | None]:
    found = scheduler.call("GET", f"/api/v2/dags/{dag}/dagRuns/~/taskInstances?limit=100")["task_instances"]
    return {one["state"] for one in found if one["task_id"] == "plan_epoch"}


def test_a_run_marked_failed_while_its_dag_is_paused_is_ended_once_it_is_unpaused(
    scheduler: Scheduler, terminal: Terminal
) -> None:
    """U4, U7: Airflow starts no teardown then; a command says that the epoch stands, and how it goes on."""
    pipeline = "marked_while_paused"
    values, run = half_written(scheduler, pipeline)
    driver = scheduler.client(pipeline)
    task = driver.parent()
    assert task is not None
    scheduler.pause(pipeline, True)
    scheduler.call("PATCH", f"/api/v2/dags/{pipeline}/dagRuns/{run}", {"state": "failed"})
    eventually("its task is failed", lambda: scheduler.tasks(pipeline, run)["pre_commit"] == "failed")
    eventually("its driver is gone", lambda: not driver.is_running())
    # A task that sees its driver end first still notes the failure, and renews the lease for a next attempt.
    eventually("its process is gone", lambda: not task.is_running())
    let_go(scheduler, pipeline)
    assert scheduler.tasks(pipeline, run)["abort_epoch"] is None
    assert scheduler.epoch(pipeline, 1) == ("PLANNED", 1)
    # Some minutes later.
    ago = "clock_timestamp() - interval '6 minutes'"
    scheduler.query(f"UPDATE epochline.epoch SET lease_until = {ago} WHERE pipeline = %s RETURNING 1", pipeline)

    shown = terminal("ledger", pipeline, "--epoch", "1")
    assert "its lease has expired" in shown
    assert f"`epochline abort {pipeline} 1 --reason …`" in shown
    shown = terminal("lag", pipeline, "--fail-above", "1000", code=3)
    assert "left planned" in shown
    assert f"`epochline abort {pipeline} 1 --reason …`" in shown

    scheduler.pause(pipeline, False)
    assert scheduler.wait(pipeline, run) == "failed"
    assert scheduler.epoch(pipeline, 1)[0] == "ABORTED"
    assert "is committed: " in terminal("trigger", pipeline)
    scheduler.assert_exact(pipeline, values)


@pytest.mark.slow
@pytest.mark.fault("F19")
def test_kafka_that_is_away_for_a_minute_is_waited_for_by_the_plan_the_read_and_the_commit(
    scheduler: Scheduler, terminal: Terminal, recovery: Recovery
) -> None:
    """F19, INV-2: one pipeline at each step; each says what it waits for, and the data is exact afterwards."""
    plans, reads, commits = "plans_without_kafka", "reads_without_kafka", "commits_without_kafka"
    kafka, values = scheduler.stack.kafka, {plans: one_each(plans), commits: one_each(commits)}
    for pipeline, some in values.items():
        scheduler.prepare(pipeline, some)
    values[reads], run_of_read = half_written(scheduler, reads)
    run_of_commit = sealed_but_paused(scheduler, commits, 1)

    kafka.stop()
    since = time.monotonic()
    let_go(scheduler, reads)
    scheduler.pause(commits, False)
    run_of_plan = scheduler.trigger(plans)
    for pipeline, run, task in ((plans, run_of_plan, "plan_epoch"), (commits, run_of_commit, "commit_epoch")):
        eventually("its task is to be tried again", partial(waits_for_its_next_try, scheduler, pipeline, run, task))
        assert re.search("SourceUnavailableError: Kafka at .* does not answer", scheduler.log(pipeline, run, task))
    shown = terminal("ledger", commits, "--epoch", "1")
    assert re.search("attempt 1: SourceUnavailableError: Kafka at .* does not answer.* the next one commits it", shown)
    assert "Spark stages epoch 1" in terminal("ledger", reads, "--epoch", "1")
    assert "no Kafka runs in" in terminal("lag", plans, code=1)
    time.sleep(max(0, 60 - (time.monotonic() - since)))
    kafka.start(lambda _: None)
    kafka.wait()
    recovery.last_fault()

    runs = {plans: run_of_plan, reads: run_of_read, commits: run_of_commit}
    for pipeline, run in runs.items():
        assert scheduler.wait(pipeline, run) == "success"
        assert scheduler.epoch(pipeline, 1) == ("COMMITTED", 1)
        scheduler.assert_exact(pipeline, values[pipeline])
    recovery.took()


def waits_for_its_next_try(scheduler: Scheduler, dag: str, run: str, task: str) -> bool:
    return bool(scheduler.instances(dag, run)[task]["state"] == "up_for_retry")


@pytest.mark.slow
@pytest.mark.fault("F61")
@pytest.mark.parametrize("places", [BEFORE, AFTER], ids=["before", "after"])
def test_an_api_server_of_airflow_that_is_away_for_a_minute_at_each_step_ends_no_epoch(
    scheduler: Scheduler, recovery: Recovery, forgive: Path, places: dict[str, str]
) -> None:
    """F61: no task can say that it lives, or that it ended; one that has not begun cannot begin."""
    airflow = scheduler.stack.airflow
    held = hold(scheduler, places)
    feed(scheduler, "held_next")
    run = scheduler.trigger("held_next")
    server = psutil.Process(airflow.pids["api-server"])
    for process in (server, *server.children(recursive=True)):
        process.kill()
    since = time.monotonic()
    for one in held.values():
        one.let_go()
    time.sleep(max(0, 60 - (time.monotonic() - since)))
    airflow.start()
    airflow.wait()
    recovery.last_fault()

    assert {step: (one.state(), one.epoch()[1]) for step, one in held.items()} == {
        **dict.fromkeys(held, ("success", "COMMITTED")), "abort_epoch": ("failed", "ABORTED"),
    }  # fmt: skip
    assert scheduler.wait("held_next", run) == "success"
    forgive.touch()
    next_runs(held)
    recovery.took()
