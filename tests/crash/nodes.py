"""A Kafka of three nodes, each a process, a broker and a controller; every partition has a replica on each."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from kafka.protocol.metadata import MetadataRequest

from epochline.local.home import LOOPBACK, Ports
from epochline.local.kafka import Kafka
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
    # The cleaner, and whatever ends transactions and deletes records, look often, so that a test need not wait for them.
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}

_OF_NETWORK = 0x40000000
"""The kind of a namespace, as the kernel names it."""

_NETWORK = f"10.{100 + os.getpid() % 100}.99"
"""Of nodes that are held apart, by this process alone, as are the names of links and namespaces."""


class Node(Kafka):
    """One node of a cluster; ``voters`` has the address of each controller by the number of its node."""

    number = 0
    cluster = ""
    voters = ""
    host = LOOPBACK
    namespace = ""
    """Of the kernel, with a network of the node's own; empty if it shares this process's."""

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    def _cluster_id(self) -> str:
        return self.cluster

    def health(self) -> str | None:
        """None if it listens: the others may be dead, and partitions without a leader."""
        try:
            socket.create_connection((self.host, self.port), 1).close()
        except OSError as error:
            return str(error)
        return None

    def _configure(self) -> Path:
        self._settings |= {**REPLICATED, "node.id": str(self.number)}
        path = super()._configure()
        lines = [line for line in path.read_text().splitlines() if not line.startswith("controller.quorum.voters")]
        text = "\n".join([*lines, f"controller.quorum.voters={self.voters}", ""])
        path.write_text(text.replace(f"CONTROLLER://{LOOPBACK}", f"CONTROLLER://{self.host}"))
        return path

    def start_in_its_network(self) -> None:
        """Start it, if it does not run; what this thread starts afterwards is in the same network."""
        if self.namespace:
            with Path("/run/netns", self.namespace).open() as file:
                assert ctypes.CDLL(None).setns(file.fileno(), _OF_NETWORK) == 0
        self.start()


class Nodes:
    """Three nodes, by their numbers from 1."""

    def __init__(self, folder: Path, settings: Mapping[str, str], *, apart: bool) -> None:
        self.stacks = [Stack(folder / str(number)) for number in (1, 2, 3)]
        self.nodes: dict[int, Node] = {}
        self._unheard: tuple[int, ...] = ()
        """Nodes that are cut off, and whose answers count for nothing."""
        voters = []
        for number, stack in enumerate(self.stacks, 1):
            choose_ports(stack.home)
            node = self.nodes[number] = stack.kafka = Node(stack.home, Ports(stack.home), settings)
            node.number, node.cluster = number, "ZXBvY2hsaW5lLXRocmVlLQ"
            if apart:
                node.host, node.namespace = f"{_NETWORK}.{number}", f"epochline-{os.getpid()}-kafka-{number}"
            voters.append(f"{number}@{node.host}:{Ports(stack.home).get('kafka_controller')}")
        for node in self.nodes.values():
            node.voters = ",".join(voters)

    @classmethod
    @contextlib.contextmanager
    def running(cls, settings: Mapping[str, str] | None = None, *, apart: bool = False) -> Iterator[Nodes]:
        """Nodes with further settings; where they are held ``apart``, which only root can do, one may be cut off."""
        folder = Path(tempfile.mkdtemp(prefix="epochline-nodes-"))
        cluster = cls(folder, settings or {}, apart=apart)
        try:
            if apart:
                cluster._wire()
            cluster.start(*cluster.nodes)
            yield cluster
        finally:
            for stack in cluster.stacks:
                throw_away(stack)
            if apart:
                cluster._unwire()
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def bootstrap_servers(self) -> str:
        return self.all_but(*self._unheard)

    def all_but(self, *numbers: int) -> str:
        """The addresses of the other nodes."""
        return ",".join(node.bootstrap_servers for number, node in self.nodes.items() if number not in numbers)

    def start(self, *numbers: int) -> None:
        """Start nodes side by side, and wait until each answers."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda number: self.nodes[number].start_in_its_network(), numbers))
        for number in numbers:
            self.nodes[number].wait()

    def mend(self) -> None:
        """Start the nodes that do not run, and wait until every replica is in sync."""
        self.start(*(number for number, node in self.nodes.items() if node.pid is None))
        self.in_sync_again()
        self.transactions(2)

    def in_sync_again(self) -> None:
        """Wait until every replica is in sync."""
        wait_for("every replica is in sync", lambda: not self.lagging())

    def lagging(self) -> list[str]:
        """The partitions of which some replica is not in sync by the word of some node.

        Each node is asked: one that was cut off says what was true before, until it has heard of its successors.
        """

        async def each(admin: Any) -> dict[int, Any]:
            await admin._get_cluster_metadata([])
            every = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            send = admin._manager.send
            return {number: await send(every, node_id=number, request_timeout_ms=5_000) for number in self.nodes}

        with contextlib.suppress(KafkaError), admin_of(self.bootstrap_servers) as admin:
            return [
                f"{topic.name}-{one.partition_index} by {number}"
                for number, told in admin._manager.run(each, admin).items()
                for topic in told.topics
                for one in topic.partitions
                if len(one.isr_nodes) < len(one.replica_nodes)
            ]
        return ["somebody does not answer"]

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

        def asked() -> int:
            # One that was cut off may know the others no more.
            with contextlib.suppress(KafkaError), admin_of(self.bootstrap_servers) as admin:
                return int(admin._manager.run(admin._find_coordinator_id, name, int(of_transactions)))
            return 0

        return int(wait_for(f"{name} has a coordinator", asked))

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

    def _wire(self) -> None:
        """Give each node a network of its own, on one bridge that this process is on."""
        bridge = f"ep{os.getpid()}k"
        _ip(f"link add {bridge} type bridge")
        _ip(f"addr add {_NETWORK}.254/24 dev {bridge}")
        _ip(f"link set {bridge} up")
        for number, node in self.nodes.items():
            _ip(f"netns add {node.namespace}")
            _ip(f"link add {bridge}{number} type veth peer name eth0 netns {node.namespace}")
            _ip(f"link set {bridge}{number} master {bridge} up")
            for words in (f"addr add {node.host}/24 dev eth0", "link set eth0 up", "link set lo up"):
                _ip(f"-n {node.namespace} {words}")

    def _unwire(self) -> None:
        for node in self.nodes.values():
            _ip(f"netns del {node.namespace}")
        _ip(f"link del ep{os.getpid()}k")

    @contextlib.contextmanager
    def cut_off(self, number: int) -> Iterator[None]:
        """Neither of the others hears a node, which goes on to answer its clients as it did before.

        Afterwards it has what the others took meanwhile. Until then it says where its own log ends, and who reads to
        there misses the rest.
        """
        others = [node.host for other, node in self.nodes.items() if other != number]
        namespace = self.nodes[number].namespace
        for host in others:
            _ip(f"-n {namespace} route add blackhole {host}/32")
        self._unheard = (number,)
        try:
            yield
        finally:
            for host in others:
                _ip(f"-n {namespace} route del blackhole {host}/32")
            self._unheard = ()
        self.in_sync_again()

    @contextlib.contextmanager
    def frozen(self, *numbers: int) -> Iterator[None]:
        """Nodes that hear and say nothing, hold their connections, and go on afterwards as if nothing had been."""
        processes = [process_of(self.nodes[number].pid) for number in numbers]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):  # killed meanwhile
                    process.resume()

    def copy(self) -> None:
        """Back up what all nodes hold; they stand still meanwhile."""
        self._restarted(lambda node: shutil.copytree(node.folder, node.folder.with_name("kafka-copy")))

    def put_back(self) -> None:
        """Put every node back to its copy: what the copies do not hold is lost."""

        def replace(node: Node) -> None:
            shutil.rmtree(node.folder)
            node.folder.with_name("kafka-copy").rename(node.folder)

        self._restarted(replace)

    def _restarted(self, change: Callable[[Node], object]) -> None:
        with ThreadPoolExecutor() as pool:  # A node that leaves in good order waits for those that are to lead.
            list(pool.map(Node.stop, self.nodes.values()))
        for node in self.nodes.values():
            change(node)
        self.mend()

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


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
