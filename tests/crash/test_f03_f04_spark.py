"""Executors, Python workers and tasks of a cluster die or fail for ever; the broker dies under a reader.

`local-cluster` starts a master, workers and executors as on a cluster, each executor a process of its own, and Spark
tries a task four times. The job is the one that spark-submit runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from epochline.errors import SealRefusedError
from epochline.local.jars import spark_jars
from epochline.protocol.epoch import EpochState
from epochline.protocol.staging import StagingTicket
from tests.crash.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
LOCAL = "local[2,4]"
"""A failed task is tried again here too, and no executor has to start."""

CLUSTER = "local-cluster[2,1,1024]"
FUNCTIONS = ROOT / "tests" / "functions"


@pytest.fixture
def scripted(new_line: NewLine) -> Line:
    """A pipeline whose records say what its parse does; small batches, so that a part is copied in many steps."""
    return new_line(
        partitions=4,
        parse="scripted:parse",
        record={"value": "text"},
        bad_records="fail",
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    )


@contextmanager
def job(line: Line, ticket: StagingTicket, tmp_path: Path, master: str, **conf: str) -> Iterator[psutil.Popen]:
    """The Spark job of an attempt in a process of its own; what is left of it is ended with the block."""
    credentials = tmp_path / "credentials.json"
    credentials.touch(mode=0o600)
    servers = {"postgres": {"dsn": line.via}, "kafka": {"bootstrap.servers": line.kafka}}
    credentials.write_text(json.dumps(servers))
    settings = {
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        "spark.log.level": "WARN",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(tmp_path / "spark"),
        **conf,
    }
    arguments = ["--master", master, "--driver-memory", "512m"]
    for name, value in settings.items():
        arguments += ["--conf", f"{name}={value}"]
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": " ".join([*arguments, "pyspark-shell"]),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "include", ROOT / "spark_jobs", FUNCTIONS))),
        "EPOCHLINE_CREDENTIALS": str(credentials),
        "EPOCHLINE_HOME": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, str(ROOT / "spark_jobs" / "pre_commit.py"), "--pipeline", line.name]
    command += ["--epoch", str(ticket.epoch_id), "--attempt", str(ticket.attempt)]
    with (tmp_path / "job.log").open("wb") as log:
        running = psutil.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield running
    finally:
        with suppress(psutil.NoSuchProcess):
            for process in [running, *running.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        running.wait(30)


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "job.log").read_text(errors="replace")[-4000:]


def writer_at_work(line: Line, ticket: StagingTicket) -> psutil.Process:
    """A Python worker whose rows are copied and whose transaction is open."""

    def found() -> psutil.Process | None:
        ports = line.query(
            "SELECT client_port FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'",
            ticket.application_name,
        )
        for (port,) in ports:
            for connection in psutil.net_connections(kind="tcp"):
                if connection.laddr and connection.laddr[1] == port and connection.pid:
                    return psutil.Process(connection.pid)
        return None

    worker = wait_for("a worker copies rows", found, 240)
    assert isinstance(worker, psutil.Process)
    return worker


def executor_of(worker: psutil.Process) -> psutil.Process:
    return next(
        process for process in worker.parents() if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    )


def sleeping(line: Line, seconds: int) -> None:
    """Twenty rows of a part are copied before its parse sleeps."""
    line.produce(
        {
            p: [*(f"p{p}-{i}" for i in range(25)), f"sleep {seconds}", *(f"p{p}-late-{i}" for i in range(15))]
            for p in range(4)
        }
    )


@pytest.mark.fault("F3")
@pytest.mark.parametrize(
    ("who", "master"),
    [
        ("Python worker", LOCAL),
        pytest.param("Python worker", CLUSTER, marks=pytest.mark.slow),
        pytest.param("executor", CLUSTER, marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_or_executor_costs_one_try_of_a_task_and_no_row(
    scripted: Line, tmp_path: Path, who: str, master: str, recovery: Recovery
) -> None:
    """F3, I1, I4: Spark tries the task again within the attempt, which is sealed."""
    sleeping(scripted, 8)
    _, ticket = scripted.to_begun("run-1")
    with job(scripted, ticket, tmp_path, master) as running:
        worker = writer_at_work(scripted, ticket)
        victim = worker if who == "Python worker" else executor_of(worker)
        victim.kill()
        since = recovery.last_fault()
        assert running.wait(240) == 0, log_of(tmp_path)

    assert scripted.seal(ticket, "run-1").read == len(scripted.produced)
    scripted.commit(1)
    recovery.took(recover(scripted, since=since))
    assert scripted.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F4")
@pytest.mark.parametrize("master", [LOCAL, pytest.param(CLUSTER, marks=pytest.mark.slow)])
def test_a_task_that_fails_for_ever_ends_the_attempt_and_moves_nothing(
    scripted: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recovery: Recovery, master: str
) -> None:
    """F4, INV-7: the job fails, the abort leaves nothing, the same range is committed once the reason is gone."""
    scripted.produce({0: ["good", "bad", "better"], 1: ["fine"], 2: ["fine"], 3: ["fine"]})
    _, ticket = scripted.to_begun("run-1")
    with job(scripted, ticket, tmp_path, master) as running:
        assert running.wait(240) == 1
    assert "EPOCHLINE-ERROR BadRecordError" in log_of(tmp_path)
    assert scripted.query("SELECT error LIKE 'BadRecordError%%' FROM epochline.attempts") == [(True,)]
    with pytest.raises(SealRefusedError, match="without its end mark"):
        scripted.seal(ticket, "run-1")

    scripted.abort(1, "run-1")

    assert scripted.state() is EpochState.ABORTED
    assert scripted.heads() == dict.fromkeys(range(4), 0)
    assert scripted.query("SELECT tablename FROM pg_tables WHERE schemaname = 'epochline_staging'") == []
    since = recovery.last_fault()
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path))  # where this process's parse looks
    (tmp_path / "forgive").touch()
    recovery.took(recover(scripted, since=since))


@pytest.mark.fault("F19")
@pytest.mark.slow
def test_a_broker_killed_under_a_reading_job_is_waited_for(
    scripted: Line, server: Server, tmp_path: Path, recovery: Recovery
) -> None:
    """I1: Spark's consumer goes on where it was when the broker is back; nothing is lost or doubled."""
    wide = "x" * 20_000
    scripted.produce({0: ["sleep 4", *(f"{i} {wide}" for i in range(150))], 1: [f"{i} {wide}" for i in range(20)]})
    _, ticket = scripted.to_begun("run-1")
    with job(scripted, ticket, tmp_path, "local[2]") as running:
        wait_for(
            "a job reads",
            lambda: scripted.query(
                "SELECT 1 FROM pg_stat_activity WHERE application_name = %s", ticket.application_name
            ),
            240,
        )
        server.kill_broker()
        since = recovery.last_fault()
        server.start_broker()
        assert running.wait(240) == 0, log_of(tmp_path)

    assert scripted.seal(ticket, "run-1").read == len(scripted.produced)
    scripted.commit(1)
    recovery.took(recover(scripted, since=since))
