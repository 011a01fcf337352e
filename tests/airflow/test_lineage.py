"""What an Airflow sends over HTTP beside real epochs: lineage by its OpenLineage provider, figures by OpenTelemetry."""

import json
import shutil
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from uv import find_uv_bin

from epochline.local import credentials
from epochline.local.stack import Stack
from tests.airflow import rest
from tests.airflow.conftest import Scheduler, Values, eventually
from tests.conftest import COMPILED, FUNCTIONS, throw_away
from tests.databases import QUICK
from tests.openlineage import problems
from tests.ports import choose_ports

PROVIDER = Path(__file__).with_name("openlineage.txt")
API_KEY = "canary-of-the-catalogue-5d1f"
SECONDS = 3
"""How long the provider may keep a task."""

DAGS = """
from datetime import timedelta

from epochline import Files, FixedDelay, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Settings, Text, epoch_dag

columns = {{"value": "text"}}


def told(name, *more):
    tables = [PostgresTable(table=table, columns=columns) for table in (name, f"{{name}}_again")]
    return epoch_dag(
        Pipeline(
            name=name, source=KafkaSource(topics=name), parse="scripted:parse", record=columns, sinks=[*tables, *more],
            settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1)), parallelism=2),
        )
    )


shown = told("shown", KafkaTopic(topic="shown_out", value=Text()), Files(path="{files}", columns=columns))
failing, hanging, measured, alone = map(told, ("failing", "hanging", "measured", "alone"))
"""

DECLARED = ("shown", "failing", "hanging", "measured", "alone")

Event = Mapping[str, Any]


class Catalogue:
    """Receives events over HTTP, as a catalogue does; while it ``hangs`` it takes a request and never answers.

    It is OpenTelemetry's collector as well.
    """

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.exports: list[bytes] = []
        self.keys: set[str | None] = set()
        self.asked, self.hangs = 0, threading.Event()
        self.goes_on = threading.Event()
        catalogue = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/metrics":
                    catalogue.exports.append(content)
                    self.answer(200)
                    return
                catalogue.asked += 1
                if catalogue.hangs.is_set():
                    catalogue.goes_on.wait()
                    return
                catalogue.keys.add(self.headers["Authorization"])
                catalogue.bodies.append(content.decode())
                self.answer(201)

            def answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.goes_on.set()
        self.server.shutdown()
        self.server.server_close()

    def of(self, dag: str) -> list[Event]:
        """The events of a pipeline's tasks, in the order of their arrival."""
        events = map(json.loads, list(self.bodies))
        return [event for event in events if event["job"]["name"].startswith(f"{dag}.")]

    def tries(self, dag: str, task: str) -> list[list[Event]]:
        """The events of each try of a task: those that have the same run id."""
        by_run: dict[str, list[Event]] = defaultdict(list)
        for event in self.of(dag):
            if event["job"]["name"] == f"{dag}.{task}":
                by_run[event["run"]["runId"]].append(event)
        return list(by_run.values())


@pytest.fixture(scope="module")
def catalogue() -> Iterator[Catalogue]:
    one = Catalogue()
    yield one
    one.close()


@pytest.fixture(scope="module")
def airflow(catalogue: Catalogue) -> Iterator[Scheduler]:
    """An Airflow with the provider, which no other test has."""
    home = Path(tempfile.mkdtemp(prefix="epochline-lineage-"))
    packages, dags = home / "provider", home / "dags"
    install = [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--target", str(packages), "-r", str(PROVIDER)]
    subprocess.run(install, check=True)
    dags.mkdir()
    (dags / "told.py").write_text(DAGS.format(files=home / "files"))
    transport = {"type": "http", "url": catalogue.url, "auth": {"type": "api_key", "apiKey": API_KEY}}
    stack = Stack(
        home / "home", dags_folder=dags, extra_pythonpath=(FUNCTIONS, COMPILED, packages), postgres_settings=QUICK,
        airflow_config={
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": str(SECONDS),
            # Whatever the provider can tell of a task, it does.
            "AIRFLOW__OPENLINEAGE__INCLUDE_FULL_TASK_INFO": "True",
            "AIRFLOW__OPENLINEAGE__DEBUG_MODE": "True",
            "AIRFLOW__OPENLINEAGE__SPARK_INJECT_TRANSPORT_INFO": "True",
            "AIRFLOW__LOGGING__JSON_LOGS": "True",
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": catalogue.url,
            "EPOCHLINE_COMPILED": str(home / "compiled"),
        },
    )  # fmt: skip
    choose_ports(stack.home)
    try:
        stack.up(parts=("kafka", "airflow"))
        one = Scheduler(stack, rest.token(stack.airflow), dags)
        eventually("every DAG is there", lambda: set(DECLARED) <= one.dags(), 120)
        for dag in DECLARED:
            one.pause(dag, False)
        yield one
    finally:
        throw_away(stack)
        shutil.rmtree(home, ignore_errors=True)


def all_of(catalogue: Catalogue, dag: str, expected: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Wait for the last events of a run: a task tells them after Airflow knows that it has ended."""

    def types() -> dict[str, list[list[str]]]:
        return {
            task: [[one["eventType"] for one in tried] for tried in catalogue.tries(dag, task)] for task in expected
        }

    with suppress(AssertionError):
        eventually("every event is there", lambda: types() == expected, 30)
    assert types() == expected


def secrets(airflow: Scheduler) -> list[str]:
    held = credentials.require(airflow.stack.home).model_dump(exclude={"kafka_cluster_id"})
    return [API_KEY, "postgresql://", *held.values()]


def json_lines(log: Path) -> list[Any]:
    """The lines of a log of Airflow that are whole; each is JSON, also one with a traceback."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def names(datasets: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {one["name"]: one["namespace"] for one in datasets}


@pytest.mark.slow
def test_each_task_of_an_epoch_tells_a_catalogue_what_it_read_and_wrote(
    airflow: Scheduler, catalogue: Catalogue
) -> None:
    """SEC-4: every event is what the specification wants, and holds no secret."""
    values: Values = {p: [f"a-{p}", f"b-{p}"] for p in range(4)}
    airflow.prepare("shown", values)
    airflow.produce("shown_out", {})

    states = airflow.run("shown")

    assert {task: state for task, state in states.items() if state != "success"} == {"abort_epoch": "skipped"}
    done = [["START", "COMPLETE"]]
    all_of(catalogue, "shown", {task: done for task in states if task != "run"})
    assert {event["job"]["name"]: problems(event) for event in catalogue.of("shown") if problems(event)} == {}
    ended = {task: catalogue.tries("shown", task)[0][-1] for task in states if task != "run"}
    kafka, postgres = airflow.stack.kafka.bootstrap_servers, f"postgres://127.0.0.1:{airflow.stack.postgres.port}"
    for task in ("plan_epoch", "pre_commit", "commit_epoch"):
        assert names(ended[task]["inputs"]) == {"shown": f"kafka://{kafka}"}
        offsets = ended[task]["inputs"][0]["inputFacets"]["epochline_offsets"]
        assert offsets["partitions"] == [{"partition": p, "start": 0, "until": 2} for p in range(4)]
    commit = ended["commit_epoch"]
    assert names(commit["outputs"]) == {f"epochline.public.{table}": postgres for table in ("shown", "shown_again")}
    for table in commit["outputs"]:
        columns = airflow.query(
            "SELECT column_name::text FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position",
            table["name"].rpartition(".")[2],
        )
        assert [(one["name"],) for one in table["facets"]["schema"]["fields"]] == columns
        assert table["outputFacets"]["outputStatistics"]["rowCount"] == 8
    shown = ended["publish"]
    assert names(shown["outputs"]) == {
        "shown_out": f"kafka://{kafka}",
        str(airflow.stack.home.root.parent / "files"): "file",
    }
    assert {one["outputFacets"]["outputStatistics"]["rowCount"] for one in shown["outputs"]} == {8}
    assert names(shown["inputs"]) == {"shown": f"kafka://{kafka}"}
    states_told = {task: event["run"]["facets"]["epochline_epoch"].get("state") for task, event in ended.items()}
    assert states_told == {
        "plan_epoch": "PLANNED", "pre_commit": "PRE_COMMITTED", "commit_epoch": "COMMITTED", "abort_epoch": "COMMITTED",
        "publish": None,
    }  # fmt: skip
    assert catalogue.keys == {f"Bearer {API_KEY}"}
    assert [secret for secret in secrets(airflow) for body in catalogue.bodies if secret in body] == []
    airflow.assert_exact("shown", values)


@pytest.mark.slow
def test_a_task_that_is_tried_again_has_one_run_id_per_try_and_tells_no_table(
    airflow: Scheduler, catalogue: Catalogue
) -> None:
    """SEC-4: the epoch is aborted, and what its tasks read is told without a row. Each line of each log is JSON."""
    airflow.prepare("failing", {0: ["good"], 1: ["raise"]})

    states = airflow.run("failing")

    assert (states["run"], states["pre_commit"]) == ("failed", "failed")
    failed = ["START", "FAIL"]
    all_of(
        catalogue,
        "failing",
        {"plan_epoch": [["START", "COMPLETE"]], "pre_commit": [failed] * 2, "abort_epoch": [failed]},
    )
    events = catalogue.of("failing")
    assert [problems(event) for event in events if problems(event)] == []
    assert [event["outputs"] for event in events if event.get("outputs")] == []
    tries = [tried[-1]["run"]["facets"]["epochline_epoch"] for tried in catalogue.tries("failing", "pre_commit")]
    assert [(one["state"], one["attempt"]) for one in tries] == [("PLANNED", 1), ("PLANNED", 2)]
    [[_, aborted]] = catalogue.tries("failing", "abort_epoch")
    assert aborted["run"]["facets"]["epochline_epoch"]["state"] == "ABORTED"
    assert [secret for secret in secrets(airflow) for body in catalogue.bodies if secret in body] == []
    logs = airflow.stack.home.logs
    said = {log.name: json_lines(log) for log in (*logs.glob("airflow-*.log"), *logs.glob("airflow/**/*.log"))}
    assert {f"airflow-{name}.log" for name in airflow.stack.airflow.pids} <= said.keys()
    raised = [json_lines(log) for log in logs.glob("airflow/dag_id=failing/*/task_id=pre_commit/*.log")]
    assert [any("error_detail" in line for line in lines) for lines in raised] == [True, True]


@pytest.mark.slow
def test_a_catalogue_that_never_answers_keeps_no_epoch_from_its_commit(
    airflow: Scheduler, catalogue: Catalogue
) -> None:
    """INV-6: the provider ends each of its forks, and the task goes on."""
    values: Values = {p: [f"h-{p}"] for p in range(4)}
    airflow.prepare("hanging", values)
    asked = catalogue.asked
    catalogue.hangs.set()
    try:
        states = airflow.run("hanging")
    finally:
        catalogue.hangs.clear()

    assert states["run"] == "success"
    assert catalogue.asked >= asked + 6
    airflow.assert_exact("hanging", values)


@pytest.mark.slow
def test_a_task_that_is_killed_beside_a_silent_catalogue_leaves_the_epoch_to_the_next_try(
    airflow: Scheduler, catalogue: Catalogue
) -> None:
    """INV-4: the next try has another run id, and commits."""
    values: Values = {p: [f"again-{p}"] for p in range(4)}
    before = airflow.committed("hanging")
    airflow.produce("hanging", values)
    catalogue.hangs.set()
    run = airflow.trigger("hanging")
    try:
        process = eventually("pre_commit runs", lambda: running(airflow, run), 60)
        process.kill()
    finally:
        catalogue.hangs.clear()

    assert airflow.wait("hanging", run) == "success"
    assert airflow.committed("hanging") == before + 1
    airflow.assert_exact("hanging", {p: [f"h-{p}", f"again-{p}"] for p in range(4)})


def exported(catalogue: Catalogue, pipeline: str) -> dict[str, list[float]]:
    """The values of each gauge of a pipeline's epochs, in the order of their times."""
    points = [
        (point.time_unix_nano, metric.name, point.as_double or float(point.as_int))
        for content in list(catalogue.exports)
        for resource in ExportMetricsServiceRequest.FromString(content).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.gauge.data_points
        if metric.name.endswith(f".{pipeline}")
    ]
    values: dict[str, list[float]] = defaultdict(list)
    for _, name, value in sorted(points):
        values[name.removeprefix("airflow.epochline.epoch.").removesuffix(f".{pipeline}")].append(value)
    return dict(values)


@pytest.mark.slow
def test_opentelemetry_gets_the_figures_of_each_epoch_as_its_task_ends(
    airflow: Scheduler, catalogue: Catalogue
) -> None:
    """Issue 40: as protobuf over HTTP, although the process that sends them lives for one epoch."""
    airflow.prepare("measured", {0: ["a", "b"], 1: ["c"]})
    assert airflow.run("measured")["run"] == "success"
    airflow.produce("measured", {0: ["d"]})
    assert airflow.run("measured")["run"] == "success"

    eventually("both epochs are there", lambda: len(exported(catalogue, "measured").get("commit_seconds", ())) == 2, 30)
    values = exported(catalogue, "measured")
    seconds = [values.pop(name) for name in ("pre_commit_seconds", "commit_seconds")]

    assert values == {
        "committed": [1, 1], "attempts": [1, 1], "records": [3, 1], "records_skipped": [0, 0],
        "records_quarantined": [0, 0], "rows_written": [6, 2],
    }  # fmt: skip
    assert all(0 < one < 60 for both in seconds for one in both)


@pytest.mark.slow
def test_receivers_that_are_down_keep_no_epoch_from_its_commit(airflow: Scheduler, catalogue: Catalogue) -> None:
    """INV-6: neither the catalogue nor OpenTelemetry's collector listens. This test ends them both."""
    values: Values = {p: [f"down-{p}"] for p in range(4)}
    airflow.prepare("alone", values)
    catalogue.close()

    run = airflow.trigger("alone")

    assert airflow.wait("alone", run) == "success"
    airflow.assert_exact("alone", values)


def running(airflow: Scheduler, run: str) -> Any:
    with suppress(StopIteration, KeyError):
        return airflow.task_process("hanging", run, "pre_commit")
    return None
