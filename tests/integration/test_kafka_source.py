"""Planning against a real broker: what it says of partitions, offsets, transactions and topics made again."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.coordinator import Plan, PlanOutcome, PlanRequest, plan
from epochline.errors import BeforeOriginError, SourceError, SourceUnavailableError
from epochline.kafka.admin import EpochlineAdmin
from epochline.kafka.source import KafkaOffsets
from epochline.kafka.topics import compacted
from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Interval, Run
from epochline.protocol.offsets import Head
from tests.integration.kafka_topics import Topic, admin_of
from tests.kafka_log import Said, log_of_kafka


@pytest.fixture
def topic(kafka_bootstrap: str, topic_name: str) -> Topic:
    return Topic(kafka_bootstrap, topic_name).make(2)


@pytest.fixture
def source(kafka_bootstrap: str) -> KafkaOffsets:
    return KafkaOffsets({"bootstrap.servers": kafka_bootstrap})


Planner = Callable[..., Plan]


@pytest.fixture
def planner(postgres_dsn: str, source: KafkaOffsets, topic: Topic) -> Planner:
    """Plans epochs of one pipeline over the test's topic, each for a run of its own."""
    ledger = PostgresLedger(postgres_dsn)

    def run_plan(startup: str = "earliest", **options: Any) -> Plan:
        pipeline = Pipeline(
            name="planned", source=KafkaSource(startup=startup, topics=topic.name), parse=Text(),
            sinks=[PostgresTable(table="planned", columns={"value": "text"})],
        )  # fmt: skip
        with ledger.transaction() as tx:
            tx.targets.create(pipeline)
        run = Run(dag_id="planned", run_id=str(time.time_ns()), host="here")
        return plan(ledger, source, pipeline, run, PlanRequest(**options))

    return run_plan


def shown(planned: Plan) -> list[str]:
    return [str(one).split("-")[-1] for one in planned.ranges]


def test_a_look_shows_every_partition_with_its_offsets_and_topic_id(source: KafkaOffsets, topic: Topic) -> None:
    """S1, S5: the next offset to read is one past the last record."""
    topic.produce(1, 4)

    view = source.look(KafkaSource(topics=topic.name))

    found = [(one.tp.partition, one.log_start, one.last_stable, one.high_watermark) for one in view.partitions]
    assert found == [(0, 0, 0, 0), (1, 0, 4, 4)]
    assert len({one.tp.topic_id for one in view.partitions}) == 1
    assert all(one.leader_epoch is not None for one in view.partitions)
    assert view.cluster_id
    assert view.invisible_allowed == frozenset()


def test_a_partition_added_in_between_is_read_from_its_first_record(planner: Planner, topic: Topic) -> None:
    """S2."""
    planner("latest")
    with admin_of(topic.servers) as admin:
        admin.create_partitions({topic.name: 3})
        admin.wait_for_topics([topic.name])
    topic.produce(2, 4)

    assert shown(planner("latest")) == ["2[0, 4)"]


def test_a_backfill_ends_where_the_records_of_its_interval_end(planner: Planner, topic: Topic) -> None:
    """Triggers, INV-8: by the timestamps of the broker's log, per partition."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for partition, hour in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (1, 2)):
        at = noon + timedelta(hours=hour)
        topic.produce(partition, 1, timestamp_ms=int(at.timestamp() * 1000))

    def between(first: int, last: int) -> Interval:
        return Interval(start=noon + timedelta(hours=first), until=noon + timedelta(hours=last))

    assert planner("latest", interval=between(4, 5)).outcome is PlanOutcome.NOTHING_TO_READ
    topic.produce(1, 1)  # now, which is after every interval
    with pytest.raises(BeforeOriginError, match=rf"{topic}-0\[1, 3\), {topic}-1\[0, 2\).*extend-back"):
        planner("latest", interval=between(1, 3))
    assert shown(planner("latest", interval=Interval(start=noon, until=datetime.now(UTC)))) == ["1[2, 3)"]


def test_an_open_transaction_is_planned_around_and_reported(
    planner: Planner, source: KafkaOffsets, topic: Topic
) -> None:
    """S13: the plan ends at the last stable offset, and says why."""
    topic.produce(0, 2)
    with topic.transactional_producer() as producer:
        producer.begin_transaction()
        producer.send(topic.name, b"open", partition=0).get(30)

        planned = planner()

        assert shown(planned) == ["0[0, 2)"]
        assert "an open transaction holds back offsets [2, 3)" in planned.notes[0]
        # INV-9: a producer that the broker knows explains no gap by itself.
        assert source.look(KafkaSource(topics=topic.name)).invisible_allowed == frozenset()
        producer.abort_transaction()


def test_a_compacted_topic_may_have_gaps(source: KafkaOffsets, kafka_bootstrap: str, topic_name: str) -> None:
    """INV-9: also where other settings stand beside it; a topic that is not may have those that its batches show."""
    Topic(kafka_bootstrap, topic_name).make(1, **{"cleanup.policy": "compact,delete"})

    view = source.look(KafkaSource(topics=topic_name))
    assert view.invisible_allowed == view.compacted == {topic_name}


def test_settings_that_kafka_does_not_tell_are_asked_for_by_name(kafka_bootstrap: str, topic_name: str) -> None:
    """It tells as little of a topic that it does not have as of one whose settings a login may not read."""
    with admin_of(kafka_bootstrap) as admin, pytest.raises(SourceError, match=f"{topic_name} is compacted.*Describe"):
        compacted({topic_name}, lambda method, *asked, **how: getattr(admin, method)(*asked, **how))


def test_the_mirror_is_read_back_with_the_epoch_that_wrote_it(source: KafkaOffsets, topic: Topic) -> None:
    """S5, S11."""
    tps = [one.tp for one in source.look(KafkaSource(topics=topic.name)).partitions]

    source.mirror(f"group-{topic}", [Head(tp=tp, origin=0, next_offset=7, epoch_id=3) for tp in tps], 1, 3)

    held = source.mirrored(f"group-{topic}")
    found = {key: (one.offset, one.generation, one.epoch_id) for key, one in held.items()}
    assert found == {(topic.name, 0): (7, 1, 3), (topic.name, 1): (7, 1, 3)}


def test_a_topic_that_is_not_there_is_named(source: KafkaOffsets) -> None:
    with pytest.raises(SourceError, match=r"Kafka has no topic nowhere.*Create it"):
        source.look(KafkaSource(topics="nowhere"))


def test_brokers_that_do_not_answer_are_tried_again_later() -> None:
    with pytest.raises(SourceUnavailableError, match=r"127\.0\.0\.1:1 does not answer"):
        KafkaOffsets({"bootstrap.servers": "127.0.0.1:1"}).look(KafkaSource(topics="any"))


def test_all_questions_of_a_block_are_asked_with_one_client(
    source: KafkaOffsets, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[EpochlineAdmin] = []

    class Counted(EpochlineAdmin):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            clients.append(self)

    monkeypatch.setattr("epochline.kafka.admin.EpochlineAdmin", Counted)
    topic.produce(0, 3)
    declared = KafkaSource(topics=topic.name)

    with source.one_client():
        seen = [source.look(declared).partitions[0].last_stable for _ in range(2)]
        with pytest.raises(SourceError, match="no_such_topic"):
            source.look(KafkaSource(topics="no_such_topic"))
        seen.append(source.look(declared).partitions[0].last_stable)
    assert len(clients) == 1
    source.look(declared)

    assert seen == [3, 3, 3]
    assert len(clients) == 2


def test_a_client_says_each_line_once_while_the_broker_is_away(
    source: KafkaOffsets, stack: Stack, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that Kafka does not answer; kafka-python repeats some lines ten times a second."""
    monkeypatch.setattr("epochline.kafka.source._PATIENCE_SECONDS", 3)
    every = Said()
    with log_of_kafka() as said, source.one_client():
        logging.getLogger("kafka").addHandler(every)
        source.look(KafkaSource(topics=topic.name))
        stack.kafka.stop()
        try:
            for _ in range(2):
                with pytest.raises(SourceUnavailableError):
                    source.look(KafkaSource(topics=topic.name))
        finally:
            stack.kafka.start()  # On the port that it had, which `up` may give away.
            stack.kafka.wait()
    lines = [(one.name, one.getMessage()) for one in said.records if one.name.startswith("kafka")]
    assert sorted(set(lines)) == sorted(lines)
    assert 0 < len(lines) < len(every.records) / 2
