"""Epochs on YARN, by the operator itself: in client and in cluster mode, with what the page says about them.

YARN starts a lost driver again, and in cluster mode an application outlives the task that submitted it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import ZipFile

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException
from psycopg2.extensions import parse_dsn
from structlog.testing import capture_logs

import scripted
from tests.checker import recover
from tests.commands import connect_to
from tests.crash.line import Line
from tests.crash.pre_commit import at_work, begun, operator_of, planned
from tests.crash.yarn import Yarn, page, settings_of
from tests.integration.stores import started
from tests.waiting import arguments_of, wait_for

EXECUTOR = "YarnCoarseGrainedExecutorBackend"
DRIVER = "org.apache.spark.deploy.yarn.ApplicationMaster "


@pytest.fixture(scope="session")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A cluster to which the environment is shipped as docs/spark-cluster.md says."""
    one = Yarn(tmp_path_factory.mktemp("yarn"))
    one.format()
    with started(one):
        one.ship(page()[0])
        yield one


OnYarn = Callable[[str], Line]


@pytest.fixture
def on_yarn(
    yarn: Yarn, new_line: Callable[..., Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OnYarn]:
    """Makes a pipeline on YARN; its applications end with the test."""
    functions = tmp_path / "project" / "spark_jobs" / "scripted.py"
    functions.parent.mkdir(parents=True)
    functions.write_text(Path(scripted.__file__).read_text())
    with ZipFile(tmp_path / "pipelines.zip", "w") as archive:
        archive.write(functions, functions.name)
    details = tmp_path / "job.json"
    here = {
        "/opt/epochline/.venv/bin/python": sys.executable,
        "/opt/project/pipelines.zip": str(archive.filename),
        "/etc/epochline/job.json": str(details),
    }

    def make(mode: str) -> Line:
        # `scripted` looks for files there, in the worker of a container.
        conf = {**settings_of(mode, here), "spark.executorEnv.EPOCHLINE_HOME": str(tmp_path)}
        line = new_line(
            partitions=4, parse="scripted:parse", record={"value": "text"}, bad_records="fail", spark_conf=conf
        )
        details.touch(mode=0o600)
        details.write_text(json.dumps({"postgres": {"dsn": line.via}, "kafka": {"bootstrap.servers": line.kafka}}))
        connect_to(monkeypatch, postgres=line.dsn, kafka=line.kafka)
        connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": mode, "queue": "default"}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
        for name in ("SPARK_HOME", "PYTHONPATH", "PYSPARK_PYTHON"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {**yarn.client, "EPOCHLINE_PROJECT": str(tmp_path / "project")}.items():
            monkeypatch.setenv(name, value)
        planned(line)
        return line

    yield make
    for application in yarn.running:  # of a test that failed
        subprocess.run(["yarn", "application", "-kill", application], check=True)


def container(yarn: Yarn, what: str) -> psutil.Process:
    """The JVM of a container."""
    return next(one for one in yarn.containers() if what in arguments_of(one) and one.name() == "java")


def showing(secret: str, processes: list[psutil.Process]) -> list[str]:
    """The processes whose arguments or environment hold a text."""

    def of(process: psutil.Process) -> str:
        try:
            return f"{process.cmdline()} {process.environ()}"
        except psutil.NoSuchProcess:
            return ""

    return [text for text in map(of, processes) if secret in text]


@pytest.mark.fault("F55")
@pytest.mark.parametrize("mode", ["client", pytest.param("cluster", marks=pytest.mark.slow)])
def test_an_executor_on_yarn_is_killed_and_the_epoch_is_exact_and_its_password_lies_open_nowhere(
    yarn: Yarn, on_yarn: OnYarn, mode: str
) -> None:
    """F55, I1, I4, SEC-4: one try of its tasks is lost. The executors run the environment that was shipped."""
    line = on_yarn(mode)
    secret = parse_dsn(line.dsn)["password"]

    with capture_logs() as told:
        task = begun(operator_of(line))
        worker = at_work(line, task)
        assert worker.cmdline()[0] == "./environment/bin/python"
        shown = showing(secret, yarn.containers())
        arguments = [one.pid for one in psutil.process_iter() if secret in arguments_of(one)]
        next(one for one in worker.parents() if EXECUTOR in arguments_of(one)).kill()
        since = time.monotonic()
        task.result(300)

    line.commit(1)
    recover(line, since=since)
    assert line.query("SELECT attempt FROM epochline.epochs") == [(1,)]
    assert (shown, arguments, yarn.holding(secret), secret in str(told)) == ([], [], [], False)
    assert "Spark-Submit cmd" in str(told)
    assert list(yarn._folder.rglob("launch_container.sh"))
    assert list(yarn._folder.rglob("stderr"))


@pytest.mark.slow
@pytest.mark.fault("F55")
def test_a_driver_that_yarn_starts_again_counts_nothing_twice(yarn: Yarn, on_yarn: OnYarn) -> None:
    """F55, INV-4, I1: the page says one attempt; a cluster may say two, and the second runs the job of the first."""
    line = on_yarn("cluster")
    del line.pipeline.spark_conf["spark.yarn.maxAppAttempts"]

    task = begun(operator_of(line))
    at_work(line, task)
    wait_for("the first part is committed", lambda: line.query("SELECT 1 FROM epochline.part"))
    container(yarn, DRIVER).kill()
    since = time.monotonic()
    with pytest.raises(AirflowException):
        task.result(300)
    begun(operator_of(line)).result(300)

    line.commit(1)
    recover(line, since=since)


@pytest.mark.slow
@pytest.mark.fault("F55")
def test_an_application_that_outlives_its_task_writes_nothing_that_counts(yarn: Yarn, on_yarn: OnYarn) -> None:
    """F55, INV-4, INV-8: Airflow's worker was killed, the next try commits, and the first application goes on."""
    line = on_yarn("cluster")

    task = begun(operator_of(line))
    at_work(line, task)
    outlives = yarn.running
    submitting = next(one for one in psutil.Process().children() if "SparkSubmit" in arguments_of(one))
    submitting.kill()
    since = time.monotonic()
    with pytest.raises(AirflowException, match="SIGKILL"):
        task.result(60)
    again = begun(operator_of(line))
    assert outlives <= yarn.running
    again.result(300)
    line.commit(1)
    wait_for("the first application has ended", lambda: not yarn.running, every=0.5)

    recover(line, since=since)
    assert line.query("SELECT attempt FROM epochline.epochs") == [(2,)]


@pytest.mark.slow
def test_the_application_of_a_task_that_is_stopped_is_ended_by_the_command_yarn(yarn: Yarn, on_yarn: OnYarn) -> None:
    """INV-7: as Airflow stops a task, by `on_kill`."""
    line = on_yarn("cluster")
    operator = operator_of(line)
    task = begun(operator)
    at_work(line, task)

    operator.on_kill()
    since = time.monotonic()

    with pytest.raises(AirflowException):
        task.result(60)
    wait_for("the application has ended", lambda: not yarn.running, 30, every=0.5)
    begun(operator_of(line)).result(300)
    line.commit(1)
    recover(line, since=since)
