"""YARN over HDFS: a ResourceManager and two NodeManagers, whose containers are processes of this machine."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from uv import find_uv_bin

from epochline.local.home import LOOPBACK
from epochline.local.jars import find_java, installed_pyspark
from tests.integration.stores import Hdfs, configure
from tests.ports import free_port
from tests.waiting import wait_for
from tests.wheels import ROOT, build_wheel

_NODES = (1, 2)
_COMMANDS = {
    "hdfs": 'shift; exec spark-class org.apache.hadoop.fs.FsShell "$@"',
    "yarn": 'exec spark-class org.apache.hadoop.yarn.client.cli.ApplicationCLI "$@"',
}
"""Hadoop's commands, from the jars of pyspark."""

_BLOCK = re.compile(r"^```(shell|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Yarn(Hdfs):
    """The servers of a cluster, and what a machine has that submits to it.

    Attributes:
        client: environment of a process that submits, as an Airflow worker has it.
    """

    ivy = (*Hdfs.ivy, Path(__file__).with_suffix(".xml"))

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        manager = {f"yarn.resourcemanager.{name}": f"{LOOPBACK}:{free_port()}" for name in names}
        self._pages = f"http://{manager['yarn.resourcemanager.webapp.address']}/ws/v1/cluster"
        settings = {
            **manager,
            "yarn.nodemanager.resource.memory-mb": "6144", "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.scheduler.minimum-allocation-mb": "128",
            # Java reserves addresses that it never uses.
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            # A test reads what the launch of a container left.
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
        }  # fmt: skip
        configure(folder / "yarn-site.xml", settings)
        root = "yarn.scheduler.capacity.root"
        queues = {f"{root}.queues": "default", f"{root}.default.capacity": "100"}
        configure(
            folder / "capacity-scheduler.xml", {**queues, "yarn.scheduler.capacity.maximum-am-resource-percent": "1"}
        )
        # Without the servers' settings of their logs.
        conf, programs = folder / "conf", folder / "bin"
        conf.mkdir()
        for file in folder.glob("*-site.xml"):
            shutil.copy(file, conf)
        programs.mkdir()
        for name, command in _COMMANDS.items():
            (programs / name).write_text(f"#!/bin/sh\n{command}\n")
            (programs / name).chmod(0o755)
        self.client: Mapping[str, str] = {
            "HADOOP_CONF_DIR": str(conf),
            "JAVA_HOME": self.secrets()["JAVA_HOME"],
            "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "SPARK_LOCAL_IP": LOOPBACK,
        }

    def commands(self) -> Mapping[str, Sequence[str]]:
        return {
            **super().commands(),
            "resourcemanager": self._java("yarn.server.resourcemanager.ResourceManager"),
            **{f"nodemanager-{number}": self._node(number) for number in _NODES},
        }

    def _node(self, number: int) -> list[str]:
        own = {name: f"{LOOPBACK}:{free_port()}" for name in ("address", "localizer.address", "webapp.address")}
        own |= {f"{name}-dirs": str(self._folder / f"node-{number}" / name) for name in ("local", "log")}
        options = (f"-Dyarn.nodemanager.{name}={value}" for name, value in own.items())
        return [*self._java("yarn.server.nodemanager.NodeManager"), *options]

    def secrets(self) -> Mapping[str, str]:
        return {"JAVA_HOME": str(find_java().resolve().parents[1])}

    def start(self) -> None:
        super().start()
        wait_for("both nodes are there", lambda: self._nodes() == len(_NODES))

    def kill(self) -> None:
        for one in self.containers():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        super().kill()

    def _nodes(self) -> int:
        with suppress(URLError, ConnectionError):
            return int(self._asked("metrics")["clusterMetrics"]["activeNodes"])
        return 0

    def _asked(self, what: str) -> Any:
        with urlopen(f"{self._pages}/{what}", timeout=30) as answer:
            return json.load(answer)

    @property
    def running(self) -> set[str]:
        """Ids of the applications that have not ended."""
        apps = (self._asked("apps")["apps"] or {}).get("app", [])
        return {app["id"] for app in apps if app["finalStatus"] == "UNDEFINED"}

    def containers(self) -> list[psutil.Process]:
        """Every process that a node has started."""
        nodes = self._processes[-len(_NODES) :]
        return [one for node in nodes for one in node.children(recursive=True)]

    def holding(self, text: str) -> list[Path]:
        """The files of servers, containers and launches that hold a text, and that others than their owner may read."""
        files = (path for path in self._folder.rglob("*") if path.is_file() and not path.is_symlink())
        return [path for path in files if path.stat().st_mode & 0o077 and text.encode() in path.read_bytes()]

    def ship(self, commands: str) -> None:
        """Run the page's commands that pack an environment: with this checkout's wheel, pins and uv's cache."""
        build_wheel(self._folder / "wheel")
        pip = f"{find_uv_bin()} pip install --quiet --python environment/bin/python -c {ROOT / 'requirements.txt'}"
        subprocess.run(
            ["bash", "-e", "-c", commands.replace("environment/bin/pip install", pip)],
            env={**os.environ, **self.client, "UV_OFFLINE": "1", "UV_FIND_LINKS": str(self._folder / "wheel")},
            cwd=self._folder, check=True,
        )  # fmt: skip
        shutil.rmtree(self._folder / "environment")


def page() -> tuple[str, str, str]:
    """Of docs/spark-cluster.md: the commands that pack an environment, and the settings of both modes."""
    section = (ROOT / "docs" / "spark-cluster.md").read_text().partition("\n## On YARN\n")[2].partition("\n## ")[0]
    ((_, commands), (_, client), (_, cluster)) = _BLOCK.findall(section)
    return commands, client, cluster


def settings_of(mode: str, paths: Mapping[str, str]) -> dict[str, str]:
    """The page's ``spark_conf`` of a mode, with other paths, and what makes it small enough for one machine."""
    _, client, cluster = page()
    text = client + (cluster if mode == "cluster" else "")
    for path, here in paths.items():
        assert path in client + cluster, path
        text = text.replace(path, here)
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102 - the page's own text
    return {
        **names["spark_conf"],
        "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        # From there it gets to the executors.
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": LOOPBACK,
        # Spark is on every node.
        "spark.yarn.jars": f"local:{installed_pyspark()}/jars/*",
    }  # fmt: skip
