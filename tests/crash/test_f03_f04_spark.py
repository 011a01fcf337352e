"""Python workers and tasks die or fail for ever; the broker dies under a reader. `test_f03_cluster.py` has executors.

Spark tries a task four times. The job is the one that spark-submit runs, or a client of a Spark server.
"""

import time
from pathlib import Path

import pytest

from epochline.errors import SealRefusedError
from epochline.protocol.epoch import EpochState
from tests.checker import recover
from tests.crash.line import Line
from tests.crash.servers import Server
from tests.crash.spark_job import LOCAL, SERVER, job, log_of, writer_at_work
from tests.waiting import wait_for


@pytest.mark.fault("F3")
@pytest.mark.parametrize("master", [LOCAL, SERVER])
def test_a_killed_python_worker_costs_one_try_of_a_task_and_no_row(
    scripted: Line, spark_server: str, tmp_path: Path, master: str
) -> None:
    """F3, I1, I4: Spark tries the task again within the attempt, which is sealed."""
    for p in range(4):
        # Twenty rows of a part are copied before its parse sleeps.
        early, late = [f"p{p}-{i}" for i in range(25)], [f"p{p}-late-{i}" for i in range(15)]
        scripted.produce({p: [*early, "sleep 8", *late]})
    _, ticket = scripted.to_begun("run-1")
    with job(scripted, ticket, tmp_path, master, server=spark_server) as running:
        writer_at_work(scripted, ticket).kill()
        since = time.monotonic()
        assert running.wait(240) == 0, log_of(tmp_path)

    assert scripted.seal(ticket, "run-1").read == len(scripted.produced)
    scripted.commit(1)
    recover(scripted, since=since)
    assert scripted.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F4")
@pytest.mark.parametrize("master", [LOCAL, SERVER])
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
