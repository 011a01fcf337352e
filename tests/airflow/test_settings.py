"""Settings of epochs under a real scheduler: restarts are counted, time-outs abort, failures pause."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, eventually


def tries(scheduler: Scheduler, dag: str, run: str, task: str) -> list[dict[str, Any]]:
    """What Airflow remembers of each try of a task, the oldest first."""
    path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/tries"
    return sorted(scheduler.call("GET", path)["task_instances"], key=lambda one: one["try_number"])


def seconds_between(tried: list[dict[str, Any]]) -> list[float]:
    moments = [(datetime.fromisoformat(one["start_date"]), datetime.fromisoformat(one["end_date"])) for one in tried]
    return [(begun - ended).total_seconds() for (_, ended), (begun, _) in pairwise(moments)]


def test_an_attempt_that_always_fails_is_made_as_often_as_declared_and_then_the_pipeline_is_paused(
    scheduler: Scheduler,
) -> None:
    """R1, K11: two restarts three seconds apart, then ABORTED and red; with a tolerance of 0 that is one too many."""
    scheduler.prepare("restarted", {p: [f"row-{p}"] for p in range(4)})

    run = scheduler.trigger("restarted")
    assert scheduler.wait("restarted", run) == "failed"

    tried = tries(scheduler, "restarted", run, "pre_commit")
    assert [one["try_number"] for one in tried] == [1, 2, 3]
    assert min(seconds_between(tried)) >= 3
    assert scheduler.epoch("restarted", 1) == ("ABORTED", 3)
    assert not [name for name in scheduler.staging_tables() if "restarted" in name]
    assert scheduler.heads("restarted") == dict.fromkeys(range(4), 0)
    assert scheduler.query("SELECT paused_by, paused_reason FROM epochline.pipelines WHERE pipeline = 'restarted'") == [
        ("epochline", "1 epochs in a row were aborted, of which 0 are tolerated")
    ]
    eventually("Airflow makes no more runs", lambda: scheduler.call("GET", "/api/v2/dags/restarted")["is_paused"], 60)


def test_without_restarts_one_failed_attempt_ends_the_run_and_leaves_no_staging(scheduler: Scheduler) -> None:
    """R3."""
    scheduler.prepare("unrestarted", {p: [f"row-{p}"] for p in range(4)})

    run = scheduler.trigger("unrestarted")

    assert scheduler.wait("unrestarted", run) == "failed"
    assert [one["try_number"] for one in tries(scheduler, "unrestarted", run, "pre_commit")] == [1]
    assert scheduler.epoch("unrestarted", 1) == ("ABORTED", 1)
    assert not [name for name in scheduler.staging_tables() if "unrestarted" in name]
    assert scheduler.heads("unrestarted") == dict.fromkeys(range(4), 0)


@pytest.mark.parametrize("times", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_without_an_end_a_task_is_tried_again_and_again(scheduler: Scheduler, times: int) -> None:
    """R4: still trying after more than ten fast failures."""
    run = scheduler.trigger("endless")

    eventually(
        "it is tried again and again",
        lambda: scheduler.instances("endless", run)["plan_epoch"]["try_number"] >= times,
        every=1,
    )

    assert scheduler.state("endless", run) == "running"
    # Airflow compares the number of the try with this one, and with nothing else.
    assert scheduler.instances("endless", run)["plan_epoch"]["max_tries"] >= 1_000_000
    scheduler.call("PATCH", f"/api/v2/dags/endless/dagRuns/{run}", {"state": "failed"})
    # Green where the task waited for its next try, red where it ran (ADR 0011): which, is decided by milliseconds.
    assert scheduler.wait("endless", run) in ("failed", "success")
    assert scheduler.instances("endless", run)["commit_epoch"]["state"] in ("skipped", "upstream_failed")
    assert scheduler.query("SELECT 1 FROM epochline.epoch WHERE pipeline = 'endless'") == []


@pytest.mark.slow
def test_an_epoch_that_takes_too_long_is_aborted_and_the_next_takes_its_range(scheduler: Scheduler) -> None:
    """K10: no retry, though three are declared; C10: the second run has a time-out of its own, from its conf."""
    scheduler.prepare("timed_out", {0: ["first", "wait woken"], 1: ["second"], 2: [], 3: []})

    run = scheduler.trigger("timed_out")
    assert scheduler.wait("timed_out", run) == "failed"
    assert "was not staged and sealed within 0:00:25" in scheduler.log("timed_out", run, "pre_commit")
    assert scheduler.epoch("timed_out", 1) == ("ABORTED", 1)
    assert not [name for name in scheduler.staging_tables() if "timed_out" in name]

    (scheduler.stack.home.root / "woken").touch()
    assert scheduler.run("timed_out", timeout=280)["run"] == "success"

    assert scheduler.epoch("timed_out", 2)[0] == "COMMITTED"
    assert sorted(scheduler.query("SELECT value FROM timed_out")) == [("first",), ("second",), ("wait woken",)]
    assert scheduler.query(
        "SELECT epoch_id, settings->'timeout'->>'value', settings->'timeout'->>'from' FROM epochline.epochs"
        " WHERE pipeline = 'timed_out' ORDER BY epoch_id"
    ) == [(1, "25.0", "declaration"), (2, "280.0", "run conf")]
