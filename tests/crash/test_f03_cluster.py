"""A cluster of a master and two workers, each a process: what dies in it costs a try of a task and no row.

The job is a client of a server whose executors are on the cluster, or a driver that spark-submit starts there.
"""

import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil
import pytest

from epochline.errors import SealRefusedError
from epochline.local.spark import Spark
from epochline.protocol.staging import StagingTicket
from tests.checker import recover
from tests.crash.cases import slow
from tests.crash.line import Line
from tests.crash.servers import process_of
from tests.crash.spark_job import SERVER, SUBMITTED, cluster_job, family, log_of, writer_at_work
from tests.waiting import arguments_of

ASLEEP = 8
"""Seconds for which the parse of each part sleeps after twenty rows of it are copied."""


def at_work(line: Line) -> StagingTicket:
    for p in range(4):
        early, late = [f"p{p}-{i}" for i in range(25)], [f"p{p}-late-{i}" for i in range(15)]
        line.produce({p: [*early, f"sleep {ASLEEP}", *late]})
    return line.to_begun("run-1")[1]


def answer_of(port: int) -> int | None:
    """The status with which a web server answers on a port; None if another server listens there."""
    asked = HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        asked.request("GET", "/")
        return asked.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        asked.close()


def ancestor(of: psutil.Process, what: str) -> psutil.Process:
    return next(one for one in of.parents() if what in " ".join(one.cmdline()))


VICTIMS: dict[str, Callable[[psutil.Process], psutil.Process]] = {
    "Python worker": lambda worker: worker,
    "executor": lambda worker: ancestor(worker, "CoarseGrainedExecutorBackend"),
    # Its executors end with it.
    "Spark worker": lambda worker: ancestor(worker, "org.apache.spark.deploy.worker.Worker"),
}


@pytest.mark.fault("F3")
@pytest.mark.parametrize(
    ("victim", "kind"),
    [
        ("executor", SERVER),
        slow("Python worker", SERVER),
        slow("Spark worker", SERVER),
        slow("Python worker", SUBMITTED),
        slow("executor", SUBMITTED),
        slow("Spark worker", SUBMITTED),
    ],
)
def test_a_part_of_a_cluster_that_is_killed_costs_one_try_of_a_task_and_no_row(
    scripted: Line, spark_cluster: Spark, tmp_path: Path, victim: str, kind: str
) -> None:
    """F3, I1, I4: Spark tries the tasks again within the attempt, on what is left of the cluster."""
    ticket = at_work(scripted)
    with cluster_job(spark_cluster, kind, scripted, ticket, tmp_path) as running:
        VICTIMS[victim](writer_at_work(scripted, ticket)).kill()
        since = time.monotonic()
        assert running.wait(240) == 0, log_of(tmp_path)

    assert scripted.seal(ticket, "run-1").read == len(scripted.produced)
    scripted.commit(1)
    recover(scripted, since=since)
    assert scripted.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F3")
@pytest.mark.slow
def test_the_master_of_a_cluster_that_is_killed_stops_no_epoch_and_knows_its_workers_again(
    scripted: Line, spark_cluster: Spark, tmp_path: Path
) -> None:
    """F3, I1: the epoch goes on without the master, and the next driver runs under the one that is started again."""
    ticket = at_work(scripted)
    with cluster_job(spark_cluster, SERVER, scripted, ticket, tmp_path) as running:
        writer_at_work(scripted, ticket)
        process_of(spark_cluster.cluster.daemons["spark-master"].pid).kill()
        since = time.monotonic()
        assert running.wait(240) == 0, log_of(tmp_path)
    scripted.seal(ticket, "run-1")
    scripted.commit(1)
    recover(scripted, since=since)

    spark_cluster.start()
    scripted.produce({0: ["later"], 1: ["later"]})
    _, later = scripted.to_begun("run-2")
    with cluster_job(spark_cluster, SUBMITTED, scripted, later, tmp_path) as running:
        assert running.wait(240) == 0, log_of(tmp_path)

    scripted.seal(later, "run-2")
    scripted.commit(2)
    recover(scripted)


@pytest.mark.fault("F3")
@pytest.mark.slow
def test_an_epoch_whose_every_worker_is_killed_is_committed_by_the_next_attempt(
    scripted: Line, spark_cluster: Spark, tmp_path: Path
) -> None:
    """F3, INV-4, INV-7: an attempt without an executor waits; it is given up, and the next one reads the same range."""
    ticket = at_work(scripted)
    with cluster_job(spark_cluster, SERVER, scripted, ticket, tmp_path) as running:
        writer_at_work(scripted, ticket)
        for name, daemon in spark_cluster.cluster.daemons.items():
            if name.startswith("spark-worker"):
                process_of(daemon.pid).kill()
        since = time.monotonic()
        running.terminate()  # as Airflow ends a task
        assert running.wait(60) != 0
    with pytest.raises(SealRefusedError, match="without its end mark"):
        scripted.seal(ticket, "run-1")

    spark_cluster.start()
    again = scripted.begin(1, "run-1")
    assert again is not None
    with cluster_job(spark_cluster, SERVER, scripted, again, tmp_path) as running:
        assert running.wait(240) == 0, log_of(tmp_path)

    scripted.seal(again, "run-1")
    scripted.commit(1)
    recover(scripted, since=since)
    assert scripted.query("SELECT attempt FROM epochline.epochs") == [(2,)]


def test_the_secrets_of_a_cluster_lie_in_no_argument_and_in_no_file_of_others(spark_cluster: Spark) -> None:
    """SEC-4: also not in an executor's log, which begins with its command."""
    home = spark_cluster.folder.parent
    hidden = [
        spark_cluster.cluster.driver_settings(2)["spark.authenticate.secret"],
        spark_cluster.url.rpartition("=")[2],
    ]
    commands = [arguments_of(one) for one in family(spark_cluster)]
    assert sum("CoarseGrainedExecutorBackend" in command for command in commands) >= 2

    holding = [
        path for path in home.rglob("*") if path.is_file() and any(one.encode() in path.read_bytes() for one in hidden)
    ]

    assert not [command for command in commands if any(one in command for one in hidden)]
    assert {path.name for path in holding} == {"secrets.json", "spark.conf", "cluster.conf", "driver.options"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in holding)


def test_a_cluster_listens_on_loopback_only_and_shows_its_pages_to_nobody(spark_cluster: Spark) -> None:
    """SEC-4: nothing of it can be reached from another machine, and a page needs a key that nobody has."""
    pids = {one.pid for one in family(spark_cluster)}
    open_ones = [one for one in psutil.net_connections(kind="tcp") if one.pid in pids]
    listening = [(one.laddr[0], one.laddr[1]) for one in open_ones if one.laddr and one.status == psutil.CONN_LISTEN]
    assert len(listening) > 6

    answers = {port: answer_of(port) for _, port in listening}

    assert {address.rpartition(":")[2] for address, _ in listening} == {"127.0.0.1"}
    assert {answer for answer in answers.values() if answer is not None} == {403}
