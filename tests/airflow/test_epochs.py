"""Epochs under a real scheduler: ten thousand lines of a log, each once; what one run leaves, the next goes on from."""

import os
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from epochline.kafka.feed import feed
from epochline_examples.access_log import check as access_log_check
from epochline_examples.access_log import maker as access_log_maker
from tests.airflow.conftest import Scheduler
from tests.airflow.interpreter import answer_of
from tests.conftest import AIRFLOW_DAGS

LINES = 10_000


@pytest.mark.slow
def test_each_line_of_a_log_is_there_exactly_once_after_five_epochs(
    scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3, S1–S7, S11, C1, C2, C7, U1: triggered through the API with a record limit.

    The log is the one that ``EPOCHLINE_TEST_LOG`` names, else one of our own with a real log's oddities.
    """
    log = Path(os.environ.get("EPOCHLINE_TEST_LOG") or tmp_path / "access.log")
    if log.parent == tmp_path:
        log.write_bytes(b"".join(line + b"\n" for line in access_log_maker.lines(LINES, seed=7)))
    scheduler.make_targets("access_log")
    report = feed(scheduler.stack.kafka.bootstrap_servers, log, "access_log", 4)
    produced = sum(report.records.values())

    for _ in range(5):
        run = scheduler.run("access_log", record_limit=produced // 5)
        assert run.pop("abort_epoch") == "skipped"
        assert run == dict.fromkeys(("run", "plan_epoch", "pre_commit", "commit_epoch"), "success")

    # Computed by code that imports nothing of epochline.
    postgres = scheduler.stack.postgres
    monkeypatch.setenv("PGPASSWORD", make_url(postgres.dsn()).password or "")
    assert access_log_check.main(["--log", str(log), "--dsn", postgres.dsn(with_password=False)]) == 0
    quarantined = scheduler.count("SELECT count(*) FROM epochline.quarantine WHERE pipeline = 'access_log'")
    assert scheduler.count("SELECT count(*) FROM access_log") + quarantined == produced
    assert scheduler.count("SELECT count(*) FROM epochline.offsets WHERE pipeline = 'access_log'") >= 20
    assert scheduler.heads("access_log") == report.records
    assert scheduler.group_offsets("access_log") == scheduler.heads("access_log")
    assert scheduler.staging_tables() == []


def test_a_dag_reads_a_growing_table_by_the_connection_of_its_source(scheduler: Scheduler) -> None:
    """N2: no topic, no group, and the job gets the connection in its credentials file."""
    scheduler.make_targets("growing")
    scheduler.query(
        "CREATE TABLE growing_events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said text);"
        " INSERT INTO growing_events (said) SELECT 'row ' || n FROM generate_series(1, 30) n"
    )

    run = scheduler.run("growing")

    assert run.pop("abort_epoch") == "skipped"
    assert run == dict.fromkeys(("run", "plan_epoch", "pre_commit", "commit_epoch"), "success")
    assert scheduler.query("SELECT id, said FROM growing ORDER BY id") == scheduler.query(
        "SELECT id, said FROM growing_events ORDER BY id"
    )
    assert scheduler.heads("growing") == {0: 31}


def test_an_epoch_with_nothing_to_read_skips_its_run_and_keeps_its_origins(scheduler: Scheduler) -> None:
    """U1: no epoch row; then a partition is added, and nothing in it is missed (S2)."""
    scheduler.prepare("nothing", {})

    run_id = scheduler.trigger("nothing")

    assert scheduler.wait("nothing", run_id) == "success"
    run = scheduler.tasks("nothing", run_id)
    assert (run["plan_epoch"], run["commit_epoch"]) == ("skipped", "skipped")
    assert scheduler.outcome("nothing", run_id, "plan_epoch") == "no epoch · nothing to read · nothing to do"
    assert scheduler.query("SELECT count(*) FROM epochline.epochs WHERE pipeline = 'nothing'") == [(0,)]
    assert scheduler.heads("nothing") == {0: 0, 1: 0, 2: 0, 3: 0}


@pytest.mark.slow
def test_a_run_without_records_closes_the_windows_of_an_idle_source(scheduler: Scheduler) -> None:
    """E11: three tasks over no range; the next run, with nothing to read and nothing open, is skipped."""
    scheduler.prepare("closing", {0: ["a"]})
    assert scheduler.run("closing")["run"] == "success"
    assert scheduler.query("SELECT count(*) FROM closing") == [(0,)]

    run = scheduler.run("closing")

    assert (run["plan_epoch"], run["pre_commit"], run["commit_epoch"]) == ("success", "success", "success")
    assert scheduler.query("SELECT value, sum(times) FROM closing GROUP BY value") == [("a", 1)]
    kinds = scheduler.query("SELECT kind FROM epochline.epochs WHERE pipeline = 'closing' ORDER BY epoch_id")
    assert kinds == [("regular",), ("idle",)]
    assert scheduler.run("closing")["plan_epoch"] == "skipped"


SCRIPT = """
import json, runpy, sys
from types import SimpleNamespace

dags, task_id, epoch = sys.argv[1:]
task = runpy.run_path(dags)["apart"].get_task(task_id)
if hasattr(task, "epoch_id"):
    task.epoch_id = epoch
else:
    task.record_limit = task.note = None
shown = {}
context = {
    "dag_run": SimpleNamespace(dag_id="apart", run_id="by-hand", run_type="manual", conf={}),
    "ti": SimpleNamespace(xcom_push=lambda key, value: shown.update({key: value})),
}
print("ANSWER" + json.dumps({"returned": task.execute(context), "shown": shown}))
"""


@pytest.mark.slow
def test_each_task_runs_in_an_empty_folder_and_passes_on_the_epoch_id_alone(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    """G10, B4: a process and a folder of its own; the task leaves nothing there."""
    scheduler.prepare("apart", {0: ["one"], 1: ["two"], 2: [], 3: ["three"]})
    environment = {**os.environ, **scheduler.stack.airflow.environment()}
    passed_on: dict[str, str | None] = {}
    shown: dict[str, dict[str, str]] = {}

    for task in ("plan_epoch", "pre_commit", "commit_epoch"):
        folder = tmp_path / task
        folder.mkdir()
        epoch = passed_on.get("plan_epoch") or ""
        answer = answer_of(SCRIPT, AIRFLOW_DAGS / "scripted.py", task, epoch, environment=environment, folder=folder)
        passed_on[task], shown[task] = answer["returned"], answer["shown"]
        assert {path.name for path in folder.iterdir()} <= {"spark-warehouse"}

    assert passed_on == {"plan_epoch": "1", "pre_commit": None, "commit_epoch": None}
    line = "epoch 1 · [0, 1) of 3 partitions · 6 rows · committed"
    assert shown == {"plan_epoch": {}, "pre_commit": {}, "commit_epoch": {"outcome": line}}
    assert sorted(scheduler.query("SELECT value FROM apart")) == [("one",), ("three",), ("two",)]
