"""Each task runs in a process and an empty folder of its own, and leaves nothing there (G10, B4)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.airflow.conftest import Scheduler
from tests.conftest import AIRFLOW_DAGS

SCRIPT = """
import runpy, sys
from types import SimpleNamespace

task_id, dag_id, epoch = sys.argv[1:]
dag = runpy.run_path({dags!r})["apart"]
task = dag.get_task(task_id)
if hasattr(task, "epoch_id"):
    task.epoch_id = epoch
else:
    task.record_limit = task.note = None
context = {{"dag_run": SimpleNamespace(dag_id=dag_id, run_id="by-hand", run_type="manual", conf={{}})}}
print("XCOM", task.execute(context))
"""


@pytest.mark.slow
def test_each_task_runs_in_an_empty_folder_and_passes_on_the_epoch_id_alone(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    scheduler.prepare("apart", {0: ["one"], 1: ["two"], 2: [], 3: ["three"]})
    environment = {**os.environ, **scheduler.stack.airflow.environment()}
    script = SCRIPT.format(dags=str(AIRFLOW_DAGS / "scripted.py"))
    passed_on = {}

    for task in ("plan_epoch", "pre_commit", "commit_epoch"):
        folder = tmp_path / task
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", script, task, "apart", passed_on.get("plan_epoch", "")],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        passed_on[task] = next(line for line in done.stdout.splitlines() if line.startswith("XCOM"))[5:]
        assert [path.name for path in folder.iterdir() if path.name != "spark-warehouse"] == []

    assert passed_on == {"plan_epoch": "1", "pre_commit": "None", "commit_epoch": "None"}
    assert sorted(scheduler.query("SELECT value FROM apart")) == [("one",), ("three",), ("two",)]
