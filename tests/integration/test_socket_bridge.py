"""The bridge from a socket to Kafka: what a transaction hides and shows, and what nobody can promise (E4, G6, X10)."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition

from epochline_examples.socket_bridge import FROM_KAFKA_ON
from tests.integration.kafka_topics import Topic, values
from tests.waiting import wait_until

FILE = Path(__file__).parents[2] / "include" / "epochline_examples" / "socket_bridge.py"
PROGRAM = [sys.executable, str(FILE), "--listen", "127.0.0.1:0"]
PATIENCE = 60.0
ABC = [b"a", b"b", b"c"]


class BridgedTopic(Topic):
    """A topic with one partition, as readers of either kind see it."""

    def end(self, isolation: str) -> int:
        partition = TopicPartition(self.name, 0)
        with closing(KafkaConsumer(bootstrap_servers=self.servers, isolation_level=isolation)) as consumer:
            return int(consumer.end_offsets([partition])[partition])

    @property
    def committed(self) -> list[bytes]:
        return values(self.servers, self.name)

    @property
    def sent(self) -> list[bytes]:
        return values(self.servers, self.name, "read_uncommitted")


class Bridge:
    """A process of the program; what it says is kept."""

    def __init__(self, bootstrap: str, topic: str, *options: str) -> None:
        # A long interval, unless a test says otherwise: nothing is committed before somebody asks for it.
        command = [*PROGRAM, "--bootstrap-servers", bootstrap, "--topic", topic, "--interval", "800", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = ""
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        wait_until(lambda: "listening on" in self.said or self.process.poll() is not None)
        found = re.search(r"listening on (.*):(\d+)", self.said)
        assert found is not None, self.process.stderr and self.process.stderr.read()
        self._address = (found[1], int(found[2]))

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def client(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=PATIENCE)

    def stop(self) -> int:
        """As an operator does it."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._listener.join()
        with self.process:  # closes its pipes
            return code


Start = Callable[..., Bridge]


@contextmanager
def sending(bridge: Bridge, topic: BridgedTopic, data: bytes, *sent: bytes) -> Iterator[socket.socket]:
    """A client that is there as long as the block, and has sent these bytes: they make these lines of the topic."""
    with bridge.client() as client:
        client.sendall(data)
        wait_until(lambda: topic.sent == list(sent))
        yield client


@pytest.fixture
def topic(kafka_bootstrap: str, topic_name: str) -> BridgedTopic:
    return BridgedTopic(kafka_bootstrap, topic_name).make()


@pytest.fixture
def start(kafka_bootstrap: str, topic: BridgedTopic) -> Iterator[Start]:
    bridges: list[Bridge] = []

    def make(*options: str) -> Bridge:
        bridges.append(Bridge(kafka_bootstrap, topic.name, *options))
        return bridges[-1]

    yield make
    for one in bridges:
        one.kill()


def test_lines_are_sent_at_once_and_shown_by_the_commit_in_their_order(start: Start, topic: BridgedTopic) -> None:
    """E4, G6: what is promised is its first word; before the commit read_committed 0 and read_uncommitted 3; then a, b, c."""
    bridge = start("--semantics", "exactly-once", "--from-kafka-on")
    assert bridge.said.startswith(f"{FROM_KAFKA_ON}: a crash loses uncommitted lines")
    with sending(bridge, topic, b"a\nb\nc\n", *ABC):
        assert topic.committed == []

        assert bridge.stop() == 0

    assert topic.committed == ABC
    assert "> a\n> b\n> c\n" in bridge.said
    assert "committed: 3 lines" in bridge.said


def test_a_killed_bridge_has_sent_nothing_and_the_next_one_goes_on(start: Start, topic: BridgedTopic) -> None:
    """E4, X10: kill -9 before the commit: read_committed 0 for good, the lines are lost, the next bridge's are not."""
    bridge = start()
    assert bridge.said.startswith("at-most-once from the socket on: a crash loses uncommitted lines")
    with sending(bridge, topic, b"a\nb\nc\n", *ABC):
        bridge.kill()
    assert topic.committed == []
    assert topic.end("read_committed") == 0, "the transaction still hangs"

    following = start()
    assert topic.committed == []
    assert topic.end("read_committed") == topic.end("read_uncommitted"), "the start has aborted what hung"
    with sending(following, topic, b"d\n", *ABC, b"d"):
        pass
    assert following.stop() == 0

    assert topic.committed == [b"d"]


def test_what_a_killed_bridge_left_open_kafka_itself_aborts_in_time(start: Start, topic: BridgedTopic) -> None:
    """E4, K17: nobody starts another; after the transaction's time-out readers go on, and have seen nothing of it."""
    bridge = start("--transaction-timeout", "10", "--interval", "9")
    with sending(bridge, topic, b"a\n", b"a"):
        bridge.kill()

    wait_until(lambda: topic.end("read_committed") == topic.end("read_uncommitted") > 0)

    assert topic.committed == []


def test_a_transaction_ends_with_its_last_line(start: Start, topic: BridgedTopic) -> None:
    """E4: three lines to a transaction; the fourth waits in the next one until the bridge is stopped."""
    bridge = start("--lines", "3")
    with sending(bridge, topic, b"a\nb\nc\nd\n", *ABC, b"d"):
        assert topic.committed == ABC

        bridge.stop()

    assert topic.committed == [*ABC, b"d"]


def test_a_transaction_ends_with_its_interval(start: Start, topic: BridgedTopic) -> None:
    """E4: however few lines there are, and then the next one begins."""
    bridge = start("--interval", "0.5")
    with bridge.client() as client:
        client.sendall(b"a\n")
        wait_until(lambda: topic.committed == [b"a"])
        client.sendall(b"b\n")
        wait_until(lambda: topic.committed == [b"a", b"b"])


def test_a_line_that_comes_in_pieces_is_one_and_one_without_its_end_is_none(start: Start, topic: BridgedTopic) -> None:
    """X10: the rest of a client that is gone could be half a line; it is not taken, and that is said."""
    bridge = start()
    with sending(bridge, topic, b"first\n\nsec", b"first", b"") as client:
        client.sendall(b"ond\r\n\xff third\nrest")
    wait_until(lambda: "its last 4 bytes have no end of line and are not accepted" in bridge.said)

    assert bridge.stop() == 0

    assert topic.committed == [b"first", b"", b"second", b"\xff third"]


def test_a_client_that_is_cut_off_leaves_its_lines_and_disturbs_nobody(start: Start, topic: BridgedTopic) -> None:
    """E4: what it had sent is in the same transaction as the lines of who comes after it."""
    bridge = start()
    client = bridge.client()
    client.sendall(b"a\nhalf")
    wait_until(lambda: topic.sent == [b"a"])
    # With nothing to linger for, closing resets the connection.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    wait_until(lambda: "its connection broke" in bridge.said)

    with sending(bridge, topic, b"b\n", b"a", b"b"):
        bridge.stop()

    assert topic.committed == [b"a", b"b"]


def test_lines_of_two_clients_are_all_there_each_client_s_in_its_order(start: Start, topic: BridgedTopic) -> None:
    """E4."""
    bridge = start()
    lines = {name: [b"%s %d" % (name, number) for number in range(100)] for name in (b"one", b"two")}
    with bridge.client() as one, bridge.client() as two:
        for first, second in zip(*lines.values(), strict=True):
            one.sendall(first + b"\n")
            two.sendall(second + b"\n")
        wait_until(lambda: len(topic.sent) == 200)
    bridge.stop()

    found = topic.committed
    assert {name: [line for line in found if line.startswith(name)] for name in lines} == lines


def test_a_line_that_no_record_can_hold_ends_its_client_and_not_the_bridge(start: Start, topic: BridgedTopic) -> None:
    bridge = start()
    with bridge.client() as client:
        client.sendall(b"x" * 1_000_001)
        wait_until(lambda: "more than 1000000 bytes is not accepted" in bridge.said)
    with bridge.client() as client:
        client.sendall(b"y" * 1_000_000 + b"\na\n")
        wait_until(lambda: "> a\n" in bridge.said)
    assert bridge.stop() == 0

    assert [len(line) for line in topic.committed] == [1_000_000, 1]


def test_a_bridge_that_another_has_replaced_says_what_is_lost(start: Start, topic: BridgedTopic) -> None:
    """P9: one transactional id, one bridge; the older one's lines are aborted, and it ends."""
    older = start()
    with sending(older, topic, b"a\n", b"a"):
        start()
        older.process.terminate()
        assert older.process.stderr is not None
        complaint = older.process.stderr.read()

    assert older.wait() == 1
    assert "Uncommitted lines lost: 1" in complaint
    assert topic.committed == []


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (("--semantics", "exactly-once"), f"a socket cannot be read again.*{FROM_KAFKA_ON}: add --from-kafka-on"),
        (("--from-kafka-on",), "--from-kafka-on needs --semantics exactly-once"),
        (("--interval", "900"), "--interval must be shorter"),
        (("--listen", "9999"), "'9999' is not host:port"),
    ],
    ids=["unlabelled", "label alone", "interval", "address"],
)
def test_what_nobody_can_promise_is_refused(options: tuple[str, ...], answer: str) -> None:
    """G6: a source that cannot be read again is refused unless it is labelled."""
    command = [*PROGRAM, "--bootstrap-servers", "none", "--topic", "t", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert done.returncode == 2
    assert re.search(answer, " ".join(done.stderr.split()))
