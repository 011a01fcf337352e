"""The task pre_commit on a worker that lacks a file or has other settings: the operator in this process, on a real ledger."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from epochline import Settings
from epochline.airflow.pre_commit import PreCommitOperator, refuse_missing
from epochline.airflow.settings import params
from epochline.config.resolve import file_settings, resolve_settings
from epochline.declare.settings import PerRun
from epochline.errors import ConfigurationError
from epochline.protocol.epoch import AbortOutcome, EpochState
from epochline.protocol.staging import StagingTicket
from tests.commands import connect_to
from tests.contract.worlds import World, run
from tests.crash.pre_commit import begun
from tests.databases import query
from tests.waiting import wait_for

DRIVER = {"conn_type": "spark", "host": "local[1]"}
SERVER = {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": 1}


@pytest.mark.parametrize(
    ("spark", "program", "path", "missing"),
    [
        (DRIVER, "/nowhere/job.py", None, "/nowhere/job.py"),
        (DRIVER, "file:///nowhere/job.py", None, "file:///nowhere/job.py"),
        (SERVER, "/nowhere/job.py", None, "/nowhere/job.py"),
        (DRIVER, __file__, "/nowhere", "the command spark-submit"),
    ],
    ids=["driver", "URI", "server", "spark-submit"],
)
def test_a_missing_file_fails_the_task_once_with_its_path_and_the_ledger_keeps_the_reason(
    world: World, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch,
    spark: dict[str, object], program: str, path: str | None, missing: str,
) -> None:  # fmt: skip
    """No retry, no word about memory, nothing left in staging."""
    connect_to(monkeypatch, postgres=postgres_dsn, kafka="127.0.0.1:1")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    if path is not None:
        monkeypatch.setenv("PATH", path)
    world.plan()
    task = PreCommitOperator(pipeline=world.pipeline, epoch_id="1", task_id="pre_commit", application=program)

    # Airflow does not retry a task that raises this error.
    with pytest.raises(AirflowFailException, match=missing):
        task.execute({"dag_run": SimpleNamespace(dag_id="orders", run_id="run-1")})

    ((error_class, error),) = query(postgres_dsn, "SELECT error_class, error FROM epochline.attempt")
    assert (error_class, missing in error, "memory" in error) == ("ConfigurationError", True, False)
    assert world.abort(1, run()) is AbortOutcome.ABORTED
    assert world.left_over() == 0
    assert world.epoch(1).state is EpochState.ABORTED


TICKET = StagingTicket(pipeline="p", epoch_id=1, attempt=1, attempt_id=1, application_name="a", tables=())


UNTIL_FENCED = """
import os, time
import psycopg2

ledger = psycopg2.connect(os.environ["LEDGER"])
ledger.autocommit = True
with ledger.cursor() as cursor:
    state = None
    while state != "FENCED":
        time.sleep(0.1)  # between two looks, until the abort has come
        cursor.execute("SELECT state FROM epochline.attempts")
        [(state,)] = cursor.fetchall()
raise SystemExit(1)
"""


def failing_job(world: World, program: str, tmp_path: Path, patch: pytest.MonkeyPatch, dsn: str) -> PreCommitOperator:
    """The task of a planned epoch, whose job, started by spark-submit, is this program."""
    connect_to(patch, postgres=dsn, kafka="127.0.0.1:1")
    patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(DRIVER))
    patch.setenv("LEDGER", dsn)
    patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    file = tmp_path / "failing_job.py"
    file.write_text(program)
    world.plan()
    return PreCommitOperator(pipeline=world.pipeline, epoch_id="1", task_id="pre_commit", application=str(file))


def test_a_job_that_ends_because_its_epoch_was_aborted_is_not_called_lost(
    world: World, postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: the task names the abort, without a word about memory, and Airflow does not retry it."""
    staging = begun(failing_job(world, UNTIL_FENCED, tmp_path, monkeypatch, postgres_dsn))
    wait_for("the attempt has begun", lambda: query(postgres_dsn, "SELECT 1 FROM epochline.attempt"))
    world.abort(1, run(), reason="the wrong file")

    with pytest.raises(AirflowFailException, match=r"the epoch was aborted \(.*the wrong file.*\) while its job ran"):
        staging.result(120)


def test_a_job_that_ends_without_a_reason_is_called_lost_and_tried_again(
    world: World, postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2."""
    staging = begun(failing_job(world, "raise SystemExit(1)", tmp_path, monkeypatch, postgres_dsn))

    with pytest.raises(AirflowException, match="exit code 1, and it left no reason in the ledger") as lost:
        staging.result(120)

    assert not isinstance(lost.value, AirflowFailException)


@pytest.mark.parametrize("program", ["hdfs://there/job.py", "local:///opt/job.py", "s3a://there/job.py"])
def test_a_program_that_another_machine_reads_is_not_looked_for_here(program: str) -> None:
    refuse_missing(TICKET, program, None)
    refuse_missing(TICKET, "/opt/job.py", None, here=False)


def test_everything_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"job.py and the command no-submit \(PATH is .*cannot be found on"):
        refuse_missing(TICKET, str(tmp_path / "job.py"), "no-submit")


@pytest.mark.parametrize(
    ("planned", "here", "differs"),
    [
        ("timeout = 120", "timeout = 77", "timeout is 120.0 (file), here 77.0 (file)"),
        ("", "on_cancel = 'delete'", "on_cancel is retain (default), here delete (file)"),
        ("interval = 60", "", "interval is 60.0 (file), here None (default)"),
    ],
    ids=["another", "missing where it was planned", "missing here"],
)
def test_a_worker_with_another_settings_file_than_that_of_the_plan_refuses_the_epoch_by_name(
    world: World, postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    planned: str, here: str, differs: str,
) -> None:  # fmt: skip
    """C10: nobody knows which of the two workers is right. The pipeline is not paused: its next run plans again."""
    connect_to(monkeypatch, postgres=postgres_dsn, kafka="127.0.0.1:1")
    file = tmp_path / "settings.toml"
    monkeypatch.setenv("EPOCHLINE_SETTINGS", str(file))
    file.write_text(f"[settings]\n{planned}\n")
    world.plan(settings=resolve_settings(world.pipeline, file=file_settings()))
    file.write_text(f"[settings]\n{here}\n")
    with DAG("orders", schedule=None, params=params()):
        task = PreCommitOperator(pipeline=world.pipeline, epoch_id="1", task_id="pre_commit")
    context: Any = {"dag_run": SimpleNamespace(conf={}, dag_id="orders", run_id="run-1")}

    task.pre_execute(context)
    with pytest.raises(AirflowFailException, match="was made with another settings file than"):
        task.execute(context)

    assert world.abort(1, run()) is AbortOutcome.ABORTED
    assert differs in (world.epoch(1).error or "")
    with world.ledger.transaction() as tx:
        assert tx.operators.standing("orders").paused is None
    assert world.left_over() == 0


@pytest.mark.parametrize(("recorded", "applies"), [(120, 120), (None, 60)], ids=["plan", "action"])
def test_the_time_out_is_the_epochs_though_its_declaration_changed_and_the_difference_is_named(
    world: World, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    recorded: int | None, applies: int,
) -> None:  # fmt: skip
    """C10: a declaration is that of the plan until the epoch is committed. An action records no settings."""
    connect_to(monkeypatch, postgres=postgres_dsn)
    world.plan(settings=resolve_settings(world.pipeline, run=PerRun(timeout=120)))
    if recorded is None:
        query(postgres_dsn, "UPDATE epochline.epoch SET settings = '{}'")
    changed = world.pipeline.model_copy(update={"settings": Settings(timeout=60)})
    with DAG("orders", schedule=None, params=params()):
        task = PreCommitOperator(pipeline=changed, epoch_id="1", task_id="pre_commit")

    task.pre_execute({"dag_run": SimpleNamespace(conf={})})

    assert task.execution_timeout == timedelta(seconds=applies)
    warned = [record.message for record in caplog.records if record.name == "epochline.airflow.settings"]
    named = ["timeout is 120.0 (run conf), here 60.0 (declaration). Give every worker the same declarations."]
    assert [text.split("others: ")[1] for text in warned] == (named if recorded else [])
