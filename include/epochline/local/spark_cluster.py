"""A standalone Spark master and two workers on loopback, for `epochline up --spark-cluster`."""

import base64
import json
import secrets
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from epochline.local import credentials
from epochline.local.class_archive import class_options
from epochline.local.home import Home, write_private
from epochline.local.ports import LOOPBACK, Ports
from epochline.local.process import Daemon, Part, shipped_settings
from epochline.local.spark_home import spark_home

WORKERS = ("spark-worker-1", "spark-worker-2")

_MASTER = "spark-master"
_PAGES = "org.apache.spark.ui.JWSFilter"
_DAEMON_OPTIONS = "-XX:+ExitOnOutOfMemoryError -XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class SparkCluster(Part):
    """The master and the workers of one home.

    A home has a cluster from the first `start` to the next `stop`. Every process of it listens on 127.0.0.1 and asks
    its peers for the home's secret, also an executor or a driver.
    """

    name = "spark_master"

    def __init__(self, home: Home, ports: Ports) -> None:
        signals = ((signal.SIGTERM, 15), (signal.SIGKILL, 5))
        super().__init__(home, ports, *(Daemon(home, name, stop_signals=signals) for name in (*WORKERS, _MASTER)))
        self.folder = home.path("spark-cluster")

    @property
    def started(self) -> bool:
        """Whether the home has a cluster, even if its processes crashed."""
        return self.daemons[_MASTER].started_at is not None

    @property
    def running(self) -> bool:
        """Whether the master runs."""
        return self.daemons[_MASTER].pid is not None

    @property
    def master(self) -> str:
        """Spark's master, for drivers."""
        return f"spark://{LOOPBACK}:{self.port}"

    @property
    def driver_options(self) -> str:
        """Options for ``SPARK_SUBMIT_OPTS`` that let a driver of spark-submit run on the cluster.

        They name a file, because Java reads the secret from there and ``ps`` shows the name only.
        """
        return shlex.quote(f"@{self.folder / 'driver.options'}")

    def _secret(self) -> dict[str, str]:
        secret = credentials.require(self._home).spark_cluster
        return {"spark.authenticate": "true", "spark.authenticate.secret": secret}

    def start(self, environment: Mapping[str, str], cores: int) -> None:
        """Start the processes that do not run. The environment is also that of the executors.

        Each worker offers four times the machine's cores, so that one of them has room for the server and for two
        drivers if the other is lost. Tasks often wait for a broker or the database.

        Raises:
            StackError: the master did not start, or a worker did not reach it.
        """
        if all(self.pids.values()):
            return
        self.folder.mkdir(mode=0o700, exist_ok=True)
        settings = self._configure(cores)
        options = (json.dumps(f"-D{name}={value}") for name, value in self._of_any_driver().items())
        write_private(self.folder / "driver.options", "".join(f"{option}\n" for option in options))
        environment = {
            **environment,
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
            "SPARK_DAEMON_MEMORY": "512m",
            # Of the executors; a worker overrides a driver's spark.local.dir.
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }
        daemon = self.daemons[_MASTER]
        if daemon.pid is None:
            daemon.start(
                [*_program("master.Master", settings), "--port", str(self.port)],
                environment=environment, cwd=self.folder,
            )  # fmt: skip
        # A worker that finds no master asks again only after some ten seconds.
        daemon.wait_ready(self.health, 60)
        for name in WORKERS:
            if self.daemons[name].pid is None:
                self.daemons[name].start(
                    [*_program("worker.Worker", settings), "--cores", str(4 * cores), "--memory", "8g",
                     "--work-dir", str(self.folder / name), self.master],
                    environment=environment, cwd=self.folder,
                )  # fmt: skip
        # A driver that comes before the second worker would take both of its executors on the first one.
        for name in WORKERS:
            self.daemons[name].wait_ready(partial(self._missing, name), 60)

    def _missing(self, worker: str) -> str | None:
        """None if a worker and the master are connected; else what is wrong.

        A new worker connects to the master. A master that was started again connects to the workers that it knew.
        """
        of_master = {connection.laddr.port for connection in self._connections(_MASTER)}
        remote = (connection.raddr for connection in self._connections(worker))
        connected = any(address and address.port in of_master for address in remote)
        return None if connected else "it has not reached the master"

    def _connections(self, name: str) -> Sequence[Any]:
        pid = self.daemons[name].pid
        try:
            return [] if pid is None else psutil.Process(pid).net_connections("tcp")
        except psutil.NoSuchProcess:
            return []

    def health(self) -> str | None:
        """None if the master listens; else what is wrong."""
        return None if super().health() is None else f"no Spark master listens on port {self.port}"

    def stop(self) -> bool:
        """End the workers with their executors, and the master. Returns whether one of them was running."""
        stopped = super().stop()
        # The next master would wait a minute for the workers and drivers of this one.
        shutil.rmtree(self.folder, ignore_errors=True)
        return stopped

    def driver_settings(self, cores: int) -> dict[str, str]:
        """Settings of a driver that stays: it takes an executor on each worker."""
        taken = {"spark.cores.max": str(2 * cores), "spark.executor.cores": str(cores)}
        return {**self._of_any_driver(), "spark.master": self.master, **taken}

    def _of_any_driver(self) -> dict[str, str]:
        return {
            **self._secret(),
            "spark.driver.host": LOOPBACK,
            "spark.executor.extraJavaOptions": f"-XX:+ExitOnOutOfMemoryError {class_options()}".rstrip(),
        }

    def _configure(self, cores: int) -> Path:
        """Write the settings of master and workers, with the secret, for their owner only."""
        settings = {
            **self._secret(),
            **shipped_settings(self.name),
            f"spark.{_PAGES}.param.secretKey": base64.urlsafe_b64encode(secrets.token_bytes(48)).decode(),
            "spark.deploy.recoveryDirectory": str(self.folder / "master"),
            # A driver that says nothing leaves room for a second one.
            "spark.deploy.defaultCores": str(cores),
        }
        return write_conf(self.folder / "cluster.conf", settings)


def write_conf(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a properties file of Spark that only its owner can read."""
    write_private(path, "".join(f"{name} {value}\n" for name, value in settings.items()))
    return path


def _program(name: str, settings: Path) -> list[str]:
    return [
        str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}",
        "--properties-file", str(settings), "--host", LOOPBACK, "--webui-port", "0",
    ]  # fmt: skip
