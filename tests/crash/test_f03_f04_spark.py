"""Executors, Python workers and tasks of a cluster die or fail for ever; the broker dies under a reader.

`local-cluster` starts a master, workers and executors as on a cluster, each executor a process of its own, and Spark
tries a task four times. The job is the one that spark-submit runs.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from epochline.errors import SealRefusedError
from epochline.protocol.epoch import EpochState
from epochline.protocol.staging import StagingTicket
from tests.crash.cases import slow
from tests.crash.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.servers import Server
from tests.crash.spark_job import LOCAL, SERVER, job, log_of
from tests.waiting import wait_for

CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture
def scripted(new_line: NewLine) -> Line:
    """A pipeline whose records say what its parse does; small batches, so that a part is copied in many steps."""
    return new_line(
        partitions=4, parse="scripted:parse", record={"value": "text"}, bad_records="fail",
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    )  # fmt: skip


def writer_at_work(line: Line, ticket: StagingTicket) -> psutil.Process:
    """A Python worker whose rows are copied and whose transaction is open."""

    asked = "SELECT client_port FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"

    def found() -> list[int]:
        ports = {port for (port,) in line.query(asked, ticket.application_name)}
        open_ones = psutil.net_connections(kind="tcp") if ports else []
        return [one.pid for one in open_ones if one.laddr and one.laddr[1] in ports and one.pid]

    return psutil.Process(wait_for("a worker copies rows", found, 240)[0])


def executor_of(worker: psutil.Process) -> psutil.Process:
    return next(one for one in worker.parents() if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()))


@pytest.mark.fault("F3")
@pytest.mark.parametrize(
    ("who", "master"),
    [
        ("Python worker", LOCAL),
        ("Python worker", SERVER),
        slow("Python worker", CLUSTER),
        slow("executor", CLUSTER),
    ],
)
def test_a_killed_worker_or_executor_costs_one_try_of_a_task_and_no_row(
    scripted: Line, spark_server: str, tmp_path: Path, who: str, master: str
) -> None:
    """F3, I1, I4: Spark tries the task again within the attempt, which is sealed."""
    for p in range(4):
        # Twenty rows of a part are copied before its parse sleeps.
        early, late = [f"p{p}-{i}" for i in range(25)], [f"p{p}-late-{i}" for i in range(15)]
        scripted.produce({p: [*early, "sleep 8", *late]})
    _, ticket = scripted.to_begun("run-1")
    with job(scripted, ticket, tmp_path, master, server=spark_server) as running:
        worker = writer_at_work(scripted, ticket)
        victim = worker if who == "Python worker" else executor_of(worker)
        victim.kill()
        since = time.monotonic()
        assert running.wait(240) == 0, log_of(tmp_path)

    assert scripted.seal(ticket, "run-1").read == len(scripted.produced)
    scripted.commit(1)
    recover(scripted, since=since)
    assert scripted.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F4")
@pytest.mark.parametrize("master", [LOCAL, SERVER, slow(CLUSTER)])
def test_a_task_that_fails_for_ever_ends_the_attempt_and_moves_nothing(
    scripted: Line, spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """F4, INV-7: the job fails, the abort leaves nothing, the same range is committed once the reason is gone."""
    scripted.produce({0: ["good", "bad", "better"], 1: ["fine"], 2: ["fine"], 3: ["fine"]})
    _, ticket = scripted.to_begun("run-1")
    with job(scripted, ticket, tmp_path, master, server=spark_server) as running:
        assert running.wait(240) == 1
    assert "EPOCHLINE-ERROR BadRecordError" in log_of(tmp_path)
    assert scripted.query("SELECT error LIKE 'BadRecordError%%' FROM epochline.attempts") == [(True,)]
    with pytest.raises(SealRefusedError, match="without its end mark"):
        scripted.seal(ticket, "run-1")

    scripted.abort(1, "run-1")

    assert scripted.state() is EpochState.ABORTED
    assert scripted.heads() == dict.fromkeys(range(4), 0)
    assert scripted.query("SELECT tablename FROM pg_tables WHERE schemaname = 'epochline_staging'") == []
    since = time.monotonic()
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path))  # where this process's parse looks
    (tmp_path / "forgive").touch()
    recover(scripted, since=since)


@pytest.mark.fault("F19")
@pytest.mark.slow
def test_a_broker_killed_under_a_reading_job_is_waited_for(scripted: Line, server: Server, tmp_path: Path) -> None:
    """I1: Spark's consumer goes on where it was when the broker is back; nothing is lost or doubled."""
    wide = "x" * 20_000
    scripted.produce({0: ["sleep 4", *(f"{i} {wide}" for i in range(150))], 1: [f"{i} {wide}" for i in range(20)]})
    _, ticket = scripted.to_begun("run-1")
    with job(scripted, ticket, tmp_path, "local[2]") as running:
        asked = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
        wait_for("a job reads", lambda: scripted.query(asked, ticket.application_name), 240)
        server.kill_broker()
        since = time.monotonic()
        server.start_broker()
        assert running.wait(240) == 0, log_of(tmp_path)

    assert scripted.seal(ticket, "run-1").read == len(scripted.produced)
    scripted.commit(1)
    recover(scripted, since=since)
