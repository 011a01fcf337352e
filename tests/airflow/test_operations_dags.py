"""The DAGs of operators' actions, as Airflow's DAG processor reads them."""

import json
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from epochline.operations import DAG_ACTIONS
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import EpochState
from tests.airflow.interpreter import answer_without_airflow
from tests.commands import kafka_connection
from tests.contract.worlds import postgres_world, quarantined
from tests.databases import as_connection, query
from tests.integration.kafka_topics import admin_of, make_topic

ROOT = Path(__file__).parents[2]

READ = """
import json, runpy, sys, warnings; warnings.simplefilter("ignore")
from airflow.sdk import DAG
dags = [value for value in runpy.run_path(sys.argv[1]).values() if isinstance(value, DAG)]
print("ANSWER" + json.dumps({
    dag.dag_id: {
        "schedule": str(dag.schedule), "max_active_runs": dag.max_active_runs, "catchup": dag.catchup,
        "paused": dag.is_paused_upon_creation,
        "schemas": {name: dag.params.get_param(name).schema for name in dag.params},
        "confirm": dag.params.get_param("confirm").value if "confirm" in dag.params else None,
        "tasks": [task.task_id for task in dag.tasks],
    }
    for dag in dags
}, default=str))
"""


def test_every_action_has_a_dag_whose_form_does_nothing_unless_confirmed(tmp_path: Path) -> None:
    """The janitor and the look at logs alone have a schedule; an action that is an epoch starts runs of the pipeline's own DAG."""
    dags = answer_without_airflow(READ, ROOT / "dags" / "operations.py", home=tmp_path)

    assert {(dag["max_active_runs"], dag["catchup"]) for dag in dags.values()} == {(1, False)}
    scheduled = {"epochline_janitor", "epochline_log_ends"}
    assert {name for name, dag in dags.items() if dag["schedule"] != "None"} == scheduled
    assert [name for name, dag in dags.items() if dag["paused"] is not False] == ["epochline_janitor"]
    dags = {name: dag for name, dag in dags.items() if name not in scheduled}
    assert set(dags) == {f"epochline_{name.replace('-', '_')}" for name in DAG_ACTIONS}
    for name, dag in dags.items():
        assert dag["schemas"]["reason"]["minLength"] == dag["schemas"]["pipeline"]["minLength"] == 1
        assert dag["confirm"] is False
        assert dag["paused"] is False  # it has no schedule, and a page starts its runs
        own = set(dag["schemas"]) - {"pipeline", "reason", "confirm", "expected"}
        assert own == set(DAG_ACTIONS[name.removeprefix("epochline_").replace("_", "-")].parameters.model_fields)
    for name in ("epochline_requeue", "epochline_extend_back", "epochline_retry"):
        assert dags[name]["tasks"] == ["act", "run"]
    assert dags["epochline_abort"]["tasks"] == ["act"]


ACT = """
import sys, json, warnings; warnings.simplefilter("ignore")
from types import SimpleNamespace
from epochline.airflow import operations

name, user, params, bundle = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
run = SimpleNamespace(dag_id="epochline_" + name, run_id="manual__1", conf={}, triggering_user_name=user or None)
scheduled = {"janitor": operations.JanitorOperator, "log_ends": operations.LogEndsOperator}
task = scheduled[name](task_id="x") if name in scheduled else operations.ActionOperator(task_id="act", action=name)
said, asked, pipelines_of = [], [], operations._pipelines_of
operations._pipelines_of = lambda ledger, declared: asked.append(ledger) or pipelines_of(ledger, declared)
ti = SimpleNamespace(xcom_push=lambda key, value: said.append(value))
if bundle:
    from airflow.dag_processing.bundles.local import LocalDagBundle
    ti.bundle_instance = LocalDagBundle(name="theirs", path=bundle)
try:
    answer = task.execute({"params": params, "dag_run": run, "ti": ti})
except Exception as error:
    answer = [type(error).__name__, str(error)]
print("ANSWER" + json.dumps({"answer": answer if len(asked) < 2 else asked, "said": said}))
"""


Act = Callable[..., Any]


@pytest.fixture
def act(postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path) -> Act:
    """Carries out an operator's own code in a process of its own; starting it from a form is Airflow's."""
    (tmp_path / "orders.py").write_text(
        "from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_dag\n"
        "dag = epoch_dag(Pipeline(name='orders', source=KafkaSource(topics='orders'), parse=Text(),\n"
        "    sinks=[PostgresTable(table='orders', columns={'value': 'text'})]))\n"
    )
    home = tmp_path / "airflow"
    home.mkdir()

    def settings(bundle: Path | None) -> dict[str, str]:
        missing = str(tmp_path / "no folder")
        return {"EPOCHLINE_DAGS": str(tmp_path)} if bundle is None else {"AIRFLOW__CORE__DAGS_FOLDER": missing}

    def do(name: str, user: str = "", bundle: Path | None = None, **params: Any) -> Any:
        given = {"pipeline": "orders", "reason": "a test says {{ so }}", "confirm": True, **params}
        return answer_without_airflow(
            ACT, name, user, json.dumps(given), bundle or "", home=home, **settings(bundle),
            AIRFLOW_CONN_EPOCHLINE_POSTGRES=as_connection(postgres_dsn),
            AIRFLOW_CONN_EPOCHLINE_KAFKA=kafka_connection(kafka_bootstrap),
        )["answer"]  # fmt: skip

    return do


def test_the_janitors_dag_ends_what_nobody_stages_in_every_database_that_is_named(
    act: Act, postgres_dsn: str, tmp_path: Path
) -> None:
    """I6: a broken declaration keeps no other pipeline from being tidied."""
    (tmp_path / "broken.py").write_text("from epochline import KafkaSource, epoch_dag\nKafkaSource(subject='a')\n")
    world = postgres_world(postgres_dsn)
    world.plan(lease=timedelta(hours=-2))

    assert act("janitor") is None

    assert world.epoch(1).state is EpochState.ABORTED
    assert "ended by run manual__1 of epochline_janitor" in (world.epoch(1).error or "")


def test_the_log_ends_dag_stores_the_ends_and_the_retention_that_kafka_says(
    act: Act, postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    """Issue 19: the age of what the pages show does not depend on the schedule of a pipeline."""
    (tmp_path / "rare.py").write_text(
        "from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_dag\n"
        f"dag = epoch_dag(Pipeline(name='rare', source=KafkaSource(topics='{topic_name}'), parse=Text(),\n"
        "    sinks=[PostgresTable(table='rare', columns={'value': 'text'})]))\n"
    )
    query(postgres_dsn, "INSERT INTO epochline.pipeline (pipeline) VALUES ('rare')")
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        configs = {"retention.ms": "3600000", "cleanup.policy": "compact,delete"}
        topic = {"num_partitions": 2, "replication_factor": 1, "configs": configs}
        admin.create_topics({topic_name: topic}, wait_for_metadata=True)
    with closing(KafkaProducer(bootstrap_servers=kafka_bootstrap)) as producer:
        producer.send(topic_name, b"x", key=b"k", partition=1).get(30)

    assert act("log_ends") is None

    assert query(
        postgres_dsn,
        "SELECT pipeline, partition, log_start, last_stable, cleanup_policy, retention_ms, retention_bytes"
        " FROM epochline.log_ends ORDER BY partition",
    ) == [("rare", 0, 0, 0, "compact,delete", 3_600_000, -1), ("rare", 1, 0, 1, "compact,delete", 3_600_000, -1)]


def test_tasks_of_a_dag_bundle_take_the_declarations_of_that_bundle(
    act: Act, postgres_dsn: str, tmp_path: Path
) -> None:
    """Airflow's DAGs folder need not exist, and no task reads it if its file is in another bundle."""
    world = postgres_world(postgres_dsn)
    world.plan(lease=timedelta(hours=-2))

    assert act("janitor", bundle=tmp_path) is None
    assert act("log_ends", bundle=tmp_path) is None
    assert act("pause", "grace", bundle=tmp_path) == []

    assert world.epoch(1).state is EpochState.ABORTED
    with PostgresLedger(postgres_dsn).transaction() as tx:
        assert [row.actor for row in tx.operators.actions("orders")] == ["grace"]


def test_tasks_that_find_no_file_take_the_pipelines_of_the_ledger_and_fail_where_it_has_none(
    act: Act, postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    """A task that did nothing would be green as one that did its work. The ledger is asked for its pipelines once."""
    bundle = tmp_path / "only operations"
    bundle.mkdir()
    nothing = [act(name, bundle=bundle) for name in ("janitor", "log_ends")]
    with admin_of(kafka_bootstrap) as admin:
        if "orders" not in admin.list_topics():
            make_topic(kafka_bootstrap, "orders", 1)
    world = postgres_world(postgres_dsn)
    world.plan(lease=timedelta(hours=-2))

    done = [act(name, bundle=bundle) for name in ("janitor", "log_ends")]

    for kind, message in nothing:
        assert kind == "AirflowFailException"
        assert (
            f"no file in {bundle} declares a pipeline, and the ledger of epochline_postgres has no epoch of one"
            in message
        )
    assert done == [None, None]
    assert world.epoch(1).state is EpochState.ABORTED
    assert query(postgres_dsn, "SELECT DISTINCT pipeline FROM epochline.log_ends") == [("orders",)]
    kind, message = act("pause", bundle=bundle)
    assert kind == "AirflowFailException"
    assert f"no file in {bundle} declares a pipeline 'orders'" in message


def test_a_run_acts_only_when_confirmed_and_is_written_down_with_who_triggered_it(act: Act, postgres_dsn: str) -> None:
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
    assert act("publish", "grace")[0] == "AirflowFailException"  # every sink shows every epoch
    assert act("retry", "grace") == [{"note": "retry by grace: a test says {{ so }}"}]
    assert written()[-1] == ("retry", "grace")
    parameters = {"everything": True, "out_of_order": False}
    action = {"name": "requeue", "parameters": parameters, "actor": "ada", "reason": "a test says {{ so }}"}
    assert act("requeue", "ada", everything=True) == [{"action": action}]


def test_a_run_that_would_do_something_else_than_its_page_showed_does_nothing(act: Act, postgres_dsn: str) -> None:
    """The state of the ledger that was previewed comes with the run; a pause that came in between is seen."""
    quarantined(postgres_world(postgres_dsn))
    shown = {"generation": 1, "quarantined": {"orders-0": 2}}

    assert act("requeue", "ada", everything=True, expected={**shown, "quarantined": {"orders-0": 3}})[0] == (
        "AirflowFailException"
    )
    assert act("pause", "ada", expected={"paused": True})[0] == "AirflowFailException"
    assert act("drop", "ada", expected={"paused": False})[0] == "AirflowFailException"
    with PostgresLedger(postgres_dsn).transaction() as tx:
        assert tx.operators.actions("orders") == []

    assert len(act("requeue", "ada", everything=True, expected=shown)) == 1
    assert act("pause", "ada", expected={"paused": False}) == []
