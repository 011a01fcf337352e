"""`epochline logs` of epochs that a real Airflow made."""

from pathlib import Path

import pytest

from tests.airflow.conftest import Scheduler
from tests.commands import Call, caller
from tests.conftest import AIRFLOW_DAGS


@pytest.fixture
def call(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Commands on the test's stack and its DAGs."""
    monkeypatch.setenv("EPOCHLINE_HOME", str(scheduler.stack.home.root))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(AIRFLOW_DAGS))
    return caller(monkeypatch, capsys)


def heads(out: str) -> list[str]:
    return [line.split(",")[0] + line.split(",")[1] for line in out.splitlines() if line.startswith("==== ")]


def test_the_logs_of_an_epoch_have_each_try_of_each_task_and_sparks_output(
    scheduler: Scheduler, call: Call, forgive: Path
) -> None:
    """A failed epoch is told as it happened; followed, the next one is told to its end."""
    scheduler.prepare("logged", {0: ["good", "bad", "better"], 1: ["fine"], 2: [], 3: []})
    run = scheduler.trigger("logged")
    assert scheduler.wait("logged", run) == "failed"

    code, out, err = call("logs", "logged")
    forgive.touch()
    scheduler.clear("logged", run, "plan_epoch")
    followed = call("logs", "logged", "--follow")

    assert (code, err) == (0, "epoch 1 of logged is ABORTED\n")
    assert heads(out) == ["==== plan_epoch try 1", "==== pre_commit try 1", "==== abort_epoch try 1"]
    assert "epoch 1 of logged is PLANNED (planned): logged-0[0, 3), logged-1[0, 1)" in out
    assert "INFO epochline.spark.job job.started pipeline=logged epoch=1 attempt=1" in out
    assert "AirflowFailException: BadRecordError: logged-0 offset 1: the record says that it is bad" in out
    assert "::group::" not in out
    assert followed[2] == "epoch 1 of logged is COMMITTED\n"
    assert scheduler.state("logged", run) == "success"
    lines = followed[1].splitlines()
    assert {"==== pre_commit try 1", "==== pre_commit try 2", "==== commit_epoch try 1"} <= set(heads(followed[1]))
    assert len([line for line in lines if "job.started" in line]) == 2, "a line is missing, or was printed twice"
    assert "is committed" in followed[1]
