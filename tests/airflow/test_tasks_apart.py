"""Each task runs in a process and an empty folder of its own, and leaves nothing there (G10, B4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.airflow.conftest import Scheduler
from tests.airflow.interpreter import answer_of
from tests.conftest import AIRFLOW_DAGS

SCRIPT = """
import json, runpy, sys
from types import SimpleNamespace

dags, task_id, epoch = sys.argv[1:]
task = runpy.run_path(dags)["apart"].get_task(task_id)
if hasattr(task, "epoch_id"):
    task.epoch_id = epoch
else:
    task.record_limit = task.note = None
context = {"dag_run": SimpleNamespace(dag_id="apart", run_id="by-hand", run_type="manual", conf={})}
print("ANSWER" + json.dumps({"returned": task.execute(context)}))
"""


@pytest.mark.slow
def test_each_task_runs_in_an_empty_folder_and_passes_on_the_epoch_id_alone(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    scheduler.prepare("apart", {0: ["one"], 1: ["two"], 2: [], 3: ["three"]})
    environment = {**os.environ, **scheduler.stack.airflow.environment()}
    passed_on: dict[str, str | None] = {}

    for task in ("plan_epoch", "pre_commit", "commit_epoch"):
        folder = tmp_path / task
        folder.mkdir()
        epoch = passed_on.get("plan_epoch") or ""
        passed_on[task] = answer_of(
            SCRIPT, AIRFLOW_DAGS / "scripted.py", task, epoch, environment=environment, folder=folder
        )["returned"]
        assert {path.name for path in folder.iterdir()} <= {"spark-warehouse"}

    assert passed_on == {"plan_epoch": "1", "pre_commit": None, "commit_epoch": None}
    assert sorted(scheduler.query("SELECT value FROM apart")) == [("one",), ("three",), ("two",)]
