"""Three nodes of Kafka forget the id of a producer that was idle, or keep a transaction that nobody ends."""

import time
from contextlib import closing

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec, ConfigResource, ConfigResourceType
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from epochline.cli.kafka_settings import readable
from epochline.coordinator import PlanOutcome
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.nodes import Nodes
from tests.crash.stream import NewStream, Stream, assert_failed
from tests.integration.kafka_topics import admin_of
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

TOOL = "kafka-transactions.sh --bootstrap-server HOST:9092"
NODE_SETTINGS = {"transactional.id.expiration.ms": "8000"}
"""A week by default."""


def until_forgotten(stream: Stream) -> None:
    with admin_of(stream.world.bootstrap) as admin:

        def forgotten() -> bool:
            listed = [one.transactional_id for some in admin.list_transactions().values() for one in some]
            return stream.transactional_id not in listed

        wait_for("the coordinator has forgotten the id", forgotten)


@pytest.mark.fault("F59")
@pytest.mark.parametrize("pending", [0, 2])
def test_an_id_that_expired_while_its_pipeline_was_idle_publishes_each_epoch_once(
    nodes: Nodes, new_stream: NewStream, pending: int
) -> None:
    """P9, P11: with epochs that wait to be published, and with one that comes afterwards."""
    stream = new_stream(bootstrap=nodes.bootstrap_servers)
    stream.publish()
    for _ in range(pending):
        stream.commit()
    until_forgotten(stream)
    stream.recovery.last_fault()

    assert stream.publish() == [2, 3][:pending]

    stream.commit()
    assert stream.recover() == 0


@pytest.mark.fault("F59", "F22")
@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_a_publisher_whose_id_expires_while_it_stands_sends_nothing_and_the_next_try_goes_on(
    nodes: Nodes, new_stream: NewStream, overtaken: bool, version: int
) -> None:
    """P11, P13: it has fenced and read the marker, and would not notice a successor by its own producer id."""
    nodes.transactions(version)
    stream = new_stream(bootstrap=nodes.bootstrap_servers)
    publisher = stream.publisher("topic.begin")
    if overtaken:
        assert stream.publish() == [1]
    until_forgotten(stream)

    stream.go_on(publisher)

    assert_failed(publisher, "SinkUnavailableError")
    assert stream.watchers.whole_epochs(stream.epochs()) == ([1] if overtaken else [])
    stream.recover()


def verifying(nodes: Nodes, verified: str) -> None:
    """Whether brokers ask the coordinator before they take a record of a transaction (KIP-890)."""
    with admin_of(nodes.bootstrap_servers) as admin:
        setting = {"transaction.partition.verification.enable": verified}
        admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, str(one), setting) for one in nodes.nodes])


def write_late(line: Line, producer: KafkaProducer) -> None:
    """A record that a dead producer sent comes after its transaction was ended (KAFKA-14402)."""
    manager = producer._transaction_manager
    ids = manager.producer_id_and_epoch
    builder = MemoryRecordsBuilder(2, 0, 1_000_000, 0, True, ids.producer_id, ids.epoch, 3)
    builder.append(int(time.time() * 1000), None, b"late", [])
    builder.close()
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=manager.transactional_id, acks=-1, timeout_ms=10_000, max_version=9, min_version=3,
        topic_data=[
            data(name=line.topic, partition_data=[data.PartitionProduceData(index=0, records=bytes(builder.buffer()))])
        ],
    )  # fmt: skip
    with admin_of(line.bootstrap) as admin:
        (leader,) = admin._manager.run(admin._async_get_leader_for_partitions, {TopicPartition(line.topic, 0)})
        answer = admin._manager.run(admin._manager.send, request, leader)
    assert [one.error_code for topic in answer.responses for one in topic.partition_responses] == [0]


@pytest.mark.fault("F59", "F23")
@pytest.mark.parametrize("hangs", [False, True], ids=["long time-out", "hangs"])
def test_a_transaction_that_a_dead_producer_left_open_holds_back_what_follows_until_somebody_aborts_it(
    nodes: Nodes, new_line: NewLine, hangs: bool
) -> None:
    """S13: each plan and `doctor` say whose it is, and whether it ends by itself; nothing is skipped, and what is before it is read."""
    nodes.transactions(1)
    line = new_line(bootstrap=nodes.bootstrap_servers)
    settings = {"bootstrap_servers": line.bootstrap, "acks": "all", "transaction_timeout_ms": 600_000}
    with closing(KafkaProducer(transactional_id="payments", **settings)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        line.send(producer, {0: ["open"] * 3})
        if hangs:
            producer.abort_transaction()
            verifying(nodes, "false")
            write_late(line, producer)
            verifying(nodes, "true")
        line.some(5, "behind")
        first = 4 if hangs else 0

        planned = line.to_planned("run-1")

        (note,) = [note for note in planned.notes if "open transaction" in note]
        assert f"{line.topic}-0: an open transaction holds back offsets [{first}, " in note
        assert "of transactional id 'payments'" in note
        assert ("it will not end by itself" in note) is hangs
        assert ("with a time-out of 10 min" in note) is not hangs
        assert note in line.preview().notes
        told = readable(line.source.look(line.pipeline.source))
        assert told["said"] == f"{line.topic}: 2 partitions; {note}"
        where = f"--topic {line.topic} --partition 0"
        advice = f"abort {where} --start-offset {first}, if {TOOL} find-hanging {where} lists it"
        assert told.get("mend") == (f"{TOOL} {advice}" if hangs else None)
        assert told.get("outcome") == ("warning" if hangs else None)
        line.pre_commit(planned, "run-1")
        line.commit(planned)
        assert line.heads() == {0: first, 1: 5}
        assert line.plan("run-2").outcome is PlanOutcome.NOTHING_TO_READ
        key = TopicPartition(line.topic, 0)
        with admin_of(line.bootstrap) as admin:
            (found,) = [
                one for one in admin.describe_producers([key])[key].active_producers
                if one.current_transaction_start_offset == first
            ]  # fmt: skip
            admin.abort_transaction(
                AbortTransactionSpec(key, found.producer_id, found.producer_epoch, found.coordinator_epoch)
            )
    recover(line)
