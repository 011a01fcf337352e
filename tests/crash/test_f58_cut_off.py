"""A Kafka of three nodes, of which one is cut off from the other two, and still answers its clients as a leader."""

import os
import shutil
import time
from contextlib import suppress
from typing import cast

import pytest

from epochline.errors import SinkUnavailableError, SourceUnavailableError
from epochline.protocol.sink import Inspectable
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.nodes import Nodes
from tests.crash.stream import NewStream, Stream
from tests.driver import epoch_of
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="namespaces need root and iproute2"),
]

APART = True
"""Of the module's nodes, each has a network of its own."""


def by(line: Line, servers: str) -> Line:
    """The same pipeline, whose runs know these servers alone at first."""
    other = line.again(kafka=servers)
    other.recovery = line.recovery
    return other


@pytest.mark.fault("F58")
@pytest.mark.parametrize("victim", ["leader", "group"])
def test_a_leader_that_is_cut_off_from_the_others_is_not_taken_for_a_kafka_that_lost_records(
    nodes: Nodes, new_line: NewLine, victim: str
) -> None:
    """I1, INV-9: the others have gone on without it; what it still shows ends before the heads."""
    line = new_line(bootstrap=nodes.bootstrap_servers)
    line.some()
    assert line.run() == "success"
    group = line.pipeline.consumer_group
    cut = nodes.leader(line.topic) if victim == "leader" else nodes.coordinator(group)
    with nodes.cut_off(cut):
        wait_for(
            "the others lead the topic", lambda: cut not in (nodes.leader(line.topic), nodes.leader(line.topic, 1))
        )
        wait_for("another one coordinates", lambda: nodes.coordinator(group) != cut)
        line.bootstrap = line.kafka = nodes.bootstrap_servers
        others = by(line, nodes.bootstrap_servers)
        others.bootstrap = nodes.bootstrap_servers
        others.some(30, "behind its back")
        before = others.heads()

        def committed() -> bool:
            """One of the others may not yet know who leads, and send the run to the one that is cut off."""
            return others.run() == "success" and all(end > before[one] for one, end in others.heads().items())

        wait_for("the others' records are committed", committed)
        others.some(5, "unread")
        alone = by(line, nodes.nodes[cut].bootstrap_servers)
        said: list[str] = []

        def told() -> bool:
            """It names the others too, and which of them is asked is chance."""
            try:
                alone.abort(epoch_of(alone.plan(f"try-{len(said)}")).epoch_id, f"try-{len(said)}")
                said.append("planned")
            except SourceUnavailableError as error:
                said.append(str(error))
            return said[-1] != "planned"

        wait_for("its answer is refused", told)
        assert "a broker is cut off from the others" in said[-1]
    since = time.monotonic()
    line.some(2, "afterwards")
    recover(line, since=since)


def stream_beside_the_markers(nodes: Nodes, new_stream: NewStream) -> tuple[Stream, int]:
    """With an epoch shown and one committed; the node that leads the markers does not coordinate its transactions."""
    while True:
        stream = new_stream(bootstrap=nodes.bootstrap_servers)
        stream.publish()
        leader = nodes.leader("epochline.markers")
        if nodes.coordinator(stream.transactional_id, of_transactions=True) != leader:
            stream.commit()
            return stream, leader


@pytest.mark.fault("F58")
def test_a_publisher_that_asks_a_cut_off_leader_for_the_last_marker_sends_no_epoch_again(
    nodes: Nodes, new_stream: NewStream
) -> None:
    """P11, I9: the epoch is in the topic by the others' word; the one that sent it died before the ledger knew."""
    stream, cut = stream_beside_the_markers(nodes, new_stream)
    with nodes.cut_off(cut):
        wait_for("another one leads the markers", lambda: nodes.leader("epochline.markers") != cut)
        stream.world.killed_at("topic.committed", BOOTSTRAP=nodes.bootstrap_servers)
        publisher = stream.world.in_a_process("publish", BOOTSTRAP=nodes.nodes[cut].bootstrap_servers)
        assert publisher.wait() == 0 or "SinkUnavailableError" in publisher.written("err"), publisher.written("err")
        stream.recovery.last_fault()

    assert stream.recover() == 0


@pytest.mark.fault("F58")
def test_a_cut_off_leader_that_lacks_the_last_marker_is_not_taken_for_a_control_topic_that_was_deleted(
    nodes: Nodes, new_stream: NewStream
) -> None:
    """INV-8, I9: a plan asks the topic which epoch it shows, and the ledger knows of a later one."""
    stream, cut = stream_beside_the_markers(nodes, new_stream)
    it = stream.world.it
    with nodes.cut_off(cut):
        wait_for("another one leads the markers", lambda: nodes.leader("epochline.markers") != cut)
        it.kafka = {"bootstrap.servers": nodes.bootstrap_servers}
        it.log_in(it.dsn)
        assert stream.publish() == [2]
        it.kafka = {"bootstrap.servers": nodes.nodes[cut].bootstrap_servers}
        it.log_in(it.dsn)
        sink = cast("Inspectable", it.ledger.sink(it.pipeline, it.pipeline.topics[0].name))
        with suppress(SinkUnavailableError):
            shown = sink.newest_shown(it.pipeline.name)
            assert shown is not None
            assert shown.epoch_id == 2
    it.kafka = {"bootstrap.servers": nodes.bootstrap_servers}
    it.log_in(it.dsn)
    stream.recovery.last_fault()

    assert stream.recover() == 0
