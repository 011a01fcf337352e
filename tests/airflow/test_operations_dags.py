"""The DAGs of operators' actions, as Airflow's DAG processor reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from epochline.operations import ACTIONS
from epochline.protocol.epoch import EpochState
from tests.airflow.interpreter import answer_of, without_airflow
from tests.commands import kafka_connection
from tests.databases import as_connection

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
    environment = without_airflow(tmp_path_factory.mktemp("airflow"))
    return answer_of(READ, ROOT / "dags" / "operations.py", environment=environment)  # type: ignore[no-any-return]


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


ACT = """
import sys, json, warnings; warnings.simplefilter("ignore")
from types import SimpleNamespace
from epochline.airflow import operations

name, user, params = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
run = SimpleNamespace(dag_id="epochline_" + name, run_id="manual__1", conf={}, triggering_user_name=user or None)
janitor = name == "janitor"
task = operations.JanitorOperator(task_id="tidy") if janitor else operations.ActionOperator(task_id="act", action=name)
try:
    print("ANSWER" + json.dumps(task.execute({"params": params, "dag_run": run})))
except Exception as error:
    print("ANSWER" + json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def act(postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path) -> Callable[..., Any]:
    """Carries out an operator's own code in a process of its own; starting it from a form is Airflow's."""
    (tmp_path / "orders.py").write_text(
        "from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_dag\n"
        "dag = epoch_dag(Pipeline(name='orders', source=KafkaSource(topics='orders'), parse=Text(),\n"
        "    sinks=[PostgresTable(table='orders', columns={'value': 'text'})]))\n"
    )

    def do(name: str, user: str = "", **params: Any) -> Any:
        (tmp_path / "airflow").mkdir(exist_ok=True)
        environment = without_airflow(
            tmp_path / "airflow",
            AIRFLOW_CONN_EPOCHLINE_POSTGRES=as_connection(postgres_dsn),
            AIRFLOW_CONN_EPOCHLINE_KAFKA=kafka_connection(kafka_bootstrap),
            EPOCHLINE_DAGS=str(tmp_path),
        )
        given = {"pipeline": "orders", "reason": "a test says {{ so }}", "confirm": True, **params}
        return answer_of(ACT, name, user, json.dumps(given), environment=environment)

    return do


def test_the_janitors_dag_ends_what_nobody_stages_in_every_database_that_is_named(
    act: Callable[..., Any], postgres_dsn: str
) -> None:
    """I6."""
    from tests.contract.worlds import postgres_world

    world = postgres_world(postgres_dsn)
    world.plan(lease=timedelta(hours=-2))

    assert act("janitor") is None

    assert world.epoch(1).state is EpochState.ABORTED
    assert "ended by run manual__1 of epochline_janitor" in (world.epoch(1).error or "")


def test_a_run_acts_only_when_confirmed_and_is_written_down_with_who_triggered_it(
    act: Callable[..., Any], postgres_dsn: str
) -> None:
    from epochline.postgres.ledger.transactions import PostgresLedger
    from tests.contract.worlds import postgres_world, quarantined

    quarantined(postgres_world(postgres_dsn))

    def written() -> list[tuple[str, str]]:
        with PostgresLedger(postgres_dsn).transaction() as tx:
            return [(row.action, row.actor) for row in tx.operators.actions("orders")]

    assert act("pause", confirm=False)[0] == "AirflowSkipException"
    assert act("abort", epoch=1)[0] == "AirflowFailException"  # it is committed
    assert written() == []
    assert act("pause", "grace") == []
    assert act("resume") == []
    assert written() == [("pause", "grace"), ("resume", "run manual__1 of epochline_resume")]
    started = act("requeue", "ada", everything=True)
    assert started == [
        {
            "action": {
                "name": "requeue",
                "parameters": {"everything": True, "out_of_order": False},
                "actor": "ada",
                "reason": "a test says {{ so }}",
            }
        }
    ]
