"""Planning against a real broker: what it says of partitions, offsets, transactions and topics made again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka import TopicPartition as KafkaPartition

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.coordinator import Plan, PlanOutcome, PlanRequest, plan
from epochline.errors import BeforeOriginError, DataLossError, SourceError, SourceUnavailableError
from epochline.kafka.admin import EpochlineAdmin
from epochline.kafka.source import KafkaOffsets
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Interval, Run
from epochline.protocol.offsets import Head


@pytest.fixture
def admin(kafka_bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    yield client
    client.close()


@pytest.fixture
def topic(admin: KafkaAdminClient, topic_name: str) -> str:
    make_topic(admin, topic_name, 2)
    return topic_name


@pytest.fixture
def source(kafka_bootstrap: str) -> KafkaOffsets:
    return KafkaOffsets({"bootstrap.servers": kafka_bootstrap})


def make_topic(admin: KafkaAdminClient, name: str, partitions: int, **configs: str) -> None:
    admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})
    admin.wait_for_topics([name])


def produce(bootstrap: str, topic: str, partition: int, records: int) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for future in [producer.send(topic, b"x", partition=partition) for _ in range(records)]:
        future.get(30)
    producer.close()


def transactional(bootstrap: str, topic: str) -> KafkaProducer:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"tx-{topic}", acks="all")
    producer.init_transactions()
    return producer


@pytest.fixture
def planner(postgres_dsn: str, source: KafkaOffsets, topic: str) -> Callable[..., Plan]:
    """Plans epochs of one pipeline over the test's topic, each for a run of its own."""
    ledger = PostgresLedger(postgres_dsn)

    def run_plan(startup: str = "earliest", pattern: str | None = None, **options: Any) -> Plan:
        where = {"pattern": pattern} if pattern else {"topics": topic}
        pipeline = Pipeline(
            name="planned",
            source=KafkaSource(startup=startup, **where),
            parse=Text(),
            sinks=[PostgresTable(table="planned", columns={"value": "text"})],
        )
        with ledger.transaction() as tx:
            tx.targets.create(pipeline)
        return plan(
            ledger,
            source,
            pipeline,
            Run(dag_id="planned", run_id=str(time.time_ns()), host="here"),
            PlanRequest(**options),
        )

    return run_plan


def shown(planned: Plan) -> list[str]:
    return [str(one).split("-")[-1] for one in planned.ranges]


def test_a_look_shows_every_partition_with_its_offsets_and_topic_id(
    source: KafkaOffsets, kafka_bootstrap: str, topic: str
) -> None:
    """S1, S5: the next offset to read is one past the last record."""
    produce(kafka_bootstrap, topic, 1, 4)

    view = source.look(KafkaSource(topics=topic))

    assert [(one.tp.partition, one.log_start, one.last_stable, one.high_watermark) for one in view.partitions] == [
        (0, 0, 0, 0),
        (1, 0, 4, 4),
    ]
    assert len({one.tp.topic_id for one in view.partitions}) == 1
    assert all(one.leader_epoch is not None for one in view.partitions)
    assert view.cluster_id
    assert view.invisible_allowed == frozenset()


def test_startup_latest_with_nothing_there_at_first_loses_nothing(
    planner: Callable[..., Plan], kafka_bootstrap: str, topic: str
) -> None:
    """S9, U1."""
    assert planner("latest").outcome is PlanOutcome.NOTHING_TO_READ
    produce(kafka_bootstrap, topic, 0, 3)

    assert shown(planner("latest")) == ["0[0, 3)"]


def test_a_partition_added_in_between_is_read_from_its_first_record(
    planner: Callable[..., Plan], admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """S2."""
    planner("latest")
    admin.create_partitions({topic: 3})
    admin.wait_for_topics([topic])
    produce(kafka_bootstrap, topic, 2, 4)

    assert shown(planner("latest")) == ["2[0, 4)"]


def test_a_backfill_ends_where_the_records_of_its_interval_end(
    planner: Callable[..., Plan], kafka_bootstrap: str, topic: str
) -> None:
    """Triggers, INV-8: by the timestamps of the broker's log, per partition."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    producer = KafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all")
    for partition, hours in ((0, (0, 1, 2, 3)), (1, (2, 2))):
        for hour in hours:
            at = noon + timedelta(hours=hour)
            producer.send(topic, b"x", partition=partition, timestamp_ms=int(at.timestamp() * 1000)).get(30)
    producer.close()

    def between(first: int, last: int) -> Interval:
        return Interval(start=noon + timedelta(hours=first), until=noon + timedelta(hours=last))

    assert planner("latest", interval=between(4, 5)).outcome is PlanOutcome.NOTHING_TO_READ
    produce(kafka_bootstrap, topic, 1, 1)  # now, which is after every interval
    with pytest.raises(BeforeOriginError, match=rf"{topic}-0\[1, 3\), {topic}-1\[0, 2\).*extend-back"):
        planner("latest", interval=between(1, 3))
    assert shown(planner("latest", interval=Interval(start=noon, until=datetime.now(UTC)))) == ["1[2, 3)"]


def test_an_open_transaction_is_planned_around_and_reported(
    planner: Callable[..., Plan], source: KafkaOffsets, kafka_bootstrap: str, topic: str
) -> None:
    """S13, trap 13: the plan ends at the last stable offset, and says why."""
    produce(kafka_bootstrap, topic, 0, 2)
    producer = transactional(kafka_bootstrap, topic)
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0).get(30)
    try:
        planned = planner()

        assert shown(planned) == ["0[0, 2)"]
        assert "an open transaction holds back offsets [2, 3)" in planned.notes[0]
        assert source.look(KafkaSource(topics=topic)).invisible_allowed == {topic}
    finally:
        producer.abort_transaction()
        producer.close()


def test_a_compacted_topic_may_have_gaps(source: KafkaOffsets, admin: KafkaAdminClient, topic_name: str) -> None:
    """Trap 12."""
    make_topic(admin, f"{topic_name}-c", 1, **{"cleanup.policy": "compact"})

    assert source.look(KafkaSource(topics=f"{topic_name}-c")).invisible_allowed == {f"{topic_name}-c"}


def test_a_topic_made_again_stops_the_pipeline(
    planner: Callable[..., Plan], admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """Trap 10: also when the new topic has grown past the old offsets."""
    planner()
    admin.delete_topics([topic])
    deadline = time.monotonic() + 30
    while topic in admin.list_topics() and time.monotonic() < deadline:
        time.sleep(0.2)
    make_topic(admin, topic, 2)
    produce(kafka_bootstrap, topic, 0, 9)

    with pytest.raises(DataLossError, match="deleted and made again"):
        planner()


def test_retention_past_the_head_stops_the_pipeline(
    planner: Callable[..., Plan], admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """Trap 9: what is gone is named, and no offset is reset."""
    planner()  # writes the origins; there is nothing to read
    produce(kafka_bootstrap, topic, 0, 9)
    admin.delete_records({KafkaPartition(topic, 0): 5})

    with pytest.raises(DataLossError, match=r"offsets \[0, 5\), 5 of them, are gone"):
        planner()


def test_a_topic_that_newly_matches_the_pattern_begins_at_its_first_record(
    planner: Callable[..., Plan], admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """S2, FLIP-288."""
    pattern = f"{topic}.*"
    planner("latest", pattern)
    make_topic(admin, f"{topic}-new", 1)
    produce(kafka_bootstrap, f"{topic}-new", 0, 2)

    assert [str(one) for one in planner("latest", pattern).ranges] == [f"{topic}-new-0[0, 2)"]


def test_the_mirror_is_read_back_with_the_epoch_that_wrote_it(source: KafkaOffsets, topic: str) -> None:
    """S5, S11, trap 25."""
    tps = [one.tp for one in source.look(KafkaSource(topics=topic)).partitions]

    source.mirror(f"group-{topic}", [Head(tp=tp, origin=0, next_offset=7, epoch_id=3) for tp in tps], 1, 3)

    held = source.mirrored(f"group-{topic}")
    assert {(key, one.offset, one.generation, one.epoch_id) for key, one in held.items()} == {
        ((topic, 0), 7, 1, 3),
        ((topic, 1), 7, 1, 3),
    }


def test_a_topic_that_is_not_there_is_named(source: KafkaOffsets) -> None:
    with pytest.raises(SourceError, match=r"Kafka has no topic nowhere.*Create it"):
        source.look(KafkaSource(topics="nowhere"))


def test_brokers_that_do_not_answer_are_tried_again_later() -> None:
    with pytest.raises(SourceUnavailableError, match=r"127\.0\.0\.1:1 does not answer"):
        KafkaOffsets({"bootstrap.servers": "127.0.0.1:1"}).look(KafkaSource(topics="any"))


def test_all_questions_of_a_block_are_asked_with_one_client(source, topic, kafka_bootstrap, monkeypatch):
    clients = []

    class Counted(EpochlineAdmin):
        def __init__(self, **settings):
            super().__init__(**settings)
            clients.append(self)

    monkeypatch.setattr("epochline.kafka.source.EpochlineAdmin", Counted)
    produce(kafka_bootstrap, topic, 0, 3)

    with source.one_client():
        seen = [source.look(KafkaSource(topics=topic)).partitions[0].last_stable for _ in range(2)]
        with pytest.raises(SourceError, match="no_such_topic"):
            source.look(KafkaSource(topics="no_such_topic"))
        seen.append(source.look(KafkaSource(topics=topic)).partitions[0].last_stable)
    in_block = len(clients)
    source.look(KafkaSource(topics=topic))

    assert seen == [3, 3, 3]
    assert (in_block, len(clients)) == (1, 2)
