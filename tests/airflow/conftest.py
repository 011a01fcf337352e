"""A real Airflow next to the session's PostgreSQL and Kafka, driven through its REST API as a person would."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from epochline.config.discovery import find, find_all
from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger
from tests.conftest import AIRFLOW_DAGS, kill_airflow
from tests.databases import query
from tests.integration.kafka_topics import admin_of, group_offsets, make_topic, produce
from tests.waiting import wait_for

PATIENCE_SECONDS = 300.0
RUN_BY_THEMSELVES = frozenset({"scheduled", "beside", "backfilled"})
"""DAGs with a schedule, which would run before their topics are there: their tests unpause them."""


_STARTED = pytest.StashKey[Stack]()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Airflow after the last test of this folder: it takes a third of a core, also when it has nothing to do."""
    stack = item.session.stash.get(_STARTED, None)
    if stack is not None and nextitem is not None and Path(__file__).parent not in nextitem.path.parents:
        kill_airflow(stack)
        del item.session.stash[_STARTED]


def eventually(what: str, check: Callable[[], Any], seconds: float = PATIENCE_SECONDS, every: float = 0.2) -> Any:
    """Wait with a scheduler's patience."""
    return wait_for(what, check, seconds, every)


@dataclass
class Scheduler:
    """One Airflow, and the database that its pipelines write to."""

    stack: Stack
    token: str

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.stack.airflow.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            error.close()
            raise AssertionError(f"{method} {path}: {error.code} {text}") from None

    def pause(self, dag: str, paused: bool) -> None:
        self.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})

    def trigger(self, dag: str, **conf: Any) -> str:
        return self.call("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})["dag_run_id"]

    def state(self, dag: str, run: str) -> str:
        return self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")["state"]

    def wait(self, dag: str, run: str) -> str:
        return eventually(
            f"{run} of {dag} ends",
            lambda: (state := self.state(dag, run)) in ("success", "failed") and state,
            every=0.5,
        )

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

    def clear(self, dag: str, run: str, tasks: Sequence[str], *, only_failed: bool = False) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": run,
            "task_ids": list(tasks),
            "only_failed": only_failed,
            "include_downstream": True,
            "reset_dag_runs": True,
        }
        self.call("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body)
        eventually("the run runs again", lambda: self.state(dag, run) not in ("success", "failed"), 30)

    def task_process(self, dag: str, run: str, task: str) -> psutil.Process:
        """The process that executes a task's code; its parent watches over it."""
        ti = self.instances(dag, run)[task]["id"]
        return next(p for p in _processes() if p.cmdline()[:1] == [f"airflow worker -- {ti}"])

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        return query(self.stack.postgres.dsn(), text, *values)

    def make_targets(self, pipeline: str) -> None:
        ledger = PostgresLedger(self.stack.postgres.dsn())
        with ledger.transaction() as tx:
            tx.targets.create(find(pipeline, AIRFLOW_DAGS))

    def produce(
        self, topic: str, values: dict[int, Sequence[str]], *, partitions: int = 4, at: datetime | None = None
    ) -> None:
        """Append values to partitions, with their timestamps where given, the topic made where missing."""
        milliseconds = None if at is None else int(at.timestamp() * 1000)
        bootstrap = self.stack.kafka.bootstrap_servers
        with admin_of(bootstrap) as admin:
            there = topic in admin.list_topics()
        if not there:
            make_topic(bootstrap, topic, partitions)
        for partition, some in values.items():
            produce(bootstrap, topic, map(str.encode, some), partition=partition, timestamp_ms=milliseconds)

    def prepare(self, pipeline: str, values: dict[int, Sequence[str]]) -> None:
        """Targets and records of a pipeline that a test is about to run."""
        self.make_targets(pipeline)
        self.produce(pipeline, values)

    def group_offsets(self, pipeline: str) -> dict[int, int]:
        return group_offsets(self.stack.kafka.bootstrap_servers, f"epochline.{pipeline}")

    def heads(self, pipeline: str) -> dict[int, int]:
        return dict(self.query("SELECT partition, next_offset FROM epochline.heads WHERE pipeline = %s", pipeline))

    def epoch(self, pipeline: str, epoch_id: int) -> tuple[str, int]:
        found = self.query(
            "SELECT state, attempt FROM epochline.epochs WHERE pipeline = %s AND epoch_id = %s", pipeline, epoch_id
        )
        return found[0] if found else ("", 0)

    def parts(self, pipeline: str, attempt: int, epoch: int = 1) -> int:
        """Spark partitions whose transaction of the attempt is committed."""
        return self.query(
            "SELECT count(DISTINCT spark_partition) FROM epochline.part JOIN epochline.attempt USING (attempt_id)"
            " WHERE pipeline = %s AND epoch_id = %s AND attempt = %s",
            pipeline, epoch, attempt,
        )[0][0]  # fmt: skip

    def writers(self, pipeline: str, attempt: int) -> int:
        """Sessions of the attempt's writers that hold rows in an open transaction."""
        return self.query(
            "SELECT count(*) FROM pg_stat_activity s JOIN epochline.attempt a"
            " ON s.application_name LIKE 'epochline:' || a.attempt_id || ':%%'"
            " WHERE a.pipeline = %s AND a.epoch_id = 1 AND a.attempt = %s AND s.state = 'idle in transaction'",
            pipeline, attempt,
        )[0][0]  # fmt: skip

    def staging_tables(self) -> list[str]:
        return [
            name for (name,) in self.query("SELECT tablename FROM pg_tables WHERE schemaname = 'epochline_staging'")
        ]

    def driver(self, pipeline: str, attempt: int) -> psutil.Process:
        """The JVM of an attempt's Spark driver."""
        wanted = ["--pipeline", pipeline], ["--attempt", str(attempt)]

        def found() -> psutil.Process | None:
            for process in _processes():
                command = process.cmdline()
                follows = [command[i : i + 2] for i in range(len(command))]
                if "java" in command[0] and all(pair in follows for pair in wanted):
                    return process
            return None

        return eventually(f"attempt {attempt} of {pipeline} has a driver", found, 60)


def _processes() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.cmdline():
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


@pytest.fixture(scope="session")
def scheduler(stack: Stack, request: pytest.FixtureRequest) -> Scheduler:
    """Airflow with the DAGs of ``tests/airflow/dags``, all of them unpaused."""
    stack.up(parts=("kafka", "airflow"))
    request.session.stash[_STARTED] = stack
    one = Scheduler(stack, stack.airflow.token())
    expected = set(find_all(AIRFLOW_DAGS))
    eventually(
        "every DAG is there",
        lambda: expected <= {dag["dag_id"] for dag in one.call("GET", "/api/v2/dags?limit=100")["dags"]},
        120,
    )
    for dag in expected - RUN_BY_THEMSELVES:
        one.pause(dag, False)
    return one
