"""Kafka 4.2 as one KRaft node, with broker and controller in one process, on loopback."""

import logging
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from epochline.errors import StackError
from epochline.local import credentials
from epochline.local.home import LOOPBACK, write_private
from epochline.local.jars import KAFKA, JarSet, find_java
from epochline.local.part import Server, java_environment

_LOG_CONFIG = Path(__file__).with_name("kafka.log4j2.xml")
_PROBE_TOPIC = "epochline-readiness-probe"  # never created


class Kafka(Server):
    """The Kafka broker of one home."""

    name = "kafka"
    stop_signals = ((signal.SIGTERM, 30), (signal.SIGKILL, 5))

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address, for clients."""
        return f"{LOOPBACK}:{self.port}"

    def version(self) -> str:
        """The broker's version, from the lock file of its jars."""
        # To start a JVM for it would take a second.
        name = next(jar for jar in JarSet(KAFKA).expected if jar.startswith("kafka_2.13-"))
        return name.removeprefix("kafka_2.13-").removesuffix(".jar")

    def start(self, report: Callable[[str], None] = lambda _text: None) -> None:
        """Start the broker if it does not run. The first start fetches the jars and formats the storage."""
        if self.pid is not None:
            return
        java = str(find_java())
        class_path = f"{JarSet(KAFKA).ensure(report)[0].parent}/*"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        config = self._configure()
        # Formatting writes this file last. If it exists, skip the format, which starts a JVM.
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(java, class_path, config)
        self.daemon.start(
            [
                java, "-Xms256m", "-Xmx512m", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true",
                f"-Dlog4j2.configurationFile={_LOG_CONFIG}", f"-Djava.io.tmpdir={self.folder}",
                "-cp", class_path, "kafka.Kafka", str(config),
            ],
            environment=java_environment(),
            cwd=self.folder,
        )  # fmt: skip

    def health(self) -> str | None:
        """None if the broker is unfenced, its controller answers and each partition has a leader; else the problem."""
        if (closed := super().health()) is not None:
            return closed
        # Imported here, because stopping a stack needs no client.
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        # While the broker starts, connections are refused; the caller's log does not need to show it.
        logger = logging.getLogger("kafka")
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            with closing(
                KafkaAdminClient(
                    bootstrap_servers=self.bootstrap_servers, client_id="epochline-stack",
                    request_timeout_ms=5000, bootstrap_timeout_ms=2000,
                )
            ) as admin:  # fmt: skip
                cluster = admin.describe_cluster()["cluster_id"]
                if cluster != self._cluster_id():
                    return f"another Kafka cluster ({cluster}) answers on port {self.port}"
                # A fenced broker refuses it. It tests as much as possible without writing anything.
                admin.create_topics({_PROBE_TOPIC: {"num_partitions": 1, "replication_factor": 1}}, validate_only=True)
                waiting = [
                    f"{topic['name']}-{partition['partition_index']}"
                    for topic in admin.describe_topics()
                    for partition in topic["partitions"]
                    if partition["leader_id"] < 0
                ]
        except (KafkaError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            logger.setLevel(level)
        return f"{len(waiting)} partitions have no leader, for example {waiting[0]}" if waiting else None

    def _cluster_id(self) -> str:
        return credentials.require(self._home).kafka_cluster_id

    def _configure(self) -> Path:
        controller = self._ports.get("kafka_controller")
        settings = {
            **self._settings,
            "listeners": f"BROKER://{self.bootstrap_servers},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": f"BROKER://{self.bootstrap_servers}",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            "log.dirs": str(self.folder / "data"),
        }
        path = self.folder / "server.properties"
        # A backslash starts an escape in a properties file.
        lines = (f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items())
        write_private(path, "".join(lines))
        return path

    def _format(self, java: str, class_path: str, config: Path) -> None:
        # --ignore-formatted completes an interrupted format with the same cluster id.
        command = [
            java, "-Xmx256m", f"-Dlog4j2.configurationFile={_LOG_CONFIG}", "-cp", class_path,
            "kafka.tools.StorageTool", "format", "--ignore-formatted",
            "--cluster-id", self._cluster_id(), "--config", str(config),
        ]  # fmt: skip
        answer = subprocess.run(
            command, capture_output=True, text=True, env=java_environment(), cwd=self.folder, check=False
        )
        if answer.returncode != 0:
            raise StackError(
                f"Kafka's storage could not be formatted: {' '.join((answer.stderr + answer.stdout).split())}"
            )
