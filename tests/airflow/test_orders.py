"""Operators' actions by DAGs on a real scheduler: the form's run acts, and its epochs are runs of the pipeline's DAG."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import sealed_but_paused

Order = Callable[..., dict[str, Any]]


@pytest.fixture
def order(scheduler: Scheduler) -> Order:
    """Fill in the form of an action's DAG, and give the states of each of its tasks in a list: some are mapped.

    With them the run's state, and the log and the links of the task that acts.
    """

    def fill_in(action: str, pipeline: str, *, confirm: bool = True, **asked: Any) -> dict[str, Any]:
        dag = f"epochline_{action}"
        scheduler.pause(dag, False)
        run = scheduler.trigger(dag, pipeline=pipeline, reason="a test wants {{ it }}", confirm=confirm, **asked)
        ended = scheduler.wait(dag, run)
        states: defaultdict[str, list[str]] = defaultdict(list)
        for one in scheduler.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]:
            states[one["task_id"]].append(one["state"])
        return {
            "ended": ended,
            "log": scheduler.log(dag, run, "act"),
            "links": scheduler.links(dag, run, "act"),
            **states,
        }

    return fill_in


def written(scheduler: Scheduler, pipeline: str) -> list[tuple[str, str, str]]:
    asked = "SELECT action, actor, reason FROM epochline.actions WHERE pipeline = %s ORDER BY acted_at"
    return scheduler.query(asked, pipeline)


@pytest.mark.slow
def test_quarantined_records_are_requeued_by_a_form_as_an_epoch_of_their_own(
    scheduler: Scheduler, order: Order, forgive: Path
) -> None:
    """INV-9: previewed first, then once; a second order finds nothing left and is red."""
    values = {0: ["good", "bad"], 1: ["fine"], 2: ["bad"], 3: []}
    scheduler.prepare("requeued", values)
    assert scheduler.run("requeued")["run"] == "success"
    assert scheduler.query("SELECT count(*) FROM requeued") == [(2,)]
    forgive.touch()
    previewed = order("requeue", "requeued", everything=True, confirm=False)
    assert (previewed["ended"], previewed["act"]) == ("success", ["skipped"])
    assert "2 records of requeued go through today's parse" in previewed["log"]
    assert written(scheduler, "requeued") == []

    done = order("requeue", "requeued", everything=True)
    assert (done["act"], done["run"]) == (["success"], ["success"])
    assert done["links"] == {"Pipeline": "dags/requeued/plugin/epochline_pipeline"}
    assert "requeue of requeued, asked for by admin: a test wants {{ it }}" in done["log"]
    eventually("the epoch is committed", lambda: scheduler.committed("requeued") == 2)

    kinds = scheduler.query("SELECT kind FROM epochline.epochs WHERE pipeline = 'requeued' ORDER BY epoch_id")
    assert kinds == [("regular",), ("requeue",)]
    assert written(scheduler, "requeued") == [("requeue", "admin", "a test wants {{ it }}")]
    scheduler.assert_exact("requeued", values)
    again = order("requeue", "requeued", everything=True)
    assert (again["ended"], again["act"]) == ("failed", ["failed"])
    assert "no record in the quarantine fits" in again["log"]


@pytest.mark.slow
def test_the_past_is_committed_by_a_form_in_as_many_runs_as_it_takes(scheduler: Scheduler, order: Order) -> None:
    """S9, S10: begun at the end of the log; then what lay before follows in contiguous epochs, five records each."""
    before = {p: [f"before {p} {i}" for i in range(3)] for p in range(4)}
    after = {p: [f"after {p}"] for p in range(4)}
    scheduler.prepare("extended", before)
    assert scheduler.run("extended")["plan_epoch"] == "skipped"
    scheduler.produce("extended", after)
    assert scheduler.run("extended")["run"] == "success"
    assert scheduler.query("SELECT count(*) FROM extended") == [(4,)]

    done = order("extend_back", "extended", to="earliest")

    assert (done["act"], done["run"]) == (["success"], ["success"] * 3)
    eventually("three more epochs are committed", lambda: scheduler.committed("extended") == 4)
    scheduler.assert_exact("extended", {p: [*before[p], *after[p]] for p in range(4)})
    assert scheduler.query("SELECT DISTINCT origin_offset FROM epochline.heads WHERE pipeline = 'extended'") == [(0,)]


@pytest.mark.slow
def test_an_epoch_is_aborted_by_a_form_and_its_cleared_run_commits_the_same_range(
    scheduler: Scheduler, order: Order
) -> None:
    """U4, U6, P6: the form's run is green, the aborted one red, and who did it is written down."""
    values = {p: [f"later {p}"] for p in range(4)}
    scheduler.produce("requeued", values)
    [(epoch,)] = scheduler.query("SELECT max(epoch_id) + 1 FROM epochline.epochs WHERE pipeline = 'requeued'")
    run = sealed_but_paused(scheduler, "requeued", epoch)

    assert order("abort", "requeued", epoch=epoch)["act"] == ["success"]

    assert scheduler.epoch("requeued", epoch)[0] == "ABORTED"
    assert written(scheduler, "requeued")[-1][0] == "abort"
    scheduler.pause("requeued", False)
    assert scheduler.wait("requeued", run) == "failed"
    assert scheduler.cleared("requeued", run, "plan_epoch") == "success"
    assert scheduler.epoch("requeued", epoch)[0] == "COMMITTED"
