"""A Spark Connect server on loopback, so that an epoch finds Spark and its Python workers running.

It runs its tasks in threads of its own or, where the home has a cluster, in executors of that cluster.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from epochline.local import credentials
from epochline.local.class_archive import class_options
from epochline.local.home import Home, project_root
from epochline.local.jars import find_java
from epochline.local.ports import LOOPBACK, Ports
from epochline.local.process import Daemon, Server, java_environment
from epochline.local.spark_cluster import SparkCluster, write_conf
from epochline.local.spark_home import spark_home

POOLS = project_root() / "include" / "docker" / "spark-pools.xml"
"""The scheduler's pools, the same as in a container."""


class Spark(Server):
    """The Spark Connect server of one home."""

    name = "spark"

    def __init__(
        self, home: Home, ports: Ports, settings: Mapping[str, str] | None = None, extra_pythonpath: Sequence[Path] = ()
    ) -> None:
        stop_signals = ((signal.SIGTERM, 15), (signal.SIGKILL, 5))
        super().__init__(home, ports, settings, stop_signals=stop_signals)
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
    project = project_root()
    path = [project / "include", project / "spark_jobs", *extra_pythonpath]
    return {
        "EPOCHLINE_HOME": str(home.root),
        "EPOCHLINE_PROJECT": str(project),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "SPARK_HOME": str(spark),
        # By default the driver and its user interface listen on every address of the machine.
        "SPARK_LOCAL_IP": LOOPBACK,
    }
