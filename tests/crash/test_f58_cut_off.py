"""A Kafka of three nodes, of which one is cut off from the other two, and still answers its clients as a leader."""

import os
import shutil
import time
from collections.abc import Iterator

import pytest

from epochline.errors import SourceUnavailableError
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.nodes import Nodes
from tests.crash.stream import NewStream
from tests.driver import epoch_of
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="namespaces need root and iproute2"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with Nodes.running(apart=True) as three:
        yield three


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    cluster.mend()
    return cluster


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
        wait_for("the others lead the topic", lambda: cut not in (nodes.leader(line.topic), nodes.leader(line.topic, 1)))
        wait_for("another one coordinates", lambda: nodes.coordinator(group) != cut)
        line.bootstrap = line.kafka = nodes.bootstrap_servers
        others = by(line, nodes.bootstrap_servers)
        others.bootstrap = nodes.bootstrap_servers
        others.some(30, "behind its back")
        wait_for("a run that asks the others", lambda: others.run() == "success")
        others.some(5, "unread")
        alone = by(line, nodes.nodes[cut].bootstrap_servers)
        said = []
        for number in range(6):  # It names the others too, and which one is asked is chance.
            try:
                planned = alone.plan(f"by-chance-{number}")
                said.append("")
                alone.abort(epoch_of(planned).epoch_id, f"by-chance-{number}")
            except SourceUnavailableError as error:
                said.append(str(error))
        print(time.monotonic(), said)
        assert not any("is cut off" not in one for one in said if one)
    since = time.monotonic()
    line.some(2, "afterwards")
    recover(line, since=since)
