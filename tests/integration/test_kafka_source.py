"""Planning against a real broker: what it says of partitions, offsets, transactions and topics made again."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer

from epochline import KafkaSource
from epochline.coordinator import PlanOutcome
from epochline.errors import SourceError, SourceUnavailableError
from epochline.kafka.admin import EpochlineAdmin
from epochline.kafka.source import KafkaOffsets
from epochline.kafka.topics import compacted
from epochline.local.stack import Stack
from epochline.protocol.offsets import Head
from tests.contract.worlds import orders, ranges
from tests.integration.kafka_topics import Topic, admin_of
from tests.integration.sinks_world import in_process
from tests.kafka_log import Said, log_of_kafka
from tests.waiting import wait_for

LOOKS = 60
"""At a topic that somebody writes to. Before it was mended, some looks of each hundred went wrong."""


@pytest.fixture
def source(kafka_bootstrap: str) -> KafkaOffsets:
    return KafkaOffsets({"bootstrap.servers": kafka_bootstrap})


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


@pytest.mark.parametrize("transactional", [False, True])
def test_a_busy_topic_is_not_said_to_be_held_back_by_what_has_ended(
    source: KafkaOffsets, topic: Topic, transactional: bool
) -> None:
    """S13: offsets and producers are asked one after the other, and records come and transactions end in between."""
    ended, declared = threading.Event(), KafkaSource(topics=topic.name)

    def write() -> None:
        while not ended.is_set():
            topic.produce(0, 1)

    def write_transactions() -> None:
        with topic.transactional_producer() as producer:
            while not ended.is_set():
                producer.begin_transaction()
                producer.send(topic.name, b"busy", partition=0).get(30)
                producer.commit_transaction()

    with ThreadPoolExecutor() as pool, source.one_client():
        writing = pool.submit(write_transactions if transactional else write)
        try:
            wait_for("it writes", lambda: source.look(declared).partitions[0].last_stable)
            views = [source.look(declared) for _ in range(LOOKS)]
        finally:
            ended.set()
        writing.result(30)

    held = [one for view in views for one in view.partitions if one.high_watermark > one.last_stable]
    assert transactional or held == []
    assert [one for view in held for one in view.open_transactions if one.hangs] == []


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

    found = {key: (one.offset, one.generation, one.epoch_id) for key, one in source.mirrored(f"group-{topic}").items()}
    assert found == {(topic.name, 0): (7, 1, 3), (topic.name, 1): (7, 1, 3)}


def test_a_group_with_a_member_of_its_own_is_not_written(
    source: KafkaOffsets, topic: Topic, kafka_bootstrap: str
) -> None:
    """S11: another program may be using the group."""
    group, (tp, _) = f"group-{topic}", [one.tp for one in source.look(KafkaSource(topics=topic.name)).partitions]
    with closing(
        KafkaConsumer(topic.name, bootstrap_servers=kafka_bootstrap, group_id=group, enable_auto_commit=False)
    ) as member:
        wait_for("it has joined", lambda: member.poll(100) or member.assignment())
        with pytest.raises(SourceError, match=f"{group} refuses the offsets of 1 partitions.*Stop any consumer"):
            source.mirror(group, [Head(tp=tp, origin=0, next_offset=7, epoch_id=3)], 1, 3)
        assert source.mirrored(group) == {}


def test_a_topic_that_is_not_there_is_named(source: KafkaOffsets) -> None:
    with pytest.raises(SourceError, match=r"Kafka has no topic nowhere.*Create it"):
        source.look(KafkaSource(topics="nowhere"))


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


def test_a_list_of_two_brokers_of_which_the_first_is_down_still_plans_an_epoch(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str
) -> None:
    """K20."""
    Topic(kafka_bootstrap, topic_name).make().produce(0, 1)
    pipeline = orders(name="two_brokers", source=KafkaSource(topics=topic_name))
    it = in_process(postgres_dsn, f"127.0.0.1:1,{kafka_bootstrap}", pipeline).create()

    planned, _ = it.planned()

    assert planned.outcome is PlanOutcome.PLANNED
    assert ranges(planned) == [f"{topic_name}-0[0, 1)"]
