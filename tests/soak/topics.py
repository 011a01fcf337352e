"""Who reads a soak's topics while everything breaks: a read_committed and a read_uncommitted consumer, from the start."""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.soak.pipelines import PARTITIONS, key_of
from tests.soak.watch import Exactness
from tests.waiting import idle_seconds

_END_SECONDS = 60.0

# A broker that is killed now and then is what the soak is about: not a line each time.
_lines = logging.getLogger("soak.librdkafka")
_lines.addHandler(logging.NullHandler())
_lines.propagate = False


@dataclass(eq=False)
class _Reader(threading.Thread):
    """One consumer of every topic, never away; it remembers what it saw, in the order in which it saw it."""

    bootstrap: str
    topics: Sequence[str]
    isolation: str
    values: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._next = {(topic, partition): 0 for topic in self.topics for partition in range(PARTITIONS)}
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Read to the end as it is now."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": "soak", "isolation.level": self.isolation,
                "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error",
                "logger": _lines,
            }
        )  # fmt: skip
        try:
            self._assign(consumer)
            while not self._stopping.is_set():
                self._take(consumer.poll(0.2), set())
            self._assign(consumer)  # Asked again, Kafka says where the end is now.
            left, idle = set(self._next), idle_seconds()
            while left and idle_seconds() - idle < _END_SECONDS:
                self._take(consumer.poll(0.2), left)
            self.wrong += [f"{topic}-{partition} was not read to its end" for topic, partition in sorted(left)]
        except Exception as error:
            self.wrong.append(f"the {self.isolation} consumer ended: {type(error).__name__}: {error}")
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(topic, partition, at) for (topic, partition), at in self._next.items()])

    def _take(self, message: Message | None, left: set[tuple[str, int]]) -> None:
        if message is None:
            return
        where = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is None:
            self._next[where] = int(message.offset() or 0) + 1
            self.values[where[0]].append((message.value() or b"").decode())
        elif error.code() == KafkaError._PARTITION_EOF:
            left.discard(where)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self.wrong.append(f"{where[0]}-{where[1]} lost what was read: {error.str()}")


class TopicWatch:
    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self._readers = [_Reader(bootstrap, topics, one) for one in ("read_committed", "read_uncommitted")]

    def start(self) -> None:
        for one in self._readers:
            one.start()

    def stop(self) -> list[str]:
        """Let both read to the end. Returns why what they saw proves nothing."""
        for one in self._readers:
            one.stop()
        return [reason for one in self._readers for reason in one.wrong]

    def compare(self, topic: str, log: Iterable[tuple[int, int, str]]) -> Exactness:
        """Hold what the read_committed consumer saw against the records of the log: partition, offset, value."""
        produced = [value for _, _, value in sorted(log)]
        came, every = (one.values[topic] for one in self._readers)
        return verdict(topic, came, every, produced)


def verdict(topic: str, came: Sequence[str], every: Sequence[str], produced: Sequence[str]) -> Exactness:
    """Hold values that came, and all that uncommitted readers saw, against those that were produced, in order."""
    wanted, seen = Counter(produced), Counter(came)
    more = seen - wanted
    keyed, expected = _by_key(came), _by_key(produced)
    disordered = [
        key for key, values in expected.items() if keyed[key] != values and sorted(keyed[key]) == sorted(values)
    ]
    return Exactness(
        name=topic, records=len(produced), missing=(wanted - seen).total(),
        duplicates=sum(times for value, times in more.items() if value in wanted),
        strangers=sum(1 for value in more if value not in wanted),
        disordered=len(disordered), hidden=len(every) - len(came),
    )  # fmt: skip


def _by_key(values: Iterable[str]) -> defaultdict[str, list[str]]:
    keyed: defaultdict[str, list[str]] = defaultdict(list)
    for value in values:
        keyed[key_of(value)].append(value)
    return keyed
