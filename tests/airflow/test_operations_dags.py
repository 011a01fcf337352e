"""The DAGs of operators' actions, as Airflow's DAG processor reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epochline.operations import ACTIONS

ROOT = Path(__file__).parents[2]

READ = """
import json, runpy, sys, warnings; warnings.simplefilter("ignore")
from airflow.sdk import DAG
module = runpy.run_path(sys.argv[1])
print("ANSWER" + json.dumps({
    dag.dag_id: {
        "schedule": str(dag.schedule), "max_active_runs": dag.max_active_runs, "catchup": dag.catchup,
        "schemas": {name: dag.params.get_param(name).schema for name in dag.params},
        "defaults": {name: dag.params.get_param(name).value for name in dag.params
                     if name not in ("pipeline", "reason", "epoch", "to") or dag.dag_id == "epochline_requeue"
                     and name == "epoch"},
        "tasks": {task.task_id: type(task).__name__ for task in dag.tasks},
    }
    for dag in module.values() if isinstance(dag, DAG)
}, default=str))
"""


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("airflow")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "EPOCHLINE"))},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "PYTHONPATH": str(ROOT / "include"),
    }
    done = subprocess.run(
        [sys.executable, "-c", READ, str(ROOT / "dags" / "operations.py")],
        capture_output=True, text=True, check=False, env=environment, cwd=home, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    return json.loads(line.removeprefix("ANSWER"))  # type: ignore[no-any-return]


def test_every_action_has_a_dag_and_the_janitor_has_the_only_scheduled_one(dags: dict[str, Any]) -> None:
    assert set(dags) == {f"epochline_{name.replace('-', '_')}" for name in ACTIONS} | {"epochline_janitor"}
    assert [name for name, dag in dags.items() if dag["schedule"] != "None"] == ["epochline_janitor"]
    assert {(dag["max_active_runs"], dag["catchup"]) for dag in dags.values()} == {(1, False)}


def test_the_form_asks_for_pipeline_and_reason_and_does_nothing_unless_confirmed(dags: dict[str, Any]) -> None:
    for name, dag in dags.items():
        if name == "epochline_janitor":
            continue
        assert dag["schemas"]["reason"]["minLength"] == dag["schemas"]["pipeline"]["minLength"] == 1
        assert dag["defaults"]["confirm"] is False
        own = set(dag["schemas"]) - {"pipeline", "reason", "confirm"}
        assert own == set(ACTIONS[name.removeprefix("epochline_").replace("_", "-")].parameters.model_fields)


def test_an_action_that_is_an_epoch_starts_runs_of_the_pipelines_own_dag(dags: dict[str, Any]) -> None:
    for name in ("epochline_requeue", "epochline_extend_back"):
        assert list(dags[name]["tasks"]) == ["act", "run"]
    assert list(dags["epochline_abort"]["tasks"]) == ["act"]
