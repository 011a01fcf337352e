"""What becomes of settings when Airflow reads a DAG file: schedule, retries, time-outs, when Airflow stops making runs."""

from __future__ import annotations

from pathlib import Path

from tests.airflow.interpreter import answer_without_airflow

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
    assert (dags["none"]["plan_epoch"][2], dags["rate"]["plan_epoch"][2]) == (360, 300)
