"""Settings of epochs: what a DAG file makes of them, and under a real scheduler what restarts and time-outs do."""

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg2.extensions
import pytest
from sqlalchemy import event

from epochline.airflow.settings import STATEMENTS
from epochline.postgres.ledger.transactions import PostgresLedger
from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.interpreter import answer_without_airflow
from tests.integration.bench import NewBench, bench

__all__ = ["bench"]


@pytest.mark.parametrize(("pipeline", "attempts"), [("restarted", 3), ("unrestarted", 1)])
def test_an_attempt_that_always_fails_is_made_as_often_as_declared_and_leaves_no_staging(
    scheduler: Scheduler, pipeline: str, attempts: int
) -> None:
    """R1, R3, K11: two restarts three seconds apart, or none; then ABORTED and red; the tolerance of 0 is exceeded."""
    scheduler.prepare(pipeline, {p: [f"row-{p}"] for p in range(4)})

    run = scheduler.trigger(pipeline)
    assert scheduler.wait(pipeline, run) == "failed"

    path = f"/api/v2/dags/{pipeline}/dagRuns/{run}/taskInstances/pre_commit/tries"
    tried = sorted(scheduler.call("GET", path)["task_instances"], key=lambda one: one["try_number"])
    assert [one["try_number"] for one in tried] == [*range(1, attempts + 1)]
    for before, after in pairwise(tried):
        pause = datetime.fromisoformat(after["start_date"]) - datetime.fromisoformat(before["end_date"])
        assert pause >= timedelta(seconds=3)
    assert scheduler.epoch(pipeline, 1) == ("ABORTED", attempts)
    assert scheduler.staging_tables(pipeline) == []
    assert scheduler.heads(pipeline) == dict.fromkeys(range(4), 0)
    if pipeline == "restarted":
        paused = "SELECT paused_by, paused_reason FROM epochline.pipelines WHERE pipeline = 'restarted'"
        reason = "1 epochs in a row were aborted, of which 0 are tolerated"
        assert scheduler.query(paused) == [("epochline", reason)]
        dag = "/api/v2/dags/restarted"
        eventually("Airflow makes no more runs", lambda: scheduler.call("GET", dag)["is_paused"], 60)


@pytest.mark.parametrize("times", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_without_an_end_a_task_is_tried_again_and_again(scheduler: Scheduler, times: int) -> None:
    """R4: still trying after more than ten fast failures."""
    run = scheduler.trigger("endless")

    def planning() -> dict[str, Any]:
        return scheduler.instances("endless", run)["plan_epoch"]

    eventually("it is tried again and again", lambda: planning()["try_number"] >= times, every=1)

    assert scheduler.state("endless", run) == "running"
    # Airflow compares the number of the try with this one, and with nothing else.
    assert planning()["max_tries"] >= 1_000_000
    scheduler.call("PATCH", f"/api/v2/dags/endless/dagRuns/{run}", {"state": "failed"})
    # Green where the task waited for its next try, red where it ran (ADR 0011): which, is decided by milliseconds.
    assert scheduler.wait("endless", run) in ("failed", "success")
    assert scheduler.tasks("endless", run)["commit_epoch"] in ("skipped", "upstream_failed")
    assert scheduler.query("SELECT 1 FROM epochline.epoch WHERE pipeline = 'endless'") == []


def test_an_epoch_that_takes_too_long_is_aborted_and_the_next_takes_its_range(scheduler: Scheduler) -> None:
    """K10: no retry, though three are declared; C10: the second run has a time-out of its own, from its conf."""
    scheduler.prepare("timed_out", {0: ["first", "wait woken"], 1: ["second"], 2: [], 3: []})

    run = scheduler.trigger("timed_out")
    assert scheduler.wait("timed_out", run) == "failed"
    assert "was not staged and sealed within 0:00:25" in scheduler.log("timed_out", run, "pre_commit")
    assert scheduler.epoch("timed_out", 1) == ("ABORTED", 1)
    assert scheduler.staging_tables("timed_out") == []

    (scheduler.stack.home.root / "woken").touch()
    assert scheduler.run("timed_out", timeout=280)["run"] == "success"

    assert scheduler.epoch("timed_out", 2)[0] == "COMMITTED"
    assert sorted(scheduler.query("SELECT value FROM timed_out")) == [("first",), ("second",), ("wait woken",)]
    assert scheduler.query(
        "SELECT epoch_id, settings->'timeout'->>'value', settings->'timeout'->>'from' FROM epochline.epochs"
        " WHERE pipeline = 'timed_out' ORDER BY epoch_id"
    ) == [(1, "25.0", "declaration"), (2, "280.0", "run conf")]


READ = """
import json, warnings; warnings.simplefilter("ignore")
from datetime import timedelta
from epochline import FailureRate, FixedDelay, KafkaSource, NoRestart, Pipeline, PostgresTable, Settings, Text, epoch_dag

def dag(name, **fields):
    return epoch_dag(Pipeline(
        name=name, source=KafkaSource(topics="t"), parse=Text(),
        sinks=PostgresTable(table="t", columns={"value": "text"}), **fields,
    ))

second = timedelta(seconds=1)
found = {}
for one in [
    dag("by_hand"),
    dag("scheduled", schedule=10 * second),
    dag("word_count", profile="word_count"),
    dag("kafka_to_db", profile="kafka_to_db"),
    dag("checkpoint_demo", profile="checkpoint_demo"),
    dag("rate", schedule=10 * second, settings=Settings(restart=FailureRate(max_failures=3, interval=300, delay=7))),
    dag("none", schedule=10 * second, settings=Settings(restart=NoRestart(), minimum_pause=60)),
    dag("weaker", schedule=10 * second, settings=Settings(restart=FixedDelay(attempts=2, delay=5), timeout=30)),
]:
    found[one.dag_id] = {
        "interval": delta.total_seconds() if (delta := getattr(one.timetable, "delta", None)) else None,
        "failed_runs": one.max_consecutive_failed_dag_runs, "active_runs": one.max_active_runs,
        **{task.task_id: [task.retries, task.retry_delay.total_seconds(), task.execution_timeout.total_seconds()]
           for task in one.tasks},
    }
print("ANSWER" + json.dumps(found))
"""


COMMIT = 2 * 8 * 15 * 60
"""Seconds of the longest commit of one table and the quarantine, each with eight statements of a quarter of an hour."""
EXPECTED = {
    "by_hand": (None, 0, [9, 10, 120]),
    "scheduled": (10, 0, [9, 10, 120]),
    "word_count": (1, 11, [3, 10, 60]),
    "kafka_to_db": (10, 1, [9, 10, 600]),
    "checkpoint_demo": (1, 0, [9, 10, 60]),
    "rate": (10, 0, [1_000_000, 7, 120]),
    "none": (10, 0, [0, 0, 120]),
    "weaker": (10, 0, [2, 5, 30]),
}
"""By name: the interval, after how many failed runs Airflow pauses, and retries, delay and time-out of ``pre_commit``."""


def test_settings_become_what_airflow_calls_them(tmp_path: Path) -> None:
    """K8, K9, K10, K11, K14, C10, R1 to R3, R5: Airflow pauses at tolerance + 1, where its 0 means never."""
    file = tmp_path / "settings.toml"
    file.write_text('[settings]\ntimeout = 120\nrestart = {kind = "fixed_delay", attempts = 9}\n')

    dags = answer_without_airflow(READ, home=tmp_path, EPOCHLINE_SETTINGS=str(file))

    found = {name: (dag["interval"], dag["failed_runs"], dag["pre_commit"]) for name, dag in dags.items()}
    assert found == EXPECTED
    assert {dag["active_runs"] for dag in dags.values()} == {1}
    for dag in dags.values():
        assert dag["plan_epoch"][:2] == dag["commit_epoch"][:2] == dag["pre_commit"][:2]
    # What a strategy gave up on is cleaned up all the same, and a plan has time for its pause.
    assert {tuple(dag["abort_epoch"]) for dag in dags.values()} == {(2, 10.0, 300.0)}
    assert (dags["none"]["plan_epoch"][2], dags["rate"]["plan_epoch"][2]) == (360 + COMMIT, 300 + COMMIT)


ALLOWED = """
import json, warnings; warnings.simplefilter("ignore")
from types import SimpleNamespace
from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_dag

dag = epoch_dag(Pipeline(
    name="orders", source=KafkaSource(topics="orders"), parse=Text(),
    sinks=[PostgresTable(table=f"t{number}", columns={"value": "text"}) for number in range(5)],
))
plan, commit = dag.get_task("plan_epoch"), dag.get_task("commit_epoch")
read = [task.execution_timeout.total_seconds() for task in (plan, commit)]
for task in (plan, commit):
    task.pre_execute({"dag_run": SimpleNamespace(conf={})})
print("ANSWER" + json.dumps({"read": read, "run": [task.execution_timeout.total_seconds() for task in (plan, commit)]}))
"""


def test_the_tasks_that_may_commit_have_the_time_of_every_commit(tmp_path: Path, bench: NewBench) -> None:
    """INV-6: of several tables, and of an epoch that was sealed with a longer time-out than is declared today."""
    line = bench()
    line.pipeline = line.pipeline.model_copy(update={"commit_statement_timeout": timedelta(hours=3)})
    line.sealed({"k": "a", "v": 1})

    allowed = answer_without_airflow(ALLOWED, home=tmp_path, AIRFLOW_CONN_EPOCHLINE_POSTGRES=line.dsn)

    of_five, of_sealed = 6 * 8 * 15 * 60, 2 * 8 * 3 * 3600
    assert allowed == {"read": [300 + of_five, 60 + of_five], "run": [300 + of_sealed, 60 + of_sealed]}


@pytest.mark.parametrize("mode", ["append", "upsert", "add", "replace"])
def test_a_commit_goes_through_the_rows_of_a_table_in_no_more_statements_than_it_has_time_for(
    mode: str, bench: NewBench
) -> None:
    """The limit of the tasks counts them."""
    key = {"key": "k"} if mode in ("upsert", "add") else {}
    more = {"upsert": {"before_images": 2, "tombstone": "delete"}, "add": {"measures": "v", "before_images": 2}}
    line = bench(mode=mode, **key, **more.get(mode, {}))
    line.epoch({"k": "a", "v": 1})
    planned = line.sealed({"k": "a", "v": 2}, {"k": "b", "v": 1})
    through: list[str] = []

    class Recording(psycopg2.extensions.cursor):
        def execute(self, statement: Any, values: Any = None) -> None:
            super().execute(statement, values)
            said = (self.query or b"").decode()
            if "epochline_staging" in said or '"t"' in said:
                through.append(said)

    assert isinstance(line.ledger, PostgresLedger)
    event.listen(line.ledger._engine, "connect", lambda driver, _: setattr(driver, "cursor_factory", Recording))

    line.commit(planned)

    # Of both tables, of which one is the quarantine.
    assert 4 < len(through) <= 2 * STATEMENTS, through
