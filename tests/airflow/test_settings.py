"""Settings of epochs under a real scheduler: restarts are counted, time-outs abort, failures pause."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, eventually


def tries(scheduler: Scheduler, dag: str, run: str) -> list[dict[str, Any]]:
    """What Airflow remembers of each try of ``pre_commit``, the oldest first."""
    path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/pre_commit/tries"
    return sorted(scheduler.call("GET", path)["task_instances"], key=lambda one: one["try_number"])


@pytest.mark.parametrize(("pipeline", "attempts"), [("restarted", 3), ("unrestarted", 1)])
def test_an_attempt_that_always_fails_is_made_as_often_as_declared_and_leaves_no_staging(
    scheduler: Scheduler, pipeline: str, attempts: int
) -> None:
    """R1, R3, K11: two restarts three seconds apart, or none; then ABORTED and red; the tolerance of 0 is exceeded."""
    scheduler.prepare(pipeline, {p: [f"row-{p}"] for p in range(4)})

    run = scheduler.trigger(pipeline)
    assert scheduler.wait(pipeline, run) == "failed"

    tried = tries(scheduler, pipeline, run)
    assert [one["try_number"] for one in tried] == [*range(1, attempts + 1)]
    for before, after in pairwise(tried):
        pause = datetime.fromisoformat(after["start_date"]) - datetime.fromisoformat(before["end_date"])
        assert pause >= timedelta(seconds=3)
    assert scheduler.epoch(pipeline, 1) == ("ABORTED", attempts)
    assert scheduler.staging_tables(pipeline) == []
    assert scheduler.heads(pipeline) == dict.fromkeys(range(4), 0)
    if pipeline == "restarted":
        paused = "SELECT paused_by, paused_reason FROM epochline.pipelines WHERE pipeline = 'restarted'"
        reason = "1 epochs in a row were aborted, of which 0 are tolerated"
        assert scheduler.query(paused) == [("epochline", reason)]
        dag = "/api/v2/dags/restarted"
        eventually("Airflow makes no more runs", lambda: scheduler.call("GET", dag)["is_paused"], 60)


@pytest.mark.parametrize("times", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_without_an_end_a_task_is_tried_again_and_again(scheduler: Scheduler, times: int) -> None:
    """R4: still trying after more than ten fast failures."""
    run = scheduler.trigger("endless")

    def planning() -> dict[str, Any]:
        return scheduler.instances("endless", run)["plan_epoch"]

    eventually("it is tried again and again", lambda: planning()["try_number"] >= times, every=1)

    assert scheduler.state("endless", run) == "running"
    # Airflow compares the number of the try with this one, and with nothing else.
    assert planning()["max_tries"] >= 1_000_000
    scheduler.call("PATCH", f"/api/v2/dags/endless/dagRuns/{run}", {"state": "failed"})
    # Green where the task waited for its next try, red where it ran (ADR 0011): which, is decided by milliseconds.
    assert scheduler.wait("endless", run) in ("failed", "success")
    assert scheduler.tasks("endless", run)["commit_epoch"] in ("skipped", "upstream_failed")
    assert scheduler.query("SELECT 1 FROM epochline.epoch WHERE pipeline = 'endless'") == []


@pytest.mark.slow
def test_an_epoch_that_takes_too_long_is_aborted_and_the_next_takes_its_range(scheduler: Scheduler) -> None:
    """K10: no retry, though three are declared; C10: the second run has a time-out of its own, from its conf."""
    scheduler.prepare("timed_out", {0: ["first", "wait woken"], 1: ["second"], 2: [], 3: []})

    run = scheduler.trigger("timed_out")
    assert scheduler.wait("timed_out", run) == "failed"
    assert "was not staged and sealed within 0:00:25" in scheduler.log("timed_out", run, "pre_commit")
    assert scheduler.epoch("timed_out", 1) == ("ABORTED", 1)
    assert scheduler.staging_tables("timed_out") == []

    (scheduler.stack.home.root / "woken").touch()
    assert scheduler.run("timed_out", timeout=280)["run"] == "success"

    assert scheduler.epoch("timed_out", 2)[0] == "COMMITTED"
    assert sorted(scheduler.query("SELECT value FROM timed_out")) == [("first",), ("second",), ("wait woken",)]
    assert scheduler.query(
        "SELECT epoch_id, settings->'timeout'->>'value', settings->'timeout'->>'from' FROM epochline.epochs"
        " WHERE pipeline = 'timed_out' ORDER BY epoch_id"
    ) == [(1, "25.0", "declaration"), (2, "280.0", "run conf")]
