"""The Spark job of an attempt, started as spark-submit does in client mode."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from epochline.local.class_archive import class_options
from epochline.local.spark import Spark
from epochline.local.spark_home import spark_home
from epochline.protocol.staging import StagingTicket
from epochline.spark import main
from tests.crash.line import Line
from tests.crash.servers import process_of
from tests.processes.client import ROOT
from tests.waiting import wait_for

LOCAL = "local[2,4]"
"""A failed task is tried again here too, and no executor has to start."""

SERVER = "a Spark server"
"""The master of a job whose process is a client of the server that the fixture `spark_server` starts."""

SUBMITTED = "a driver"
"""The kind of a job on a cluster whose driver spark-submit starts; the other kind is `SERVER`."""


@dataclass(frozen=True)
class StagedFromSeveral:
    """What the job of a pipeline with several sources is given: the ledger, and brokers by connection."""

    name: str
    via: str
    kafkas: Mapping[str, str]


@contextmanager
def job(
    line: Line | StagedFromSeveral,
    ticket: StagingTicket,
    folder: Path,
    master: str,
    *,
    server: str = "",
    **environment: str,
) -> Iterator[psutil.Popen]:
    """The job of an attempt (``ticket``) in a process of its own; what is left of it is ended with the block."""
    credentials = folder / "credentials.json"
    credentials.touch(mode=0o600)
    servers: dict[str, Any] = {"postgres": {"dsn": line.via}}
    if isinstance(line, Line):
        servers["kafka"] = {"bootstrap.servers": line.kafka}
    else:
        servers |= {"kafka": None, "kafkas": {name: {"bootstrap.servers": one} for name, one in line.kafkas.items()}}
    if master == SERVER:
        servers["spark"] = {"server": server}
    credentials.write_text(json.dumps(servers))
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(folder / "spark"),
    }
    conf = [f"--conf {name}={value}" for name, value in settings.items()]
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": " ".join([f"--master {master} --driver-memory 512m", *conf, "pyspark-shell"]),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("include", "spark_jobs", "tests/functions")),
        "EPOCHLINE_CREDENTIALS": str(credentials),
        "EPOCHLINE_HOME": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **environment,
    }
    if master == LOCAL:
        environment["SPARK_HOME"] = str(spark_home())
    command = [sys.executable, main.__file__, "--pipeline", line.name]
    command += ["--epoch", str(ticket.epoch_id), "--attempt", str(ticket.attempt)]
    with (folder / "job.log").open("wb") as log:
        running = psutil.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield running
    finally:
        with suppress(psutil.NoSuchProcess):
            for process in [running, *running.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        running.wait(30)


@contextmanager
def cluster_job(
    spark: Spark, kind: str, line: Line, ticket: StagingTicket, folder: Path, **environment: str
) -> Iterator[psutil.Popen]:
    if kind == SUBMITTED:
        environment["SPARK_SUBMIT_OPTS"] = f"{class_options()} {spark.driver_options}"
        environment["SPARK_HOME"] = str(spark_home())
    server, master = (spark.url, SERVER) if kind == SERVER else ("", spark.driver_master)
    with job(line, ticket, folder, master, server=server, **environment) as running:
        yield running


def log_of(folder: Path) -> str:
    return (folder / "job.log").read_text(errors="replace")[-4000:]


def writer_at_work(line: Line, ticket: StagingTicket) -> psutil.Process:
    """A Python worker whose rows are copied and whose transaction is open."""
    return copying(line, ticket.application_name)


def copying(line: Line, name: str) -> psutil.Process:
    """As `writer_at_work`, by the name of the attempt's sessions."""

    asked = (
        "SELECT client_port, inet_server_port() FROM pg_stat_activity"
        " WHERE application_name = %s AND state = 'idle in transaction'"
    )

    def found() -> list[int]:
        # Both ends: another process may have the same port towards another server, such as Spark's towards its own.
        ends = set(line.query(asked, name))
        open_ones = psutil.net_connections(kind="tcp") if ends else []
        return [
            one.pid for one in open_ones if one.pid and one.laddr and one.raddr and (one.laddr[1], one.raddr[1]) in ends
        ]

    return psutil.Process(wait_for("a worker copies rows", found, 240)[0])


def family(spark: Spark) -> list[psutil.Process]:
    """The processes of the server and the cluster; without those that ended and were not reaped yet."""
    roots = [process_of(daemon.pid) for daemon in spark.daemons.values()]
    return [one for root in roots for one in (root, *root.children(recursive=True)) if _runs(one)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # ended since it was listed
        return False
