"""A real Airflow next to the session's PostgreSQL and Kafka, driven through its REST API as a person would."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from epochline.cli.airflow_runs import FINISHED
from epochline.config.discovery import EXAMPLES, find
from epochline.config.places import project_folder
from epochline.declare.pipeline import Pipeline
from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger
from tests.airflow import rest
from tests.checker import Query, assert_chain, assert_counts
from tests.conftest import AIRFLOW_DAGS, FUNCTIONS, kill_airflow
from tests.databases import query
from tests.declared import find_all
from tests.integration.kafka_topics import admin_of, group_offsets, make_topic, produce
from tests.waiting import wait_for

INCLUDE = Path(__file__).parents[2] / "include"
PATIENCE_SECONDS = 300.0
RUN_BY_THEMSELVES = frozenset(
    {"scheduled", "backfilled", "crowded", "guest", "listed", "raising", "raising_by_default", "s_silent", "ticking"}
)
"""DAGs with a schedule, which would run before their topics are there: their tests unpause them."""
SHIPPED = frozenset(find_all(project_folder() / "dags" / EXAMPLES))

T = TypeVar("T")
Values = Mapping[int, Sequence[str]]
"""Records by partition."""

Terminal = Callable[..., str]
"""Runs a command of `epochline`; it gives what the command said, in one line."""

_STARTED = pytest.StashKey[Stack]()


@pytest.hookimpl(trylast=True)  # the fixtures of a module may still ask it
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Airflow after the last test of this folder: it takes a third of a core, also when it has nothing to do."""
    stack = item.session.stash.get(_STARTED, None)
    if stack is not None and nextitem is not None and Path(__file__).parent not in nextitem.path.parents:
        kill_airflow(stack)
        del item.session.stash[_STARTED]


def eventually(what: str, check: Callable[[], T | None], seconds: float = PATIENCE_SECONDS, every: float = 0.2) -> T:
    answer: T = wait_for(what, check, seconds, every)
    return answer


@dataclass
class Scheduled:
    name: str
    pipeline: Pipeline
    query: Query


@dataclass
class Scheduler:
    """One Airflow, and the database that its pipelines write to."""

    stack: Stack
    token: str
    folder: Path = AIRFLOW_DAGS
    """Where its pipelines are declared."""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return rest.call(self.stack.airflow, self.token, method, path, body)

    def dags(self) -> set[str]:
        """All of them: an answer of Airflow has 100 at most."""
        found: list[str] = []
        while more := self.call("GET", f"/api/v2/dags?limit=100&offset={len(found)}&order_by=dag_id")["dags"]:
            found += [dag["dag_id"] for dag in more]
        return set(found)

    def pause(self, dag: str, paused: bool) -> None:
        self.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})

    def read_again(self, dag: str) -> None:
        """Let Airflow read a DAG's file now. It begins to look for records of an unpaused DAG when it reads its file."""
        file = self.call("GET", f"/api/v2/dags/{dag}")["file_token"]
        try:
            self.call("PUT", f"/api/v2/parseDagFile/{file}")
        except AssertionError as error:
            # Another test asked for the same file, and the DAG processor has not come to it yet.
            if ": 409 " not in str(error):
                raise

    def trigger(self, dag: str, **conf: Any) -> str:
        return str(self.call("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})["dag_run_id"])

    def trigger_as(self, dag: str, run: str) -> None:
        """Trigger a run with an id of one's own."""
        self.call("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "dag_run_id": run})

    def state(self, dag: str, run: str) -> str:
        return str(self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")["state"])

    def wait(self, dag: str, run: str) -> str:
        eventually(f"{run} of {dag} ends", lambda: self.state(dag, run) in FINISHED, every=0.5)
        return self.state(dag, run)

    def run(self, dag: str, **conf: Any) -> dict[str, str]:
        """Trigger a run, wait for it, and give its task's states with its own under ``run``."""
        run = self.trigger(dag, **conf)
        return {"run": self.wait(dag, run), **self.tasks(dag, run)}

    def instances(self, dag: str, run: str) -> dict[str, dict[str, Any]]:
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {one["task_id"]: one for one in found}

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        return {task: one["state"] for task, one in self.instances(dag, run).items()}

    def log(self, dag: str, run: str, task: str) -> str:
        tries = self.instances(dag, run)[task]["try_number"]
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{tries}?full_content=true"
        return json.dumps(self.call("GET", path))

    def said(self, dag: str, run: str, task: str) -> list[dict[str, Any]]:
        """The entries of the log of a task's last try that the task itself made, without Airflow's around them."""
        tries = self.instances(dag, run)[task]["try_number"]
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{tries}?full_content=true"
        entries: list[dict[str, Any]] = self.call("GET", path)["content"]
        events = [one["event"] for one in entries]
        begun, ended = (events.index(f"::group::{part}", 1) for part in ("Pre Execute", "Post Execute"))
        return entries[events.index("::endgroup::", begun) + 1 : ended]

    def outcome(self, dag: str, run: str, task: str) -> str:
        """What a task shows in XCom of what came of its run's epoch."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/outcome"
        return str(self.call("GET", path)["value"])

    def account(self, dag: str) -> str:
        """What Airflow and the ledger know of a DAG, for a test that waited for it in vain."""
        told = self.call("GET", f"/api/v2/dags/{dag}")
        runs = self.call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=-run_after&limit=10")["dag_runs"]
        asked = "SELECT epoch_id, state, attempt, aborts, error FROM epochline.epochs WHERE pipeline = %s"
        airflow = self.stack.airflow
        said = (self.stack.home.logs / "airflow-triggerer.log").read_text(errors="replace").splitlines()
        return "\n".join(
            [
                f"Airflow: {airflow.health() or 'healthy'}; {dag} was parsed last at {told['last_parsed_time']}",
                *(f"{run['dag_run_id']} {run['state']}: {self.tasks(dag, run['dag_run_id'])}" for run in runs),
                f"heads {self.heads(dag)}, epochs {self.query(asked, dag)[-10:]}",
                *[line for line in said if "waking" in line or dag in line][-20:],
            ]
        )

    def links(self, dag: str, run: str, task: str) -> dict[str, str | None]:
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/links"
        return dict(self.call("GET", path)["extra_links"])

    def clear(self, dag: str, run: str, task: str, *, only_failed: bool = False) -> None:
        body = {
            "dry_run": False, "dag_run_id": run, "task_ids": [task], "only_failed": only_failed,
            "include_downstream": True, "reset_dag_runs": True,
        }  # fmt: skip
        self.call("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body)
        eventually("the run runs again", lambda: self.state(dag, run) not in FINISHED, 30)

    def cleared(self, dag: str, run: str, task: str, *, only_failed: bool = False) -> str:
        self.clear(dag, run, task, only_failed=only_failed)
        return self.wait(dag, run)

    @contextmanager
    def slots(self, count: int) -> Iterator[None]:
        pool = "/api/v2/pools/default_pool"
        before = self.call("GET", pool)["slots"]
        self.call("PATCH", f"{pool}?update_mask=slots", {"slots": count})
        try:
            yield
        finally:
            self.call("PATCH", f"{pool}?update_mask=slots", {"slots": before})

    def task_process(self, dag: str, run: str, task: str) -> psutil.Process:
        """The process that executes a task's code; its parent watches over it."""
        ti = self.instances(dag, run)[task]["id"]
        return next(process for process, command in processes() if command[0] == f"airflow worker -- {ti}")

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        return query(self.stack.postgres.dsn(), text, *values)

    def count(self, text: str, *values: Any) -> int:
        return int(self.query(text, *values)[0][0])

    def make_targets(self, pipeline: str) -> None:
        with PostgresLedger(self.stack.postgres.dsn()).transaction() as tx:
            tx.targets.create(find(pipeline, self.folder))

    def produce(self, topic: str, values: Values, *, at: datetime | None = None) -> None:
        """Append values to partitions, with their timestamps where given, the topic made where missing."""
        milliseconds = None if at is None else int(at.timestamp() * 1000)
        bootstrap = self.stack.kafka.bootstrap_servers
        with admin_of(bootstrap) as admin:
            if topic not in admin.list_topics():
                make_topic(bootstrap, topic, 4)
        for partition, some in values.items():
            produce(bootstrap, topic, map(str.encode, some), partition=partition, timestamp_ms=milliseconds)

    def prepare(self, pipeline: str, values: Values) -> None:
        self.make_targets(pipeline)
        self.produce(pipeline, values)

    def group_offsets(self, pipeline: str) -> dict[int, int]:
        return group_offsets(self.stack.kafka.bootstrap_servers, f"epochline.{pipeline}")

    def heads(self, pipeline: str) -> dict[int, int]:
        return dict(self.query("SELECT partition, next_offset FROM epochline.heads WHERE pipeline = %s", pipeline))

    def epoch(self, pipeline: str, epoch_id: int) -> tuple[str, int]:
        """The state of an epoch and the number of its last attempt."""
        asked = "SELECT state, attempt FROM epochline.epochs WHERE pipeline = %s AND epoch_id = %s"
        return next(((state, attempt) for state, attempt in self.query(asked, pipeline, epoch_id)), ("", 0))

    def committed(self, pipeline: str) -> int:
        asked = "SELECT count(*) FROM epochline.epochs WHERE pipeline = %s AND state = 'COMMITTED'"
        return self.count(asked, pipeline)

    def assert_exact(self, pipeline: str, values: Values) -> None:
        """Both targets hold each record once; chain and counts are whole; nothing is left over (G3, INV-1, I1, I2, I4, I6)."""
        produced = sorted((value, partition) for partition, some in values.items() for value in some)
        for table in (pipeline, f"{pipeline}_again"):
            assert sorted(self.query(f"SELECT value, _partition FROM {table}")) == produced
        assert self.heads(pipeline) == {p: len(some) for p, some in values.items()}
        assert self.group_offsets(pipeline) == self.heads(pipeline)
        assert self.staging_tables(pipeline) == []
        checked = Scheduled(pipeline, find(pipeline, self.folder), self.query)
        assert_chain(checked)
        assert_counts(checked)

    def sessions(self, pipeline: str) -> list[str | None]:
        """The states of the sessions of a pipeline's writers. PostgreSQL hides the state of another login's session."""
        asked = (
            "SELECT s.state FROM pg_stat_activity s JOIN epochline.attempt a"
            " ON s.application_name LIKE 'epochline:' || a.attempt_id || ':%%' WHERE a.pipeline = %s"
        )
        return [state for (state,) in self.query(asked, pipeline)]

    def staging_tables(self, pipeline: str = "") -> list[str]:
        found = self.query("SELECT tablename FROM pg_tables WHERE schemaname = 'epochline_staging'")
        return [name for (name,) in found if pipeline in name]

    def driver(self, pipeline: str) -> psutil.Process:
        """The JVM of the Spark driver of a pipeline's first attempt, which spark-submit started."""
        return self._first_attempt(pipeline, "java")

    def client(self, pipeline: str) -> psutil.Process:
        """The process whose job Spark's server runs for a pipeline's first attempt."""
        return self._first_attempt(pipeline, "python")

    def _first_attempt(self, pipeline: str, program: str) -> psutil.Process:
        def found() -> psutil.Process | None:
            wanted = {("--pipeline", pipeline), ("--attempt", "1")}
            drivers = (one for one, command in processes() if program in command[0] and wanted <= {*pairwise(command)})
            return next(drivers, None)

        return eventually(f"{pipeline} has a {program} process", found, 60)


def processes() -> Iterator[tuple[psutil.Process, list[str]]]:
    return ((one, one.info["cmdline"]) for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"])


@pytest.fixture(scope="session")
def scheduler(stack: Stack, request: pytest.FixtureRequest) -> Scheduler:
    """Airflow with the DAGs of ``tests/airflow/dags``, unpaused but for those with a schedule and the shipped ones."""
    stack.up(parts=("kafka", "airflow"))
    request.session.stash[_STARTED] = stack
    one = Scheduler(stack, rest.token(stack.airflow))
    expected = set(find_all(AIRFLOW_DAGS))
    eventually("every DAG is there", lambda: expected <= one.dags(), 120)
    for dag in expected - RUN_BY_THEMSELVES - SHIPPED:
        one.pause(dag, False)
    return one


@pytest.fixture
def forgive(scheduler: Scheduler) -> Iterator[Path]:
    """A file that is not there yet; once it is, ``bad`` is a value like any other."""
    path = scheduler.stack.home.root / "forgive"
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def terminal(scheduler: Scheduler) -> Terminal:
    """Runs a command of `epochline` on the stack; it gives what the command said, and checks its exit code."""
    environment = {
        **os.environ, "EPOCHLINE_HOME": str(scheduler.stack.home.root), "EPOCHLINE_DAGS": str(AIRFLOW_DAGS),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(FUNCTIONS), str(INCLUDE), os.environ.get("PYTHONPATH")])),
        "COLUMNS": "300",
    }  # fmt: skip

    def epochline(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-c", "from epochline.cli import main; main()", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    return epochline
