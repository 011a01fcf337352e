"""Kafka is put back to a backup and grows again; a broker forgets the producers of a log."""

from collections import Counter
from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from epochline.coordinator import plan, seal
from epochline.errors import KafkaBehindError
from epochline.failpoints import FailpointError, arm, watched, watched_source
from epochline.operations import Request
from tests.crash.fired import WITH_GAPS, WITH_LOSSES
from tests.crash.nodes import Nodes
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.integration.kafka_topics import Topic, admin_of, produce
from tests.integration.sinks_world import new_world
from tests.waiting import wait_for

ORDER = Request(actor="ada@here", reason="the disks are lost")


@pytest.mark.fault("F46")
@pytest.mark.parametrize("brokers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_kafka_from_a_backup_that_grew_again_is_not_taken_for_the_log_that_was_read(
    server: Server, recovery: Recovery, request: pytest.FixtureRequest, fired: Path, brokers: int
) -> None:
    """INV-8, INV-9: every record that took the place of a lost one is read, and none of the rows of lost ones goes."""
    bootstrap, copy, put_back = server.kafka.bootstrap_servers, server.copy_kafka, server.put_kafka_back
    if brokers > 1:
        nodes: Nodes = request.getfixturevalue("nodes")
        bootstrap, copy, put_back = nodes.bootstrap_servers, nodes.copy, nodes.put_back
    world = new_world(server.new_database(), bootstrap)
    it = world.it

    def append(name: str, start: int, until: int) -> None:
        values = [f"{name}{number}".encode() for number in range(start, until)]
        produce(bootstrap, world.source, values, partition=0)

    append("a", 0, 3)
    it.epoch()
    copy()
    append("a", 3, 7)
    it.epoch()
    put_back()
    append("b", 3, 9)

    (point,) = WITH_LOSSES
    arm({"EPOCHLINE_FAILPOINT": f"{point}:raise", "EPOCHLINE_FAILPOINT_RECORD": str(fired)})
    with pytest.raises(FailpointError):
        plan(it.ledger, watched_source(it.source), it.pipeline, it.run_of("killed"))
    arm({})
    with pytest.raises(KafkaBehindError, match="-0: offset 3 of epoch 1"):
        it.asked_to_plan()

    recovery.last_fault()
    it.act("adopt-topic", ORDER, cluster=True, at="truncation")
    it.epoch()
    recovery.took()
    rows = Counter(value for (value,) in it.sql("SELECT value FROM lines"))
    assert rows == Counter([*(f"a{n}" for n in range(7)), *(f"b{n}" for n in range(3, 9))])


@pytest.mark.fault("F47")
def test_a_log_of_forgotten_producers_is_read_to_its_end(server: Server, recovery: Recovery, fired: Path) -> None:
    """INV-9: the batches say which offsets are markers and aborted records; the counts balance exactly."""
    world = new_world(server.new_database(), server.kafka.bootstrap_servers)
    it, bootstrap = world.it, server.kafka.bootstrap_servers
    topic = Topic(bootstrap, world.source)
    with topic.transactional_producer() as producer:
        for committed in (True, False, True):
            producer.begin_transaction()
            for number in range(3):
                producer.send(topic.name, f"{committed} {number}".encode(), partition=0).get(30)
            producer.commit_transaction() if committed else producer.abort_transaction()
    with admin_of(bootstrap) as admin:
        (broker,) = admin.describe_cluster()["brokers"]
        name, soon = str(broker["broker_id"]), {"producer.id.expiration.ms": "1000"}
        admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, name, soon)])
        partition = TopicPartition(topic.name, 0)
        wait_for(
            "the producer is forgotten", lambda: not admin.describe_producers([partition])[partition].active_producers
        )
    recovery.last_fault()
    planned, run, ticket = it.staged()
    for point in sorted(WITH_GAPS):
        arm({"EPOCHLINE_FAILPOINT": f"{point}:raise", "EPOCHLINE_FAILPOINT_RECORD": str(fired)})
        with pytest.raises(FailpointError):
            seal(watched(it.ledger), watched_source(it.source), ticket, run)
        arm({})

    it.seal(ticket, run)
    it.commit(planned)

    recovery.took()
    rows = Counter(value for (value,) in it.sql("SELECT value FROM lines"))
    assert rows == Counter([f"True {number}" for number in (0, 1, 2)] * 2)
    assert it.sql("SELECT start_offset, until_offset, records_read FROM epochline.offsets") == [(0, 12, 6)]
