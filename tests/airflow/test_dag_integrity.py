"""DAG files as Airflow's DAG processor reads them, without a scheduler: what they are made of, and what parsing costs."""

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.airflow.interpreter import answer_without_airflow
from tests.declared import find_all

ROOT = Path(__file__).parents[2]
# Files of pipelines; that of the operations is looked at in test_operations_dags.py.
FILES = sorted(path for path in (ROOT / "dags").rglob("*.py") if "epoch_dag" in path.read_text())
PIPELINES = {**find_all(ROOT / "dags"), **find_all(ROOT / "dags" / "examples")}

READ = """
import inspect, json, runpy, sys
import warnings; warnings.simplefilter("ignore")
from airflow.sdk import DAG

dags = []
for path in sys.argv[1:]:
    for dag in [value for value in runpy.run_path(path).values() if isinstance(value, DAG)]:
        dag.check_cycle()
        dags.append({
            "file": path, "id": dag.dag_id, "doc": dag.doc_md, "catchup": dag.catchup,
            "max_active_runs": dag.max_active_runs, "params": dag.params.dump(),
            "at_once": {task.task_id: task.max_active_tis_per_dag for task in dag.tasks},
            "schemas": {name: dag.params.get_param(name).schema for name in dag.params},
            "tasks": {
                task.task_id: {
                    "down": sorted(task.downstream_task_ids), "setup": task.is_setup, "teardown": task.is_teardown,
                    "fails_run": task.on_failure_fail_dagrun, "retries": task.retries,
                    "timeout": task.execution_timeout.total_seconds(), "conn_id": getattr(task, "_conn_id", None),
                    "policy": type(getattr(task, "retry_policy", None)).__name__,
                    "durable": getattr(task, "durable", None), "conf": getattr(task, "conf", None), "trigger_rule": str(task.trigger_rule),
                    "returns": inspect.formatannotation(inspect.signature(type(task).execute).return_annotation),
                    "outlets": [f"{type(one).__name__} {one.name}" for one in task.outlets],
                    "templates": [
                        value for name in task.template_fields
                        if isinstance(value := getattr(task, name), str) and "{{" in value
                    ],
                }
                for task in dag.tasks
            },
        })
heavy = {"pyspark", "pyarrow", "kafka", "psycopg2", "pandas"} & set(sys.modules)
print("ANSWER" + json.dumps({"dags": dags, "heavy": sorted(heavy)}, default=str))
"""

FOLLOWED = """
from epochline import KafkaSource, KafkaTopic, Pipeline, PostgresTable, Text, epoch_dag

dag = epoch_dag(Pipeline(
    name="followed", source=KafkaSource(topics="followed"), parse=Text(),
    sinks=[PostgresTable(table="followed", columns={"value": "text"}), KafkaTopic(topic="followed_out", value=Text())],
))
"""

AS_AIRFLOW_3_2 = """
import importlib.util
from airflow.providers.apache.spark.operators import spark_submit
from airflow.sdk import BaseOperator

class SparkSubmitOperator(BaseOperator):
    template_fields = ()

    def __init__(self, *, application="", conf=None, conn_id="spark_default", **options):
        super().__init__(**options)  # refuses an argument that it does not know, such as durable
        self._conn_id = conn_id

find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "airflow.sdk.definitions.retry_policy" else find(name)
spark_submit.SparkSubmitOperator = SparkSubmitOperator
"""
"""What Airflow 3.2.2 with version 6.0.1 of its Spark provider lacks."""

Dag = dict[str, Any]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh interpreter sees of the DAG files, and of one more, whose pipeline has a sink that follows a commit."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "followed.py").write_text(FOLLOWED)
    files = [*FILES, home / "followed.py"]
    return answer_without_airflow(READ, *files, home=home, AIRFLOW__CORE__UNIT_TEST_MODE="False")


@pytest.fixture
def dags(read: dict[str, Any]) -> list[Dag]:
    return [dag for dag in read["dags"] if dag["id"] != "followed"]


@pytest.fixture
def followed(read: dict[str, Any]) -> Dag:
    return next(dag for dag in read["dags"] if dag["id"] == "followed")


def test_every_dag_file_gives_a_dag_named_as_its_pipeline(dags: list[Dag]) -> None:
    assert {Path(dag["file"]) for dag in dags} == set(FILES)
    assert sorted(dag["id"] for dag in dags) == sorted(PIPELINES)
    assert dags


def test_parsing_imports_neither_spark_nor_arrow_nor_a_driver(read: dict[str, Any]) -> None:
    """Airflow parses every file again and again, and forks from what it imported."""
    assert read["heavy"] == []


def test_the_tasks_are_plan_pre_commit_commit_with_abort_as_their_teardown(dags: list[Dag]) -> None:
    """C6, U6: the teardown runs for both setups, and its failure makes the run red."""
    for dag in dags:
        tasks = dag["tasks"]
        follows = publishes(dag)

        assert {name: task["down"] for name, task in tasks.items()} == {
            "plan_epoch": ["abort_epoch", "pre_commit"],
            "pre_commit": ["abort_epoch", "commit_epoch"],
            "commit_epoch": ["abort_epoch", *follows],
            "abort_epoch": [],
            **{name: [] for name in follows},
        }
        assert [name for name, task in tasks.items() if task["setup"]] == ["plan_epoch", "pre_commit"]
        assert [name for name, task in tasks.items() if task["teardown"]] == ["abort_epoch"]
        assert tasks["abort_epoch"]["fails_run"] is True
        assert all(task["timeout"] > 0 for task in tasks.values())


def publishes(dag: Dag) -> list[str]:
    """The task that shows epochs in sinks that follow the commit, where there are such."""
    return ["publish"] if PIPELINES[dag["id"]].post_commit_sinks else []


def test_a_run_publishes_also_where_it_had_nothing_to_read_or_failed_and_waits_for_no_sink_for_ever(
    followed: Dag,
) -> None:
    """E6: an earlier run's epoch may be due; a sink that is down must not keep the next run from its epoch."""
    publish = followed["tasks"]["publish"]

    assert (publish["trigger_rule"], publish["retries"], publish["timeout"]) == ("TriggerRule.ALL_DONE", 2, 3600)
    assert followed["tasks"]["commit_epoch"]["down"] == ["abort_epoch", "publish"]


def test_the_page_of_a_dag_says_what_to_do_and_explains_publish_where_there_is_one(
    followed: Dag, dags: list[Dag]
) -> None:
    assert "you clear `publish`" in followed["doc"]
    assert "shows it in kafka:followed_out" in followed["doc"]
    rows = [line for line in followed["doc"].splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    assert not re.search(r"\n\n\|(?! What)", followed["doc"])  # the table is one
    for dag in dags:
        assert bool(publishes(dag)) == ("`publish` red" in dag["doc"])
        for what in (
            dag["id"],
            "epochline.epochs",
            "clear",
            "`outcome`",
            "*committed*",
            "*aborted*",
            "*pre-committed*",
        ):
            assert what in dag["doc"]


def test_the_ledger_chooses_pauses_and_no_driver_is_attached_to_with_an_airflow_that_has_either(
    followed: Dag, tmp_path: Path
) -> None:
    """Airflow 3.2 has no retry policies, and its Spark operator no ``durable``: neither is named to it."""
    (tmp_path / "followed.py").write_text(FOLLOWED)
    code = AS_AIRFLOW_3_2 + READ

    [older] = answer_without_airflow(code, tmp_path / "followed.py", home=tmp_path)["dags"]

    policies = {name: task["policy"] for name, task in followed["tasks"].items()}
    assert policies == {**dict.fromkeys(policies, "NoneType"), "pre_commit": "RetryByLedger"}
    assert followed["tasks"]["pre_commit"]["durable"] is False
    assert {task["policy"] for task in older["tasks"].values()} == {"NoneType"}
    assert older["tasks"]["pre_commit"]["durable"] is None
    assert [task["retries"] for task in older["tasks"].values()] == [
        task["retries"] for task in followed["tasks"].values()
    ]


def test_the_tasks_that_show_epochs_announce_them(followed: Dag) -> None:
    """By an alias, because an outlet that is an asset emits one event per task, and one without an epoch."""
    outlets = {name: task["outlets"] for name, task in followed["tasks"].items() if task["outlets"]}

    alias = ["AssetAlias epochline://followed"]
    assert outlets == {"commit_epoch": alias, "publish": alias}


def test_one_run_at_a_time_and_no_catching_up(dags: list[Dag]) -> None:
    """K14, F61: a backfill makes more runs at once all the same; then one plan waits, and leaves workers to the others."""
    assert {(dag["max_active_runs"], dag["catchup"]) for dag in dags} == {(1, False)}
    at_once = [dag["at_once"] for dag in dags if "plan_epoch" in dag["at_once"]]
    assert at_once == [dict.fromkeys(tasks) | {"plan_epoch": 1} for tasks in at_once]


def test_a_run_can_be_triggered_with_the_params_left_as_they_are(dags: list[Dag]) -> None:
    """U1: the form's defaults are valid, and wrong values are refused by their schema."""
    for dag in dags:
        assert dag["params"] == dict.fromkeys(
            ("record_limit", "note", "minimum_pause", "timeout", "on_cancel", "parallelism")
        )
        assert dag["schemas"]["record_limit"]["minimum"] == 1
        assert "null" in dag["schemas"]["record_limit"]["type"]
        assert "null" in dag["schemas"]["note"]["type"]


def test_the_epochs_id_is_all_that_passes_between_tasks(dags: list[Dag]) -> None:
    """INV-8, B4, SEC-5: only ``plan_epoch`` returns a value; the outcome's line is pushed in one place, and not read."""
    epoch = ["{{ ti.xcom_pull(task_ids='plan_epoch') or '' }}"]
    templates = {
        "plan_epoch": ["{{ params.record_limit or '' }}", "{{ params.note or '' }}"],
        "pre_commit": epoch, "commit_epoch": epoch, "abort_epoch": epoch, "publish": [],
    }  # fmt: skip
    for dag in dags:
        for name, task in dag["tasks"].items():
            assert task["returns"] == ("str" if name == "plan_epoch" else "None")
            assert task["templates"] == templates[name]
    # Operators' actions are DAGs of their own, which hand runs their conf (ADR 0008).
    files = set((ROOT / "include" / "epochline" / "airflow").glob("*.py"))
    code = "".join(path.read_text() for path in sorted(files) if path.name != "operations.py")
    assert re.findall(r"\bxcom_\w+\([^)]*", code) == [
        "xcom_pull(task_ids='plan_epoch'",
        "xcom_push(key=OUTCOME, value=str(line",
    ]


def test_the_spark_connection_decides_where_spark_runs(dags: list[Dag]) -> None:
    """The same DAG runs on ``local[2]`` and on a cluster: no operator and no job names a master."""
    for dag in dags:
        pre_commit = dag["tasks"]["pre_commit"]
        assert pre_commit["conn_id"] == PIPELINES[dag["id"]].spark_connection
        assert not [name for name in pre_commit["conf"] or {} if "master" in name]
    operators = (ROOT / "include" / "epochline" / "airflow").glob("*.py")
    job = ROOT / "include" / "epochline" / "spark" / "main.py"
    for path in [*operators, job, *(ROOT / "spark_jobs").rglob("*.py"), *FILES]:
        assert not re.search(r"--master|\.master\(|spark\.master|\bmaster=", path.read_text()), path


CREDENTIALS = re.compile(
    r"""(?ix) (?:password|passwd|secret|token|pwd) \s* ["']? \s* [=:] \s* ["'][^"'{}$]+["']   # password="x", "password": "x"
      | [a-z][a-z0-9+]*://[^\s/:@"'{}]+:[^\s/@"'{}]+@                                          # scheme://user:pass@host
      | \b(?:AKIA|ghp_|xox[bp]-)[A-Za-z0-9]{10,}"""
)


@pytest.mark.parametrize(
    "line",
    [
        "password='root'", 'connect(user="u", password = "123456")', '{"password": "x"}',
        "postgresql://me:secret@localhost/db", "jdbc:mysql://root:root@node1:3306/test",
    ],
)  # fmt: skip
def test_the_search_for_credentials_finds_them(line: str) -> None:
    assert CREDENTIALS.search(line)


def test_no_credentials_are_in_code() -> None:
    """K21: connections hold them."""
    files = [path for folder in ("dags", "spark_jobs", "plugins") for path in (ROOT / folder).rglob("*")]
    texts = {path: path.read_text(errors="replace") for path in files if path.suffix != ".pyc" and path.is_file()}

    assert {path for path, text in texts.items() if CREDENTIALS.search(text)} == set()


def pins() -> dict[str, str]:
    """By package, the version that is pinned for this Python and this system."""
    lines = (line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.lstrip().startswith("#"))
    pinned = [one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate()]
    assert {spec.operator for one in pinned for spec in one.specifier} == {"=="}
    return {one.name: spec.version for one in pinned for spec in one.specifier}


def test_what_is_installed_is_what_is_pinned() -> None:
    """B5."""
    pinned = pins()

    assert {"pyspark", "confluent-kafka", "kafka-python"} <= pinned.keys()
    assert {name: version(name) for name in pinned} == pinned


def test_the_clients_that_read_kafka_are_the_pinned_ones_with_their_own_librdkafka() -> None:
    """B5: confluent-kafka brings the librdkafka of its own version; one of the system would be another."""
    import confluent_kafka
    import kafka

    pinned = pins()
    assert confluent_kafka.libversion()[0] == Version(pinned["confluent-kafka"]).base_version
    assert kafka.__version__ == pinned["kafka-python"]


def test_spark_needs_no_connector() -> None:
    """B5: no job or server is given jars, and those of pyspark hold nothing of Kafka."""
    import pyspark

    jars = [path.name for path in Path(pyspark.__file__).parent.glob("jars/*.jar")]
    assert jars
    assert not [name for name in jars if "kafka" in name]
    product = [path for folder in ("include", "spark_jobs", "dags") for path in (ROOT / folder).rglob("*")]
    texts = [path for path in product if path.suffix in {".py", ".conf", ".sh", ".toml", ".xml"}]
    for path in [*texts, ROOT / "Dockerfile", ROOT / "docker-compose.yaml"]:
        assert not re.search(r"spark\.jars|--jars|self\.jars|SPARK_JARS|spark-sql-kafka", path.read_text()), path
