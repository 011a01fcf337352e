"""The tasks of an epoch as a group of a user's own DAG: what holds there, and which DAGs are refused."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, Terminal, Values, eventually
from tests.airflow.interpreter import answer_without_airflow
from tests.commands import caller

START = datetime(2026, 1, 29, tzinfo=UTC)
"""Of the interval that is backfilled."""

MADE = """
import json, warnings; warnings.simplefilter("ignore")
from datetime import timedelta
from airflow.sdk import DAG, TaskGroup, task
from epochline import *

columns = {"value": "text"}
pipeline = Pipeline(
    name="guest", source=KafkaSource(topics="guest"), parse=Text(), schedule="0 * * * *",
    sinks=[PostgresTable(table="guest", columns=columns), KafkaTopic(topic="guest_out", value=Text())],
    settings=Settings(restart=FixedDelay(attempts=3, delay=timedelta(seconds=5))),
)
theirs = {"retries": 7, "trigger_rule": "all_done", "depends_on_past": True, "do_xcom_push": False, "pool": "theirs"}
with DAG("guest", schedule=epoch_schedule(pipeline), max_active_runs=1, default_args=theirs, params={"day": 1}) as dag:
    @task
    def before(): ...
    @task
    def after(): ...
    with TaskGroup("ours"):
        epoch = epoch_tasks(pipeline)
    before() >> epoch >> after()
dag.check_cycle()
alone = epoch_dag(pipeline)
same = "trigger_rule", "retries", "retry_delay", "depends_on_past", "do_xcom_push", "execution_timeout", "epoch_id"
print("ANSWER" + json.dumps({
    "params": sorted(dag.params), "timetable": dag.timetable == alone.timetable,
    "tasks": {
        of.dag_id + ("" if of is dag else " alone"): {
            one.task_id: {
                "up": sorted(one.upstream_task_ids - {"before"}), "pool": one.pool,
                **{name: str(getattr(one, name, None)) for name in same},
            }
            for one in of.tasks
        }
        for of in (dag, alone)
    },
}))
"""


def test_the_tasks_of_a_group_are_those_of_epoch_dag_with_the_pools_of_the_dag_around(tmp_path: Path) -> None:
    """A task before and one after; retries and trigger rules of the DAG around do not reach an epoch."""
    made = answer_without_airflow(MADE, home=tmp_path)

    around, alone = made["tasks"]["guest"], made["tasks"]["guest alone"]
    assert around.pop("after")["up"] == ["commit_epoch", "publish"]
    assert around.pop("before")["retries"] == "7"
    assert {task["pool"] for task in around.values()} == {"theirs"}
    assert [{**task, "pool": ""} for task in around.values()] == [{**task, "pool": ""} for task in alone.values()]
    assert list(around) == list(alone) == ["plan_epoch", "pre_commit", "commit_epoch", "abort_epoch", "publish"]
    assert made["timetable"] is True
    assert {"day", "record_limit", "timeout"} <= set(made["params"])


FILE = """
from datetime import timedelta
from airflow.sdk import DAG, TaskGroup, task_group
from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_schedule, epoch_tasks

pipeline = Pipeline(
    name="guest", source=KafkaSource(topics="guest"), parse=Text(), schedule="0 * * * *",
    sinks=[PostgresTable(table="guest", columns={{"value": "text"}})],
)
options = dict(dag_id="guest", schedule=epoch_schedule(pipeline), max_active_runs=1)
{code}
"""
IN_DAG = "with DAG(**options | dict({changes})):\n    epoch_tasks(pipeline)"
REFUSED = {
    "another id": ("dag_id='mine'", "Set dag_id='guest'"),
    "runs at once": ("max_active_runs=2", "set max_active_runs=1"),
    "a time-out of runs": ("dagrun_timeout=timedelta(hours=1)", "dagrun_timeout"),
    "another schedule": ("schedule='0 * * * *'", "schedule=epoch_schedule(pipeline)"),
    "a param of epochs": ("params={'timeout': 3}", "param 'timeout'"),
    "another job": ("default_args={'application': 'mine.py'}", "default_args must not set 'application'"),
}


@pytest.mark.parametrize(("changes", "why"), REFUSED.values(), ids=REFUSED)
def test_a_dag_that_cannot_keep_the_promises_is_refused_by_name(
    changes: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`epochline validate` says so before the file is deployed."""
    said = validated(FILE.format(code=IN_DAG.format(changes=changes)), tmp_path, monkeypatch, capsys)

    assert "guest.py:12: DAG " in said
    assert "cannot hold the epochs of 'guest'" in said
    assert why in said


EXPANDED = """
@task_group
def each(number):
    epoch_tasks(pipeline)
with DAG(**options):
    each.expand(number=[1, 2])
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [("epoch_tasks(pipeline)", "must be called within `with DAG(...)`"), (EXPANDED, "group 'each' is expanded")],
    ids=["no DAG", "an expanded group"],
)
def test_a_place_that_is_no_run_of_its_own_is_refused(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in validated(FILE.format(code=code), tmp_path, monkeypatch, capsys)


def test_a_dag_that_keeps_them_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = FILE.format(code=IN_DAG.format(changes=""))

    assert validated(code, tmp_path, monkeypatch, capsys).startswith("valid: guest\n")


def validated(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What `epochline validate` says of a DAG file."""
    (folder / "guest.py").write_text(code)
    monkeypatch.setenv("EPOCHLINE_HOME", str(folder / "no stack"))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(folder))
    return caller(monkeypatch, capsys)("validate")[1]


def xcom(scheduler: Scheduler, run: str, task: str, key: str) -> Any:
    path = f"/api/v2/dags/guest/dagRuns/{run}/taskInstances/{task}/xcomEntries/{key}"
    return scheduler.call("GET", path)["value"]


def seen_after(scheduler: Scheduler, run: str) -> str:
    """What the task after the group saw in the ledger; the test fails with logs if it did not run."""
    tasks = scheduler.tasks("guest", run)
    logs = [scheduler.log("guest", run, task)[-3000:] for task in ("publish", "after") if tasks[task] == "failed"]
    assert tasks["after"] == "success", (tasks, logs)
    return str(xcom(scheduler, run, "after", "return_value"))


def test_a_task_after_the_group_runs_after_the_commit_alone_also_where_the_run_is_cleared_or_a_backfill(
    scheduler: Scheduler, terminal: Terminal, forgive: Path
) -> None:
    """In a user's own DAG: with nothing to read, in a backfill, after a failed epoch, and once it is cleared."""
    scheduler.prepare("guest", {})
    scheduler.produce("guest_out", {})
    scheduler.pause("guest", False)
    ended = "/api/v2/dags/guest/dagRuns?state=success"
    [empty] = eventually("the scheduled run is over", lambda: scheduler.call("GET", ended)["dag_runs"])
    inside: Values = {p: [f"inside-{p}"] for p in range(4)}
    scheduler.produce("guest", inside, at=START)
    interval = {"from_date": START.isoformat(), "to_date": START.isoformat()}
    made = scheduler.call("POST", "/api/v2/backfills", {"dag_id": "guest", **interval})
    path = f"/api/v2/backfills/{made['id']}"
    eventually("the backfill is over", lambda: scheduler.call("GET", path)["completed_at"], every=0.5)
    [filled] = scheduler.call("GET", "/api/v2/dags/guest/dagRuns?run_type=backfill")["dag_runs"]
    seen = [seen_after(scheduler, filled["dag_run_id"])]
    scheduler.assert_exact("guest", inside)
    values = {**inside, 0: [*inside[0], "bad"], 1: [*inside[1], "good"]}
    scheduler.produce("guest", {0: ["bad"], 1: ["good"]})

    run = scheduler.trigger("guest")
    failed = {"run": scheduler.wait("guest", run), **scheduler.tasks("guest", run)}
    tried = scheduler.instances("guest", run)["pre_commit"]
    aborted = scheduler.epoch("guest", 2)[0], scheduler.staging_tables("guest")
    called = xcom(scheduler, run, "pre_commit", "failed")
    forgive.touch()
    # A pipeline with a schedule stands after an error that would come back.
    terminal("resume", "guest", "--reason", "a test mended the record", "--yes")
    cleared = scheduler.cleared("guest", run, "plan_epoch")
    seen.append(seen_after(scheduler, run))
    cleared_again = scheduler.cleared("guest", run, "plan_epoch")
    seen.append(seen_after(scheduler, run))  # nothing was left to publish

    assert scheduler.tasks("guest", empty["dag_run_id"])["after"] == "skipped"
    assert failed == {
        "run": "failed", "before": "success", "plan_epoch": "success", "pre_commit": "failed",
        "commit_epoch": "upstream_failed", "abort_epoch": "failed", "publish": "failed", "after": "upstream_failed",
    }  # fmt: skip
    assert aborted == ("ABORTED", [])
    assert (tried["pool_slots"], called) == (2, "pre_commit")
    assert (filled["state"], cleared, cleared_again) == ("success",) * 3
    assert seen == ["COMMITTED, SHOWN"] * 3
    assert " · committed" in scheduler.outcome("guest", run, "commit_epoch")
    scheduler.assert_exact("guest", values)
