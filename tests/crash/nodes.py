"""A Kafka of three nodes, each a process, a broker and a controller; every partition has a replica on each."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kafka.admin import NewTopic
from kafka.errors import KafkaError

from epochline.local.home import LOOPBACK, Ports
from epochline.local.kafka import Kafka
from epochline.local.part import Server
from epochline.local.stack import Stack
from tests.conftest import throw_away
from tests.crash.servers import process_of
from tests.integration.kafka_topics import admin_of
from tests.ports import choose_ports
from tests.waiting import wait_for

REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # A follower that stands still leaves the replicas in sync after this time.
    "replica.lag.time.max.ms": "3000",
    "controlled.shutdown.retry.backoff.ms": "500",
}


class Node(Kafka):
    """One node of a cluster; ``voters`` has the address of each controller by the number of its node."""

    number = 0
    cluster = ""
    voters = ""

    def _cluster_id(self) -> str:
        return self.cluster

    def health(self) -> str | None:
        """None if it listens: the others may be dead, and partitions without a leader."""
        return Server.health(self)

    def _configure(self) -> Path:
        self._settings |= {**REPLICATED, "node.id": str(self.number)}
        path = super()._configure()
        lines = [line for line in path.read_text().splitlines() if not line.startswith("controller.quorum.voters")]
        path.write_text("\n".join([*lines, f"controller.quorum.voters={self.voters}", ""]))
        return path


class Nodes:
    """Three nodes, by their numbers from 1."""

    def __init__(self, folder: Path) -> None:
        self.stacks = [Stack(folder / str(number)) for number in (1, 2, 3)]
        self.nodes: dict[int, Node] = {}
        ports = []
        for number, stack in enumerate(self.stacks, 1):
            choose_ports(stack.home)
            ports.append(Ports(stack.home).get("kafka_controller"))
            self.nodes[number] = stack.kafka = Node(stack.home, Ports(stack.home))
        for number, node in self.nodes.items():
            node.number, node.cluster = number, "ZXBvY2hsaW5lLXRocmVlLQ"
            node.voters = ",".join(f"{one}@{LOOPBACK}:{port}" for one, port in enumerate(ports, 1))

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Nodes]:
        folder = Path(tempfile.mkdtemp(prefix="epochline-nodes-"))
        cluster = cls(folder)
        try:
            cluster.start(*cluster.nodes)
            yield cluster
        finally:
            for stack in cluster.stacks:
                throw_away(stack)
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def bootstrap_servers(self) -> str:
        return self.all_but()

    def all_but(self, *numbers: int) -> str:
        """The addresses of the other nodes."""
        return ",".join(node.bootstrap_servers for number, node in self.nodes.items() if number not in numbers)

    def start(self, *numbers: int) -> None:
        """Start nodes side by side, and wait until each answers."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda number: self.nodes[number].start(), numbers))
        for number in numbers:
            self.nodes[number].wait()

    def mend(self) -> None:
        """Start the nodes that do not run, and wait until every replica is in sync."""
        self.start(*(number for number, node in self.nodes.items() if node.pid is None))
        wait_for("every replica is in sync", lambda: not self.lagging())
        self.transactions(2)

    def lagging(self) -> list[str]:
        """The partitions of which some replica is not in sync."""
        with contextlib.suppress(KafkaError), admin_of(self.bootstrap_servers) as admin:
            return [
                f"{topic['name']}-{one['partition_index']}"
                for topic in admin.describe_topics()
                for one in topic["partitions"]
                if len(one["isr_nodes"]) < len(one["replica_nodes"])
            ]
        return ["nobody answers"]

    def make_topic(self, name: str, replicas: Sequence[int]) -> None:
        """Make a topic of one partition that may lose records: one replica in sync is enough."""
        configs = {"min.insync.replicas": "1"}
        with admin_of(self.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, -1, -1, {0: list(replicas)}, configs)])
        self.leader(name)

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        """The nodes whose replicas of a partition are in sync."""
        return sorted(self._described(topic)[partition]["isr_nodes"])

    def leader(self, topic: str, partition: int = 0) -> int:
        """The number of the node that leads a partition."""

        def led_by() -> int:
            return max(0, int(self._described(topic)[partition]["leader_id"]))

        return int(wait_for(f"{topic}-{partition} has a leader", led_by))

    def _described(self, topic: str) -> dict[int, dict[str, Any]]:
        """The partitions of a topic. A node that has just died may be asked first."""

        def asked() -> Any:
            with contextlib.suppress(KafkaError), admin_of(self.bootstrap_servers) as admin:
                return admin.describe_topics([topic])[0]["partitions"]
            return None

        found = wait_for(f"a node describes {topic}", asked)
        return {one["partition_index"]: one for one in found}

    def controller(self) -> int:
        """The number of the node whose controller leads the others."""
        with admin_of(self.bootstrap_servers) as admin:
            (topic,) = admin.describe_metadata_quorum()["topics"]
            return int(topic["partitions"][0]["leader_id"])

    def coordinator(self, name: str, *, of_transactions: bool = False) -> int:
        """The number of the node that coordinates a consumer group, or the transactions of an id."""
        with admin_of(self.bootstrap_servers) as admin:
            return int(admin._manager.run(admin._find_coordinator_id, name, int(of_transactions)))

    def transactions(self, version: int) -> None:
        """Let the coordinators of transactions follow one of the two protocols (KIP-890)."""
        with admin_of(self.bootstrap_servers) as admin:
            how = "UPGRADE" if version > 1 else "SAFE_DOWNGRADE"
            if admin.describe_features()["transaction.version"]["finalized"][1] != version:
                admin.update_features({"transaction.version": (how, version)})

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            process = process_of(self.nodes[number].pid)
            process.kill()
            process.wait(20)

    @contextlib.contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """A node that hears and says nothing, holds its connections, and goes on afterwards as if nothing had been."""
        pid = self.nodes[number].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def roll(self) -> None:
        """Restart one node after the other in good order, as an upgrade does."""
        for node in self.nodes.values():
            node.stop()
            self.mend()

    def elect_unclean(self, topic: str) -> None:
        """Make a replica that is not in sync the leader, once no other leads: what only the others have is lost."""
        wait_for(f"nobody leads {topic}", lambda: self._described(topic)[0]["leader_id"] < 0)
        with admin_of(self.bootstrap_servers) as admin:
            admin.elect_leaders(1, {topic: [0]})
