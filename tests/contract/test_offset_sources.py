"""One suite over both sources of offsets: the Kafka in memory and a real broker say the same."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from epochline import KafkaSource
from epochline.kafka.source import KafkaOffsets
from epochline.kafka.topics import retention
from epochline.ports import OffsetSource
from epochline.protocol.planning import PartitionView, Retention
from tests.in_memory.kafka import FakeKafka

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Source:
    """A topic with two partitions, empty at first."""

    offsets: OffsetSource
    topic: str
    produce: Callable[[int, datetime], None]
    """Appends one record with this timestamp to a partition."""

    @property
    def partitions(self) -> Sequence[PartitionView]:
        return self.offsets.look(KafkaSource(topics=self.topic)).partitions

    def at(self, moment: datetime) -> list[int | None]:
        return list(self.offsets.offsets_at([one.tp for one in self.partitions], moment).values())

    def leader_epoch_ends(self, later: int = 0) -> list[int | None]:
        """Where the log of today's leaders ends, or that of leaders so many elections later."""
        epochs = {one.tp: (one.leader_epoch or 0) + later for one in self.partitions}
        return list(self.offsets.leader_epoch_ends(epochs).values())


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
        producer.send(topic_name, b"x", partition=partition, timestamp_ms=int(at.timestamp() * 1000)).get(30)

    yield Source(KafkaOffsets({"bootstrap.servers": bootstrap}), topic_name, produce)
    producer.close()


def test_the_offset_of_a_moment_is_that_of_the_first_record_at_or_after_it(source: Source) -> None:
    """S9, Triggers: o(t)."""
    for minutes in (0, 1, 1, 3):
        source.produce(0, NOON + timedelta(minutes=minutes))
    source.produce(1, NOON + timedelta(minutes=2))

    assert source.at(NOON - timedelta(days=1)) == [0, 0]
    found = [source.at(NOON + timedelta(minutes=minutes)) for minutes in range(5)]
    assert found == [[0, 0], [1, 0], [3, 0], [3, None], [None, None]]


def test_the_log_of_todays_leader_ends_where_the_log_ends_and_that_of_a_later_leader_nowhere(source: Source) -> None:
    """I11."""
    for _ in range(3):
        source.produce(0, NOON)

    assert source.leader_epoch_ends() == [3, 0]
    assert source.leader_epoch_ends(later=5) == [None, None]


def test_a_moment_between_two_milliseconds_takes_in_no_earlier_record(source: Source) -> None:
    source.produce(0, NOON)
    source.produce(0, NOON + timedelta(milliseconds=1))

    assert source.at(NOON + timedelta(microseconds=1)) == [1, None]


def test_where_timestamps_go_back_the_first_offset_counts(source: Source) -> None:
    for minutes in (5, 0, 5):
        source.produce(0, NOON + timedelta(minutes=minutes))

    assert source.at(NOON + timedelta(minutes=4)) == [0, None]


def test_the_ends_of_many_sources_are_asked_at_once_and_a_missing_topic_is_left_out(source: Source) -> None:
    for _ in range(3):
        source.produce(0, NOON)
    by_pattern = KafkaSource(pattern=f"{source.topic[:-1]}.")
    named = KafkaSource(topics=(source.topic, "there-is-no-such-topic"))

    ends = source.offsets.readable_ends([named, by_pattern])

    mine = {tp: end for tp, end in ends.items() if tp.topic == source.topic}
    assert mine == {one.tp: one.last_stable for one in source.partitions}
    assert sorted(mine.values()) == [0, 3]
    assert all(named.reads(tp.topic) or by_pattern.reads(tp.topic) for tp in ends)
    assert source.offsets.readable_ends([]) == {}


def test_the_ends_of_logs_are_those_that_a_plan_sees(source: Source) -> None:
    for _ in range(3):
        source.produce(0, NOON)
    named = KafkaSource(topics=(source.topic, "there-is-no-such-topic"))

    ends = source.offsets.log_ends([named, named])

    assert sorted((one.tp, one.log_start, one.last_stable) for one in ends) == [
        (one.tp, one.log_start, one.last_stable) for one in source.partitions
    ]
    assert source.offsets.log_ends([]) == []


@pytest.mark.server
def test_a_topic_whose_settings_kafka_does_not_tell_has_no_retention(kafka_bootstrap: str, topic_name: str) -> None:
    """A login without DescribeConfigs gets the same empty answer as a topic that was deleted meanwhile."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        topic = {"num_partitions": 1, "replication_factor": 1, "configs": {"retention.ms": "604800000"}}
        admin.create_topics({topic_name: topic}, wait_for_metadata=True)

        kept = retention(
            [topic_name, "no-such-topic"], lambda name, *args, **options: getattr(admin, name)(*args, **options)
        )

    assert kept == {topic_name: Retention(cleanup_policy="delete", milliseconds=604_800_000, bytes=-1)}
