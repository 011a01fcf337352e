"""A Spark Connect server on loopback, so that an epoch finds Spark and its Python workers running.

It runs its tasks in threads of its own or, where the home has a cluster, in executors of that cluster.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from epochline.local import credentials
from epochline.local.class_archive import class_options
from epochline.local.home import Home, project_root, write_private
from epochline.local.java import find_java
from epochline.local.ports import LOOPBACK, Ports, is_listening
from epochline.local.process import Daemon
from epochline.local.server import Server
from epochline.local.spark_cluster import SparkCluster
from epochline.local.spark_home import spark_home

_POOLS = """<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
    <weight>1</weight>
    <minShare>0</minShare>
  </pool>
</allocations>
"""

_SETTINGS: Mapping[str, str] = {
    "spark.app.name": "epochline",
    "spark.driver.memory": "1g",
    # Epochs of two pipelines share the cores evenly, whichever came first.
    "spark.scheduler.mode": "FAIR",
    # A query whose client is gone ends within half a minute: a client attaches again every ten seconds, and is missed
    # after ten more. Nothing of such a query counts in any case.
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "10s",
    "spark.connect.execute.manager.detachedTimeout": "10s",
    "spark.connect.execute.manager.maintenanceInterval": "2s",
    # A pipeline that was idle for an hour may have its session's id again.
    "spark.connect.session.manager.closedSessionsTombstonesSize": "0",
    "spark.connect.grpc.binding.address": LOOPBACK,
    "spark.log.level": "WARN",
    "spark.redaction.regex": "(?i)secret|password|passwd|token|access[.]?key|jaas|credential",
    # The pages would show every plan of every pipeline, and have no login.
    "spark.ui.enabled": "false",
}


class Spark(Server):
    """The Spark Connect server of one home."""

    name = "spark"

    def __init__(
        self,
        home: Home,
        ports: Ports,
        settings: Mapping[str, str] | None = None,
        extra_pythonpath: Sequence[Path] = (),
    ) -> None:
        super().__init__(
            home, ports, {**_SETTINGS, **(settings or {})},
            stop_signals=((signal.SIGTERM, 15), (signal.SIGKILL, 5)),
        )  # fmt: skip
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
        """Start the server if it does not run, after the cluster if the home has one.

        Args:
            on_cluster: gives the home a cluster, which it keeps until `stop`.
        """
        find_java()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        home = spark_home()
        if on_cluster or self.cluster.started:
            self.cluster.start(self._environment(home), self.cores)
        if self.pid is not None:
            return
        # The token is in a file that only its owner can read, because arguments are not (SEC-4).
        command = [
            str(home / "bin" / "spark-submit"), "--properties-file", str(self._configure()),
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        ]  # fmt: skip
        self.daemon.start(command, environment=self._environment(home), cwd=self.folder)

    def wait(self, seconds: float = 120) -> None:
        """Wait until the server listens."""
        self.daemon.wait_ready(self.health, seconds)

    def health(self) -> str | None:
        """None if the server listens; else what is wrong."""
        if not is_listening(self.port):
            return f"nothing listens on port {self.port}"
        return self.cluster.health() if self.cluster.started else None

    def stop(self) -> bool:
        """End the server and its cluster. Returns whether one of them was running."""
        return any([super().stop(), self.cluster.stop()])

    def _configure(self) -> Path:
        pools = self.folder / "pools.xml"
        pools.write_text(_POOLS)
        settings = {
            **self._settings,
            **self._where_tasks_run(),
            "spark.default.parallelism": str(self.cores),
            "spark.scheduler.allocation.file": pools.as_uri(),
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.authenticate.token": credentials.require(self._home).spark_token,
        }
        path = self.folder / "spark.conf"
        write_private(path, "".join(f"{name} {value}\n" for name, value in settings.items()))
        return path

    def _where_tasks_run(self) -> dict[str, str]:
        if self.cluster.started:
            return self.cluster.driver_settings(self.cores)
        # A task that fails is tried again, as on a cluster. An epoch stages with a task for each core, and there is
        # room for those of another epoch, because tasks often wait for a broker or the database.
        return {"spark.master": f"local[{2 * self.cores},4]"}

    def _environment(self, home: Path) -> dict[str, str]:
        kept = ("PATH", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "LANG", "HOME", "TMPDIR", "PYTHONDONTWRITEBYTECODE")
        project = project_root()
        path = [project / "include", project / "spark_jobs", *self._extra_pythonpath]
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "EPOCHLINE_HOME": str(self._home.root),
            "EPOCHLINE_PROJECT": str(project),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in path),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_SUBMIT_OPTS": f"-XX:+ExitOnOutOfMemoryError {class_options()}".rstrip(),
        }
