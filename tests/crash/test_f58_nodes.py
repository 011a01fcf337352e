"""A Kafka of three nodes, of which one dies, stands still or comes back without what it had."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from epochline.errors import DataLossError
from epochline.operations import Request
from epochline.protocol.offsets import PlannedRange
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line, in_background
from tests.crash.nodes import Nodes
from tests.crash.stream import NewStream
from tests.reading import of_product
from tests.waiting import wait_for

slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture
def line(nodes: Nodes, new_line: NewLine) -> Line:
    one = new_line(bootstrap=nodes.bootstrap_servers)
    one.some()
    return one


@pytest.mark.fault("F58")
def test_the_leader_of_a_partition_killed_before_the_plan_and_in_the_middle_of_the_read_delays_the_epoch(
    nodes: Nodes, line: Line
) -> None:
    """I1, I7: another node leads, and no task fails for good."""
    line.produce({0: [b"x" * 100_000] * 300})  # more than a client fetches ahead
    nodes.kill(nodes.leader(line.topic, 1))
    since = time.monotonic()
    planned, ticket = line.to_begun("run-1")
    nodes.mend()

    def read(one: PlannedRange) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(of_product(line.bootstrap, one)):
            yield batch
            if number == 0 and one.tp.partition == 0:
                nodes.kill(nodes.leader(line.topic, 0))

    line.stage_parts(map(read, planned.ranges), ticket)
    line.seal(ticket, "run-1")
    line.commit(planned)

    recover(line, since=since)


@pytest.mark.fault("F58")
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["leader", "group", "controller"])
def test_a_node_killed_before_the_commit_does_not_stop_it_and_the_mirror_follows(
    nodes: Nodes, line: Line, victim: str
) -> None:
    """INV-8: what coordinates the group of the mirror, leads the partition, or leads the controllers."""
    assert line.run() == "success"
    line.some(2, "later")
    line.to_sealed("run-2")
    victims = {
        "leader": lambda: nodes.leader(line.topic),
        "group": lambda: nodes.coordinator(line.pipeline.consumer_group),
        "controller": nodes.controller,
    }
    nodes.kill(victims[victim]())
    since = time.monotonic()

    line.commit(2)

    line.some(2, "last")
    recover(line, since=since)
    mirrored = line.source.mirrored(line.pipeline.consumer_group)
    assert {partition: one.offset for (_topic, partition), one in mirrored.items()} == line.heads()


@pytest.mark.fault("F58")
@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True], ids=["unheard", "heard"])
def test_the_groups_coordinator_killed_in_the_middle_of_the_mirrors_write_leaves_no_false_evidence(
    nodes: Nodes, line: Line, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """INV-8: it dies before it takes the offsets, or once it alone has them; the next run is not told of a lost Kafka."""
    assert line.run() == "success"
    line.some(2, "later")
    planned = line.to_sealed("run-2")
    group, write = line.pipeline.consumer_group, line.source.mirror
    keeper = nodes.coordinator(group)

    def killed_meanwhile(*heads: Any) -> None:
        monkeypatch.undo()
        frozen = [number for number in nodes.nodes if (number != keeper) is kept]
        with nodes.frozen(*frozen):
            writing = in_background(lambda: write(*heads))
            time.sleep(1)
            assert not writing.done()
            nodes.kill(keeper)
        writing.result(60)

    monkeypatch.setattr(line.source, "mirror", killed_meanwhile)
    line.commit(planned)
    since = time.monotonic()

    line.some(2, "last")
    recover(line, since=since)
    mirrored = line.source.mirrored(group)
    assert {partition: one.offset for (_topic, partition), one in mirrored.items()} == line.heads()


@pytest.mark.fault("F58")
@pytest.mark.parametrize("version", [slow(1), slow(2)])
@pytest.mark.parametrize("victim", ["leader", "coordinator"])
@pytest.mark.parametrize("place", ["topic.fence", "topic.record@30", "topic.commit", "topic.committed"])
def test_a_node_killed_while_an_epoch_is_published_shows_it_once(
    nodes: Nodes, new_stream: NewStream, place: str, victim: str, version: int
) -> None:
    """P9, P11, I7, I9: with transactions of either version."""
    nodes.transactions(version)
    stream = new_stream(bootstrap=nodes.bootstrap_servers)
    stream.publish()
    stream.commit()
    publisher = stream.publisher(place)
    if victim == "leader":
        nodes.kill(nodes.leader(stream.world.topics[0]))
    else:
        nodes.kill(nodes.coordinator(stream.transactional_id, of_transactions=True))

    stream.go_on(publisher)

    assert publisher.wait() == 0 or "SinkUnavailableError" in publisher.written("err"), publisher.written("err")
    stream.recover()


@pytest.mark.fault("F58")
@pytest.mark.slow
def test_a_leader_that_stands_still_and_wakes_as_a_zombie_changes_nothing(nodes: Nodes, line: Line) -> None:
    """I1, I7: the others choose another one meanwhile."""
    leader = nodes.leader(line.topic)
    since = time.monotonic()
    line.bootstrap = nodes.all_but(leader)  # kafka-python's producer waits for whom it asks first
    with nodes.frozen(leader):
        line.run()
        line.some(2, "behind its back")
        wait_for("a run does not ask it", lambda: line.run() == "success")

    line.some(2, "afterwards")
    recover(line, since=since)


@pytest.mark.fault("F58")
@pytest.mark.slow
def test_a_rolling_restart_under_load_loses_and_doubles_nothing(nodes: Nodes, line: Line) -> None:
    """I1, I7: records come and runs go all the while."""
    rolled = threading.Event()
    outcomes: list[str] = []

    def runs() -> None:
        while not rolled.is_set():
            outcomes.append(line.run())

    def load() -> None:
        for number in itertools.count():
            if rolled.is_set():
                return
            line.some(5, f"load {number}")

    running = threading.Thread(target=runs)
    running.start()
    loading = threading.Thread(target=load)
    loading.start()
    nodes.roll()
    since = time.monotonic()
    rolled.set()
    running.join()
    loading.join()

    recover(line, since=since)
    assert outcomes.count("success") > 1


@pytest.mark.fault("F58")
@pytest.mark.slow
def test_an_unclean_election_that_loses_a_tail_stops_every_run_also_after_the_log_has_regrown(
    nodes: Nodes, new_line: NewLine
) -> None:
    """I11, INV-9: the leader epochs of the log tell it, whatever its length."""
    line = new_line(bootstrap=nodes.bootstrap_servers, partitions=0).create()
    ahead, behind = 1, 2
    nodes.make_topic(line.topic, [ahead, behind])
    line.produce({0: ["kept"] * 5})
    assert line.run() == "success"
    nodes.kill(behind)
    wait_for("the other one is alone", lambda: nodes.in_sync(line.topic) == [ahead])
    line.produce({0: ["lost"] * 5})
    assert line.run() == "success"
    nodes.kill(ahead)
    nodes.start(behind)
    nodes.elect_unclean(line.topic)
    assert nodes.leader(line.topic) == behind

    with pytest.raises(DataLossError, match="truncated"):
        line.plan("run-3")

    assert line.run() == "failed"
    line.produce({0: [f"regrown {number}" for number in range(20)]})
    with pytest.raises(DataLossError, match="leader epoch"):
        line.plan("run-4")
    line.recovery.last_fault()
    line.act("adopt-topic", Request(actor="ada@here", reason="an unclean election"), topic=line.topic, at="truncation")
    wait_for("a run does not ask the dead node", lambda: line.run() == "success")
    line.recovery.took()
    rows = Counter(value.partition(" ")[0] for (value,) in line.query(f"SELECT value FROM {line.name}"))
    assert rows == {"kept": 5, "lost": 5, "regrown": 20}
