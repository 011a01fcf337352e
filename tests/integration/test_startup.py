"""Startup modes against a real broker: a group that another job committed, timestamps of the log, given offsets."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.structs import OffsetAndMetadata

from epochline import FromGroup, FromOffsets, FromTimestamp, KafkaSource
from epochline.coordinator import Plan
from epochline.declare.source import Startup
from epochline.errors import SourceError
from tests.contract.worlds import orders
from tests.databases import query
from tests.integration.kafka_topics import Topic, delete_records
from tests.integration.sinks_world import in_process

Planning = Callable[[Startup], Plan]

FIRST = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def topic(kafka_bootstrap: str, topic_name: str) -> str:
    """Ten records in one partition, a minute apart."""
    log = Topic(kafka_bootstrap, topic_name).make()
    for number in range(10):
        log.produce(0, 1, timestamp_ms=int((FIRST + timedelta(minutes=number)).timestamp() * 1000))
    return topic_name


@pytest.fixture
def group(kafka_bootstrap: str, topic: str) -> str:
    """A group whose job, a consumer of Kafka's, committed offset 6 and left."""
    name = f"flink-{topic}"
    consumer = KafkaConsumer(bootstrap_servers=kafka_bootstrap, group_id=name, enable_auto_commit=False)
    with closing(consumer):
        consumer.assign([KafkaPartition(topic, 0)])
        consumer.commit({KafkaPartition(topic, 0): OffsetAndMetadata(6, "by a job", -1)})
    return name


@pytest.fixture
def planned(kafka_bootstrap: str, postgres_dsn: str, topic: str) -> Planning:
    """Plans an epoch of the one pipeline under a startup mode."""

    def run_plan(startup: Startup) -> Plan:
        pipeline = orders(name="started", source=KafkaSource(topics=topic, startup=startup))
        return in_process(postgres_dsn, kafka_bootstrap, pipeline).create().asked_to_plan()[0]

    return run_plan


def origins(dsn: str) -> list[tuple[int, str]]:
    return query(dsn, "SELECT until_offset, chosen_by FROM epochline.committed_range WHERE start_offset IS NULL")


def shown(one: Plan) -> list[str]:
    return [str(each.range) for each in one.ranges]


def test_each_mode_gives_its_origin_on_a_fresh_start_and_the_ledger_keeps_how(
    planned: Planning, topic: str, group: str, postgres_dsn: str
) -> None:
    """S9: 10 old rows, the group at 6, the timestamp of row 8, offset 3; a fresh ledger each time."""
    modes: list[tuple[Startup, int, str]] = [
        ("earliest", 0, "startup earliest"),
        ("latest", 10, "startup latest"),
        (FromGroup(group=group), 6, f"startup group {group} offset 6"),
        (FromTimestamp(timestamp=FIRST + timedelta(minutes=8)), 8, "startup timestamp 2026-03-01T00:08:00+00:00"),
        (FromOffsets(offsets={topic: {0: 3}}), 3, "startup offset"),
    ]
    for mode, start, chosen_by in modes:
        query(postgres_dsn, "TRUNCATE epochline.pipeline, epochline.declaration CASCADE")

        one = planned(mode)

        assert shown(one) == ([f"[{start}, 10)"] if start < 10 else [])
        assert origins(postgres_dsn) == [(start, chosen_by)]


def test_a_group_whose_offset_retention_passed_is_reset_or_stops(
    planned: Planning, kafka_bootstrap: str, topic: str, group: str, postgres_dsn: str
) -> None:
    """S10: as auto.offset.reset does, but never silently."""
    delete_records(kafka_bootstrap, topic, {0: 8})

    with pytest.raises(SourceError, match=r"holds offset 6, outside the log, for .*whose log is \[8, 10\]"):
        planned(FromGroup(group=group))

    assert shown(planned(FromGroup(group=group, reset="earliest"))) == ["[8, 10)"]
    assert origins(postgres_dsn)[0][1].endswith("reset earliest: offset 6, outside the log")
