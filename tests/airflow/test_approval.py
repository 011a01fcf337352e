"""An epoch outside its bounds: the task that asks, and under a real scheduler, where it waits without a worker."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from epochline import Bounds
from epochline.airflow import approval
from epochline.airflow.approval import ApproveEpochOperator, DecisionTrigger
from epochline.airflow.dag import build_dag
from epochline.cli.airflow_runs import FINISHED
from tests.airflow.conftest import Scheduler, Terminal, eventually
from tests.airflow.half_way import in_airflow
from tests.contract.operators import act
from tests.contract.worlds import World, fake_world, orders

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


def answered(scheduler: Scheduler, run: str, option: str, reason: str) -> str:
    """Answer as often as the task asks, and wait for the run; gives its state.

    Airflow takes a task for lost that goes on before its executor has noted that it paused, and tries it again. Such an
    answer is lost with it, and decides nothing.
    """

    def ended() -> bool:
        asks = scheduler.tasks("bounded", run)[TASK] == "deferred"
        if asks and not scheduler.call("GET", question(run))["response_received"]:
            answer(scheduler, run, option, reason)
        return scheduler.state("bounded", run) in FINISHED

    eventually("the run ends", ended, every=2)
    return scheduler.state("bounded", run)


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
    assert answered(scheduler, run, "Approve", "the campaign began") == "success"
    assert (visible(scheduler), decided(scheduler, 2)) == (7, ("approved", "admin", "the campaign began"))

    grow(scheduler, produced, 5)
    run = waits(scheduler)
    # `airflow db clean` comes before the person does.
    assert in_airflow(scheduler, "DELETE FROM xcom WHERE dag_id = 'bounded' RETURNING key")
    assert OUTSIDE in terminal("approve", "bounded", "3", "--reason", "seen at a terminal", "--yes")
    assert scheduler.wait("bounded", run) == "success"
    assert (visible(scheduler), decided(scheduler, 3)[2]) == (12, "seen at a terminal")

    grow(scheduler, produced, 5)
    run = waits(scheduler)
    assert answered(scheduler, run, "Reject", "a test record") == "failed"
    assert scheduler.epoch("bounded", 4)[0] == "ABORTED"
    assert visible(scheduler) == 12
    run = waits(scheduler)
    terminal("approve", "bounded", "5", "--reason", "it is none", "--yes")
    assert scheduler.wait("bounded", run) == "success"

    scheduler.assert_exact("bounded", {0: produced, 1: [], 2: [], 3: []})


class Asking:
    """The task of epoch 1, sealed, in a world without Airflow's servers."""

    def __init__(self, world: World, bounds: Bounds) -> None:
        self.world, self.asked, self.shown = world, list[dict[str, Any]](), list[str]()
        world.pipeline = orders(bounds=bounds)
        task = build_dag(world.pipeline).get_task(TASK)
        assert isinstance(task, ApproveEpochOperator)
        self.task = task
        task.epoch_id = "1"
        ti = SimpleNamespace(id="an id", xcom_push=lambda key, value: self.shown.append(value))
        self.context: Any = {"task_instance": ti, "ti": ti}
        world.to_sealed()

    def parked(self, *event: Any) -> TaskDeferred:
        step = partial(self.task.execute_complete, attempt=1) if event else self.task.execute
        with pytest.raises(TaskDeferred) as raised:
            step(self.context, *event)
        return raised.value

    def answer(self, option: str, reason: str) -> dict[str, Any]:
        user = {"id": "7", "name": "grace"}
        return {"chosen_options": [option], "params_input": {"reason": reason}, "responded_by_user": user}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Asking:
    world = fake_world()
    monkeypatch.setattr(approval, "adapters", lambda: SimpleNamespace(ledger=lambda _: world.ledger))
    asking = Asking(world, Bounds(most_rows=14))
    monkeypatch.setattr(approval, "upsert_hitl_detail", lambda **asked: asking.asked.append(asked))
    return asking


def test_only_a_declaration_whose_epochs_may_wait_has_the_task() -> None:
    """Other epochs pay nothing."""
    tasks = [
        [task.task_id for task in build_dag(orders(bounds=bounds)).tasks]
        for bounds in (None, Bounds(most_rows=1, outside="abort"), Bounds(most_rows=1))
    ]

    assert [TASK in some for some in tasks] == [False, False, True]
    assert build_dag(orders(bounds=Bounds(most_rows=1))).get_task("commit_epoch").upstream_task_ids == {TASK}


def test_the_task_asks_for_the_attempt_that_waits_and_an_answer_decides_in_the_ledger(outside: Asking) -> None:
    parked = outside.parked()

    assert (parked.method_name, parked.kwargs) == ("execute_complete", {"attempt": 1})
    assert outside.asked[0]["body"].startswith("15 rows staged, at most 14 expected")
    assert list(outside.asked[0]["params"]) == ["reason"]
    assert outside.shown[0].endswith("it awaits approval")
    outside.parked(outside.answer("Approve", " \0 "))  # it is asked again
    outside.task.execute_complete(outside.context, outside.answer("Approve", "why"), attempt=1)
    epoch = outside.world.epoch(1)
    assert (epoch.approval, epoch.decided_by, epoch.decided_reason) == ("approved", "grace", "why")
    # Who answers later is told in the log, and changes nothing.
    outside.task.execute_complete(outside.context, outside.answer("Reject", "no"), attempt=1)
    assert outside.world.epoch(1).approval == "approved"
    outside.task.execute(outside.context)


def test_a_rejection_aborts_the_epoch_and_fails_the_task(outside: Asking) -> None:
    with pytest.raises(AirflowFailException, match="was aborted: grace: no"):
        outside.task.execute_complete(outside.context, outside.answer("Reject", "no"), attempt=1)

    assert outside.world.visible() == []


def test_an_answer_about_an_attempt_that_was_staged_again_decides_nothing(outside: Asking) -> None:
    act(outside.world, "abort", epoch=1)
    outside.world.to_sealed()

    parked = outside.parked(outside.answer("Approve", "why"))

    assert parked.kwargs == {"attempt": 2}
    assert outside.world.epoch(1).approval == "awaited"


def test_a_decision_elsewhere_wakes_the_task_although_the_ledger_was_away(
    outside: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a page, a terminal or the API; nobody answers in Airflow."""
    trigger = outside.parked().trigger
    assert isinstance(trigger, DecisionTrigger)
    looks = list[bool]()
    awaits = approval._awaits

    def away_at_first(**where: Any) -> bool:
        looks.append(True)
        if len(looks) == 1:
            raise ConnectionError("away")
        if len(looks) == 3:
            act(outside.world, "approve", epoch=1)
        return awaits(**where)

    async def unanswered(_: Any) -> None:
        await asyncio.sleep(0.01)

    async def event() -> Any:
        return await asyncio.wait_for(anext(aiter(trigger.run())), 30)

    monkeypatch.setattr(approval, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(approval, "_awaits", away_at_first)
    monkeypatch.setattr(DecisionTrigger, "_handle_response", unanswered)

    assert asyncio.run(event()).payload == {"decided": True}
    assert len(looks) == 3
    outside.task.execute_complete(outside.context, {"decided": True}, attempt=1)
    path, kept = trigger.serialize()
    assert path == "epochline.airflow.approval.DecisionTrigger"
    assert DecisionTrigger(**kept).where == trigger.where
