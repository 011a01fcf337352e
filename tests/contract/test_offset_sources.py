"""One suite over both sources of offsets: the Kafka in memory and a real broker say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from epochline import KafkaSource
from epochline.kafka.source import KafkaOffsets
from epochline.ports import OffsetSource
from epochline.protocol.offsets import TopicPartition
from epochline.testing import FakeKafka

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Source:
    """A topic with two partitions, empty at first."""

    offsets: OffsetSource
    topic: str
    produce: Callable[[int, datetime], None]
    """Appends one record with this timestamp to a partition."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [one.tp for one in self.offsets.look(KafkaSource(topics=self.topic)).partitions]

    def at(self, moment: datetime) -> list[int | None]:
        return list(self.offsets.offsets_at(self.partitions, moment).values())


@pytest.fixture(params=["fake", pytest.param("kafka", marks=pytest.mark.server)])
def source(request: pytest.FixtureRequest, topic_name: str) -> Iterator[Source]:
    if request.param == "fake":
        fake = FakeKafka()
        for partition in (0, 1):
            fake.produce(topic_name, partition, 0)
        yield Source(fake, topic_name, lambda partition, at: fake.produce(topic_name, partition, 1, at=at))
        return
    bootstrap = request.getfixturevalue("kafka_bootstrap")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics({topic_name: {"num_partitions": 2, "replication_factor": 1}})
    admin.wait_for_topics([topic_name])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")

    def produce(partition: int, at: datetime) -> None:
        future = producer.send(topic_name, b"x", partition=partition, timestamp_ms=int(at.timestamp() * 1000))
        future.get(30)

    yield Source(KafkaOffsets({"bootstrap.servers": bootstrap}), topic_name, produce)
    producer.close()


def test_the_offset_of_a_moment_is_that_of_the_first_record_at_or_after_it(source: Source) -> None:
    """S9, Triggers: o(t)."""
    for minutes in (0, 1, 1, 3):
        source.produce(0, NOON + timedelta(minutes=minutes))
    source.produce(1, NOON + timedelta(minutes=2))

    assert source.at(NOON - timedelta(days=1)) == [0, 0]
    assert source.at(NOON) == [0, 0]
    assert source.at(NOON + timedelta(minutes=1)) == [1, 0]
    assert source.at(NOON + timedelta(minutes=2)) == [3, 0]
    assert source.at(NOON + timedelta(minutes=3)) == [3, None]
    assert source.at(NOON + timedelta(minutes=4)) == [None, None]


def test_the_log_of_todays_leader_ends_where_the_log_ends_and_that_of_no_leader_nowhere(source: Source) -> None:
    for _ in range(3):
        source.produce(0, NOON)
    leaders = {
        one.tp: one.leader_epoch or 0 for one in source.offsets.look(KafkaSource(topics=source.topic)).partitions
    }

    assert list(source.offsets.leader_epoch_ends(leaders).values()) == [3, 0]
    assert list(source.offsets.leader_epoch_ends({tp: epoch + 5 for tp, epoch in leaders.items()}).values()) == [
        None,
        None,
    ]


def test_a_moment_between_two_milliseconds_takes_in_no_earlier_record(source: Source) -> None:
    source.produce(0, NOON)
    source.produce(0, NOON + timedelta(milliseconds=1))

    assert source.at(NOON + timedelta(microseconds=1)) == [1, None]


def test_where_timestamps_go_back_the_first_offset_counts(source: Source) -> None:
    for minutes in (5, 0, 5):
        source.produce(0, NOON + timedelta(minutes=minutes))

    assert source.at(NOON + timedelta(minutes=4)) == [0, None]
