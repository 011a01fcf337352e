"""A Spark Connect server on loopback, so that an epoch finds Spark and its Python workers running.

Its tasks run in its threads. After `epochline up --spark-cluster` they run in executors of a standalone cluster.
"""

import base64
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from epochline.config import places
from epochline.local import credentials
from epochline.local.class_archive import class_options
from epochline.local.home import LOOPBACK, Home, Ports, write_private
from epochline.local.jars import find_java
from epochline.local.part import Part, Server, java_environment, shipped_settings
from epochline.local.process import Daemon
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
        super().__init__(home, ports, *WORKERS, _MASTER)
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

        def launch(name: str, program: str, *arguments: str) -> None:
            if self.daemons[name].pid is None:
                command = [
                    str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}",
                    "--properties-file", str(settings), "--host", LOOPBACK, "--webui-port", "0", *arguments,
                ]  # fmt: skip
                self.daemons[name].start(command, environment=environment, cwd=self.folder)

        launch(_MASTER, "master.Master", "--port", str(self.port))
        # A worker that finds no master asks again only after some ten seconds.
        self.daemons[_MASTER].wait_ready(self.health, 60)
        for name in WORKERS:
            room = ("--cores", str(4 * cores), "--memory", "8g")
            launch(name, "worker.Worker", *room, "--work-dir", str(self.folder / name), self.master)
        # A driver that comes before the second worker would take both of its executors on the first one.
        for name in WORKERS:
            self.daemons[name].wait_ready(partial(self._missing, name), 60)

    def _missing(self, worker: str) -> str | None:
        """None if a worker and the master are connected; else what is wrong.

        A new worker connects to the master. A master that was started again connects to the workers that it knew.
        """

        def connections(name: str) -> Sequence[Any]:
            pid = self.daemons[name].pid
            with suppress(psutil.NoSuchProcess):
                return [] if pid is None else psutil.Process(pid).net_connections("tcp")
            return []

        of_master = {connection.laddr.port for connection in connections(_MASTER)}
        remote = (connection.raddr for connection in connections(worker))
        connected = any(address and address.port in of_master for address in remote)
        return None if connected else "it has not reached the master"

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
        resources = {"spark.cores.max": str(2 * cores), "spark.executor.cores": str(cores)}
        return {**self._of_any_driver(), "spark.master": self.master, **resources}

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


POOLS = Path(__file__).with_name("spark-pools.xml")
"""The scheduler's pools, the same as in a container."""


class Spark(Server):
    """The Spark Connect server of one home."""

    name = "spark"

    def __init__(
        self, home: Home, ports: Ports, settings: Mapping[str, str] | None = None, extra_pythonpath: Sequence[Path] = ()
    ) -> None:
        super().__init__(home, ports, settings)
        self._extra_pythonpath = extra_pythonpath
        self.cluster = SparkCluster(home, ports)

    @property
    def address(self) -> str:
        """The server's address without the token."""
        # Spark's client sends a token without TLS to no other name.
        return f"sc://localhost:{self.port}"

    @property
    def url(self) -> str:
        """The server's address with the token, for clients. It is a secret."""
        return f"{self.address}/;token={credentials.require(self._home).spark_token}"

    @property
    def cores(self) -> int:
        """How many tasks of an epoch run at once."""
        return os.cpu_count() or 1

    @property
    def daemons(self) -> dict[str, Daemon]:
        """The server's process and, if the home has a cluster, those of the cluster."""
        return {self.name: self.daemon, **(self.cluster.daemons if self.cluster.started else {})}

    @property
    def driver_master(self) -> str:
        """Spark's master for a driver that spark-submit starts."""
        return self.cluster.master if self.cluster.started else "local[2]"

    @property
    def driver_options(self) -> str:
        """More options for ``SPARK_SUBMIT_OPTS`` of such a driver."""
        return self.cluster.driver_options if self.cluster.started else ""

    def version(self) -> str:
        """The installed version of Spark."""
        return version("pyspark")

    def start(self, *, on_cluster: bool = False) -> None:
        """Start the server if it does not run, after the cluster. With `on_cluster` the home has one until `stop`."""
        find_java()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        home = spark_home()
        if on_cluster or self.cluster.started:
            self.cluster.start(self._environment(home), self.cores)
        if self.pid is not None:
            return
        # The token is in a file that only its owner can read, because arguments are not.
        command = [
            str(home / "bin" / "spark-submit"), "--properties-file", str(self._configure()),
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        ]  # fmt: skip
        self.daemon.start(command, environment=self._environment(home), cwd=self.folder)

    def health(self) -> str | None:
        """None if the server listens; else what is wrong."""
        return super().health() or (self.cluster.health() if self.cluster.started else None)

    def stop(self) -> bool:
        """End the server and its cluster. Returns whether one of them was running."""
        return any([self.daemon.stop(), self.cluster.stop()])

    def _configure(self) -> Path:
        settings = {
            **self._settings,
            # A task that fails is tried again, as on a cluster. An epoch stages with a task for each core, and there is
            # room for those of another epoch, because tasks often wait for a broker or the database.
            "spark.master": f"local[{2 * self.cores},4]",
            **(self.cluster.driver_settings(self.cores) if self.cluster.started else {}),
            "spark.default.parallelism": str(self.cores),
            "spark.scheduler.allocation.file": POOLS.as_uri(),
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.authenticate.token": credentials.require(self._home).spark_token,
        }
        return write_conf(self.folder / "spark.conf", settings)

    def _environment(self, home: Path) -> dict[str, str]:
        bytecode = os.environ.get("PYTHONDONTWRITEBYTECODE")
        return {
            **java_environment(),
            **({} if bytecode is None else {"PYTHONDONTWRITEBYTECODE": bytecode}),
            **task_environment(self._home, home, self._extra_pythonpath),
            "SPARK_SUBMIT_OPTS": f"-XX:+ExitOnOutOfMemoryError {class_options()}".rstrip(),
        }


def task_environment(home: Home, spark: Path, extra_pythonpath: Sequence[Path]) -> dict[str, str]:
    """The variables by which a driver or worker of Spark finds Spark, the project and its home."""
    checkout = places.checkout()
    # Installed, the package is in every process's path anyway, behind the standard library.
    path = [*([checkout / "include"] if checkout else []), places.functions_folder(), *extra_pythonpath]
    return {
        "EPOCHLINE_HOME": str(home.root),
        "EPOCHLINE_PROJECT": str(places.project_folder()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "SPARK_HOME": str(spark),
        # By default the driver and its user interface listen on every address of the machine.
        "SPARK_LOCAL_IP": LOOPBACK,
    }
