"""An epoch outside its bounds under a real scheduler: it waits without a worker, and a person decides."""

from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, Terminal, eventually

OUTSIDE = "values is 5, at most 4 expected"
TASK = "approve_epoch"


@pytest.fixture
def produced(scheduler: Scheduler) -> list[str]:
    """All values so far, in partition 0."""
    scheduler.prepare("bounded", {0: []})
    return []


def grow(scheduler: Scheduler, produced: list[str], number: int) -> None:
    new = [f"value {len(produced) + one}" for one in range(number)]
    scheduler.produce("bounded", {0: new})
    produced += new


def visible(scheduler: Scheduler) -> int:
    return scheduler.count("SELECT count(*) FROM bounded")


def waits(scheduler: Scheduler) -> str:
    """Start a run, and wait until its epoch waits; gives the run."""
    run = scheduler.trigger("bounded")
    eventually("the epoch waits", lambda: scheduler.tasks("bounded", run)[TASK] == "deferred", every=0.5)
    return run


def question(run: str) -> str:
    return f"/api/v2/dags/bounded/dagRuns/{run}/taskInstances/{TASK}/-1/hitlDetails"


def answer(scheduler: Scheduler, run: str, option: str, reason: str) -> Any:
    body = {"chosen_options": [option], "params_input": {"reason": reason}}
    return scheduler.call("PATCH", question(run), body)


def decided(scheduler: Scheduler, epoch_id: int) -> tuple[Any, ...]:
    asked = (
        "SELECT approval, decided_by, decided_reason FROM epochline.epochs WHERE pipeline = 'bounded' AND epoch_id = %s"
    )
    return scheduler.query(asked, epoch_id)[0]


@pytest.mark.slow
def test_an_epoch_outside_its_bounds_waits_without_a_worker_until_a_person_decides(
    scheduler: Scheduler, terminal: Terminal, produced: list[str]
) -> None:
    """U10, INV-6: by Airflow's own API, by the command line, and by a rejection; then the sink has each record once."""
    grow(scheduler, produced, 2)
    inside = scheduler.run("bounded")
    assert (inside["run"], inside[TASK], visible(scheduler)) == ("success", "success", 2)
    assert decided(scheduler, 1) == ("inside", None, None)

    grow(scheduler, produced, 5)
    run = waits(scheduler)
    asked = scheduler.call("GET", question(run))
    assert (asked["subject"], asked["options"]) == (
        "epoch 2 of bounded, attempt 1, is outside its bounds", ["Approve", "Reject"],
    )  # fmt: skip
    assert OUTSIDE in asked["body"]
    assert "it awaits approval" in scheduler.outcome("bounded", run, TASK)
    assert scheduler.call("GET", "/api/v2/pools/default_pool")["occupied_slots"] == 0
    assert scheduler.sessions("bounded") == []
    assert visible(scheduler) == 2
    answer(scheduler, run, "Approve", "")  # without a reason it is asked again
    eventually("it is asked again", lambda: not scheduler.call("GET", question(run))["response_received"])
    eventually("it waits again", lambda: scheduler.tasks("bounded", run)[TASK] == "deferred")
    assert visible(scheduler) == 2
    answer(scheduler, run, "Approve", "the campaign began")
    assert scheduler.wait("bounded", run) == "success"
    assert (visible(scheduler), decided(scheduler, 2)) == (7, ("approved", "admin", "the campaign began"))

    grow(scheduler, produced, 5)
    run = waits(scheduler)
    assert OUTSIDE in terminal("approve", "bounded", "3", "--reason", "seen at a terminal", "--yes")
    assert scheduler.wait("bounded", run) == "success"
    assert (visible(scheduler), decided(scheduler, 3)[2]) == (12, "seen at a terminal")

    grow(scheduler, produced, 5)
    run = waits(scheduler)
    answer(scheduler, run, "Reject", "a test record")
    assert scheduler.wait("bounded", run) == "failed"
    assert scheduler.epoch("bounded", 4)[0] == "ABORTED"
    assert visible(scheduler) == 12
    run = waits(scheduler)
    terminal("approve", "bounded", "5", "--reason", "it is none", "--yes")
    assert scheduler.wait("bounded", run) == "success"

    scheduler.assert_exact("bounded", {0: produced, 1: [], 2: [], 3: []})
