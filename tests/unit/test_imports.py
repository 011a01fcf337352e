"""What is imported when: a command and a task pay for what they use, and for nothing else. Each in a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import epochline
from epochline import cli
from epochline.cli.commands import COMMANDS, load, summaries
from epochline.operations import ACTIONS

PROJECT = Path(__file__).parents[2]
HEAVY = {"airflow", "alembic", "confluent_kafka", "kafka", "numpy", "pandas", "psycopg2", "pyarrow", "pyspark", "sqlalchemy"}  # fmt: skip

DECLARED = """
from epochline import Bytes, KafkaSource, Pipeline, PostgresTable, epoch_dag

dag = epoch_dag(
    Pipeline(
        name="plain",
        source=KafkaSource(topics="plain"),
        parse=Bytes(),
        sinks=PostgresTable(table="plain", columns={"value": "bytea"}),
    )
)
"""

DECLARING = """
from epochline import KafkaSource, Pipeline, PostgresTable

columns = {"client": "text", "hits": "bigint", "seen": "timestamptz"}
Pipeline(
    name="p", source=KafkaSource(topics="t"), parse="pipelines.access_log:parse", record=columns,
    sinks=[PostgresTable(table="clients", columns=columns, select="pipelines.access_log:per_client")],
)
"""

# A ledger of one row, whatever is asked, and a Kafka of one partition: the rest of a command is its own.
SERVERS = """
from collections import defaultdict
from contextlib import contextmanager, nullcontext

from epochline.cli import database


def use_a_ledger(*rows, **answers):
    database.session = lambda dsn: nullcontext()
    database.ask = lambda opened, name, **values: [defaultdict(lambda: None, one) for one in answers.get(name, rows)]


def use_a_kafka():
    from epochline.kafka.source import KafkaOffsets
    from epochline.protocol.offsets import TopicPartition
    from epochline.protocol.planning import PartitionView, SourceView

    tp = TopicPartition(topic="plain", partition=0, topic_id="one")
    one = PartitionView(tp=tp, log_start=0, last_stable=9, high_watermark=9)
    KafkaOffsets.one_client = lambda source: nullcontext()
    KafkaOffsets.look = lambda source, wanted: SourceView(cluster_id="c", partitions=(one,))
    KafkaOffsets.mirrored = lambda source, group: {}
"""


Environment = dict[str, str]


def environment_with(**more: str) -> Environment:
    """The variables of this process without those that configure Airflow and Epochline, and ``more``."""
    paths = os.pathsep.join(str(PROJECT / folder) for folder in ("include", "spark_jobs", "."))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "EPOCHLINE"))}
    return {**kept, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore", **more}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A home without a stack, a folder with one declaration, and connections to servers that nobody reaches."""
    (tmp_path / "declared.py").write_text(DECLARED)
    return environment_with(
        EPOCHLINE_HOME=str(tmp_path / "home"),
        EPOCHLINE_DAGS=str(tmp_path),
        AIRFLOW_CONN_EPOCHLINE_POSTGRES="postgres://nobody@192.0.2.1/none",
        AIRFLOW_CONN_EPOCHLINE_KAFKA="kafka://192.0.2.1:9092",
    )


def run(code: str, environment: Environment) -> tuple[str, set[str]]:
    """What the code prints, and the modules that its process has imported by its end."""
    last = "\nimport json, sys\nprint()\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", code + last]
    done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *printed, modules = done.stdout.splitlines()
    return "\n".join(printed), set(json.loads(modules))


def command(*arguments: str, before: str = "") -> str:
    """Code that runs a command, with the lines of ``before`` run first."""
    return f"""{before}
import sys

from epochline.cli import main

sys.argv = ["epochline", *{arguments!r}]
try:
    main()
except SystemExit:
    pass
"""


def those(modules: set[str], *unwanted: str) -> set[str]:
    return {*modules, *(module.partition(".")[0] for module in modules)} & set(unwanted)


# The package.


@pytest.mark.parametrize("name", epochline.__all__)
def test_every_name_of_the_package_resolves(name: str) -> None:
    assert getattr(epochline, name) is not None
    assert name in dir(epochline)


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import epochline", {"pydantic", *HEAVY}),
        # A DAG file is parsed every few seconds: functions are named, not imported.
        (DECLARING, {"pipelines.access_log", *HEAVY}),
        # A parser of SQL takes a third of a second, in every command and every pass of Airflow over the DAGs.
        ("import epochline; epochline.Pipeline, epochline.Windowed, epochline.WindowedQuery", {"sqlglot"}),
        # Airflow loads plugins in every process; the pages are made by the first request.
        ("import epochline.airflow.pages.plugin", {"fastapi", "jinja2", "sqlalchemy"}),
        ("import epochline_examples.access_log.check", {"epochline"}),
    ],
    ids=["the package", "a declaration", "a pipeline without a query", "a task's plugin", "the comparison of a log"],
)
def test_what_is_imported_loads_nothing_that_it_does_not_need(
    environment: Environment, code: str, unwanted: set[str]
) -> None:
    _, modules = run(code, environment)

    assert not those(modules, *unwanted)


# The command line.


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_says_first(name: str) -> None:
    assert load(name).help.split("\n\n")[0].split() == summaries()[name].split()


def test_every_action_is_a_command_in_the_order_of_the_actions() -> None:
    assert [name for name in COMMANDS if name in ACTIONS] == list(ACTIONS)


def test_commands_are_listed_in_the_order_of_the_table() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "200"}).output
    listed = [line.split()[1] for line in shown.partition("Commands")[2].splitlines() if line.startswith("│ ")]

    assert [word for word in listed if word in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_help_imports_no_driver_and_no_pydantic(environment: Environment, option: str) -> None:
    said, modules = run(command(option), environment)

    assert "epochline" in said
    assert not those(modules, "pydantic", "psutil", *HEAVY)
    ours = {one for one in modules if one.startswith("epochline.")}
    told = {"epochline.declare", "epochline.declare.version"} if option == "--version" else set()
    assert ours == {"epochline.cli", "epochline.cli.commands", "epochline.errors", *told}


LEDGER = SERVERS + "\nuse_a_ledger({'pipeline': 'plain', 'epoch_id': 7, 'kind': 'regular'})"
NO_EPOCH = SERVERS + "\nuse_a_ledger(standing=[])\nuse_a_kafka()"


@pytest.mark.parametrize(
    ("arguments", "before", "shown", "drivers"),
    [
        (("ledger",), LEDGER, "plain", {"psycopg2"}),
        (("ledger", "plain"), LEDGER, "plain", {"psycopg2"}),
        (("lag",), NO_EPOCH, "plain: 9 records behind", {"psycopg2", "kafka"}),
        (("status",), "", "stopped", {"psycopg2"}),
    ],
    ids=["ledger", "ledger of one pipeline", "lag", "status of a stack without a Kafka"],
)
def test_a_command_imports_only_the_drivers_of_the_servers_that_it_asks(
    environment: Environment, arguments: tuple[str, ...], before: str, shown: str, drivers: set[str]
) -> None:
    said, modules = run(command(*arguments, before=before), environment)

    assert shown in said
    assert not those(modules, *HEAVY - drivers)
    assert arguments != ("ledger",) or "epochline.declare.pipeline" not in modules


# Airflow's parse of a DAG file, and its tasks.


def test_the_parse_of_a_dag_file_imports_no_driver_no_spark_and_no_arrow(environment: Environment) -> None:
    """Airflow itself imports SQLAlchemy."""
    parse = "import runpy\nassert runpy.run_path('dags/access_log.py')['dag'].task_ids"

    _, modules = run(parse, environment)

    assert not those(modules, "fastapi", "fastavro", "pgpq", "sqlglot", *HEAVY - {"airflow", "sqlalchemy"})


TASKS = """
import runpy
import sys
from types import SimpleNamespace

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from epochline import Files, KafkaTopic, PostgresTable, Text
from epochline.airflow import connections, operators
from epochline.airflow.dag_file import epoch_dag
from tests.contract.worlds import fake_world, orders

runpy.run_path("dags/access_log.py")["dag"].get_task("pre_commit")

# The adapters, as a task makes them: none of them connects before it is asked something.
columns = {"value": "text"}
topic, files = KafkaTopic(topic="out", columns=columns, value=Text()), Files(path=sys.argv[1], columns=columns)
shown = orders(name="shown", sinks=[PostgresTable(table="shown", columns=columns), topic, files])
assert "publish" in epoch_dag(shown).task_ids
ledger = connections.adapters().ledger(shown)
connections.adapters().offsets(shown)
for sink in shown.post_commit_sinks:
    ledger.sink(shown, sink.name)

# The use cases, on a ledger and a Kafka in memory.
world = fake_world()
dag = epoch_dag(world.pipeline)
hosted = SimpleNamespace(ledger=lambda pipeline: world.ledger, offsets=lambda pipeline: world.kafka)
operators.adapters = lambda: hosted
operators.writers_of = lambda pipeline: 1


class Events:
    def __getitem__(self, alias):
        return self

    def ascending(self, order):
        return self

    def limit(self, count):
        return []

    def add(self, asset, extra):
        print("SAID event", asset.uri, extra["epoch_id"])


def execute(task, who, epoch=None):
    context = {
        "ti": SimpleNamespace(
            dag_id="orders", run_id=who, get_task_states=lambda **asked: {}, xcom_push=lambda key, value: None
        ),
        "dag_run": SimpleNamespace(dag_id="orders", run_id=who, run_type="manual", conf={}),
        "inlet_events": Events(), "outlet_events": Events(),
    }
    if epoch is None:
        task.record_limit = task.note = None
    else:
        task.epoch_id = epoch
    try:
        print("SAID", task.task_id, task.execute(context))
    except (AirflowFailException, AirflowSkipException) as ended:
        print("SAID", task.task_id, type(ended).__name__, ended)


execute(dag.get_task("plan_epoch"), "run-1")
world.to_sealed("run-1")
execute(dag.get_task("commit_epoch"), "run-1", "1")
world.kafka.produce("orders", 0, 3)
execute(dag.get_task("plan_epoch"), "run-2")
execute(dag.get_task("abort_epoch"), "run-2", "2")
execute(operators.PublishOperator(task_id="publish", pipeline=world.pipeline), "run-2", "")
"""


def test_a_task_that_plans_commits_aborts_or_publishes_imports_only_what_it_needs(tmp_path: Path) -> None:
    """The tasks of a pipeline, all but ``pre_commit``, need no Spark, no pandas and no database model of Airflow."""
    environment = environment_with(
        AIRFLOW_HOME=str(tmp_path),
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{tmp_path / 'airflow.db'}",
        AIRFLOW_CONN_EPOCHLINE_POSTGRES="postgres://nobody@192.0.2.1/none",
        AIRFLOW_CONN_EPOCHLINE_KAFKA='{"extra": {"bootstrap.servers": "192.0.2.1:9092"}}',
    )
    said, modules = run(f"import sys\nsys.argv = ['tasks', {str(tmp_path / 'files')!r}]\n{TASKS}", environment)

    ended = [" ".join(line.split()[1:3]) for line in said.splitlines() if line.startswith("SAID")]
    assert ended == [
        "plan_epoch 1", "event epochline://orders/orders", "commit_epoch None", "plan_epoch 2",
        "abort_epoch AirflowFailException", "event epochline://orders/orders", "publish None",
    ]  # fmt: skip
    assert {"epochline.postgres.ledger.transactions", "epochline.kafka.source", "epochline.sinks.files", "epochline.sinks.topic"} <= modules  # fmt: skip
    assert not those(modules, "pyspark", "pandas", "pyarrow", "numpy", "alembic")
    assert "epochline.airflow.lineage_events" not in modules
    assert "airflow.models.dagrun" not in modules
    assert "airflow.providers.standard.operators.trigger_dagrun" not in modules
