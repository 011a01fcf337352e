"""Two consumers that are attached to a topic as long as a test lasts: one of committed records, one of every record.

What each was given is kept in the order in which it came, so that what is judged at the end is what was seen all along.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.waiting import wait_for

T = TypeVar("T")
Keyed = tuple[str, str]


@dataclass(frozen=True)
class Given:
    partition: int
    offset: int
    key: str
    value: str


class Watcher:
    """One consumer in a thread of its own, from the first record of the topic on."""

    def __init__(self, bootstrap: str, topic: str, isolation: str) -> None:
        self.given: list[Given] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._consumer = _consumer(bootstrap, isolation)
        partitions = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self._topic = topic
        self._positions = dict.fromkeys(partitions, 0)
        self._consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
        self._thread = threading.Thread(target=self._watch, name=f"{isolation} of {topic}", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._ended.is_set():
                for message in self._consumer.consume(500, 0.1):
                    self._take(message)
        except BaseException as error:
            self._error = error
        finally:
            self._consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            partition, offset = known(message.partition()), known(message.offset())
            key, value = known(message.key()), known(message.value())
            self.given.append(Given(partition, offset, key.decode(), value.decode()))
            self._positions[partition] = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._positions[known(message.partition())] = known(message.offset())
        elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise AssertionError(f"the consumer lost its place in {self._topic}: {error}")
        # Any other error says that the broker is away, and the consumer waits.

    def catch_up(self, ends: Mapping[int, int]) -> None:
        """Wait until everything before these offsets was given, as far as it may be seen."""

        def there() -> bool:
            if self._error is not None:
                raise self._error
            return all(self._positions[partition] >= end for partition, end in ends.items())

        wait_for(f"the consumer of {self._topic} has read to {dict(ends)}", there)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


def known(value: T | None) -> T:
    """What a record and the end of a partition have, and other errors may lack."""
    assert value is not None
    return value


class Watchers:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.committed = Watcher(bootstrap, topic, "read_committed")
        self.every = Watcher(bootstrap, topic, "read_uncommitted")

    def end(self) -> None:
        self.committed.end()
        self.every.end()

    def undecided(self) -> bool:
        return undecided(self._bootstrap, self._topic)

    def decided(self) -> None:
        all_decided(self._bootstrap, self._topic)

    def whole_epochs(self, epochs: Mapping[int, Sequence[Keyed]]) -> list[int]:
        """The epochs that are visible now, while nobody commits: each is there whole, in order, and no record twice."""
        self.committed.catch_up(ends(self._bootstrap, self._topic, "read_committed"))
        given = list(self.committed.given)
        _assert_in_order(given, epochs)
        counted = Counter((one.key, one.value) for one in given)
        visible = [epoch for epoch, records in epochs.items() if any(counted[record] for record in records)]
        assert visible == list(epochs)[: len(visible)], "an epoch is visible before an earlier one"
        expected = Counter(record for epoch in visible for record in epochs[epoch])
        assert counted == expected, f"missing {list(expected - counted)[:3]}, extra {list(counted - expected)[:3]}"
        return visible

    def check_all(self, epochs: Mapping[int, Sequence[Keyed]]) -> int:
        """At the end: committed records are those of every epoch, once; how many others there were, which were aborted."""
        self.decided()
        assert self.whole_epochs(epochs) == list(epochs)
        self.every.catch_up(ends(self._bootstrap, self._topic, "read_uncommitted"))
        every = {(one.partition, one.offset): one for one in self.every.given}
        assert len(every) == len(self.every.given), "a consumer was given an offset twice"
        assert all(every.get((one.partition, one.offset)) == one for one in self.committed.given)
        assert {(one.key, one.value) for one in self.every.given} == set(chain.from_iterable(epochs.values()))
        return len(every) - len(self.committed.given)


def ends(bootstrap: str, topic: str, isolation: str) -> dict[int, int]:
    """By partition, up to where a consumer of this isolation may read now."""
    found = {}
    with closing(_consumer(bootstrap, isolation)) as consumer:
        for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
            _, found[partition] = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
    return found


def undecided(bootstrap: str, topic: str) -> bool:
    """Whether a transaction is open in a topic."""
    return ends(bootstrap, topic, "read_committed") != ends(bootstrap, topic, "read_uncommitted")


def all_decided(bootstrap: str, topic: str) -> None:
    """Wait until every transaction of a topic is decided: a commit is answered before each partition shows it."""

    def decided() -> bool:
        with suppress(KafkaException):  # a leader that was chosen just now has yet to learn where its log ends
            return not undecided(bootstrap, topic)
        return False

    wait_for(f"every transaction in {topic} is decided", decided)


def _assert_in_order(given: Sequence[Given], epochs: Mapping[int, Sequence[Keyed]]) -> None:
    """Per partition offsets rise and epochs follow each other; per key records came as they were sent."""
    epoch_of = {record: epoch for epoch, records in epochs.items() for record in records}
    by_partition: dict[int, list[Given]] = defaultdict(list)
    by_key: dict[str, list[str]] = defaultdict(list)
    for one in given:
        by_partition[one.partition].append(one)
        by_key[one.key].append(one.value)
    for records in by_partition.values():
        offsets = [one.offset for one in records]
        assert offsets == sorted(set(offsets))
        seen = [epoch_of[one.key, one.value] for one in records]
        assert seen == sorted(seen), "an epoch goes on after the next one has begun"
    sent: dict[str, list[str]] = defaultdict(list)
    for key, value in chain.from_iterable(epochs.values()):
        sent[key].append(value)
    for key, values in by_key.items():
        assert values == sent[key][: len(values)], f"the order of key {key} was not kept"


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False,
            "isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "error",
            # A broker that comes back is noticed at once.
            "reconnect.backoff.max.ms": 200, "fetch.wait.max.ms": 100, "log_level": 0,
        }
    )  # fmt: skip
