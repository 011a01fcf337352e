"""The broker dies; transactions, compaction, retention, topics made again and partitions added, through whole epochs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kafka import KafkaProducer
from kafka.admin import NewPartitions

from epochline import KafkaSource
from epochline.coordinator import PlanOutcome
from epochline.errors import DataLossError, SourceUnavailableError
from epochline.operations import Request
from epochline.operations.declare_loss import DeclareLoss, DeclareLossParameters
from epochline.protocol.epoch import EpochState
from tests.checker import assert_exact, recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.servers import Server
from tests.crash.watching import all_decided
from tests.integration.kafka_topics import (
    Topic,
    admin_of,
    delete_records,
    make_topic,
    read_topic,
    transactional_producer,
)  # fmt: skip
from tests.waiting import wait_for


@pytest.mark.fault("F19")
def test_a_plan_without_a_broker_fails_retryably_and_plans_the_same_range_when_it_is_back(
    line: Line, server: Server
) -> None:
    """I1, I7: nothing is written to the ledger meanwhile."""
    server.kill_broker()
    with pytest.raises(SourceUnavailableError):
        line.plan("run-1")
    assert line.query("SELECT * FROM epochline.epochs") == []
    since = time.monotonic()

    server.start_broker()

    recover(line, since=since)


@pytest.mark.fault("F19")
def test_a_broker_killed_between_pre_commit_and_commit_delays_the_commit_and_loses_nothing(
    sealed: Line, server: Server
) -> None:
    """F38: nothing is committed before Kafka says what it shows; the epoch stays sealed meanwhile."""
    server.kill_broker()

    with pytest.raises(SourceUnavailableError):
        sealed.commit(1)

    assert sealed.state() is EpochState.PRE_COMMITTED
    since = time.monotonic()
    server.start_broker()
    sealed.some(2, "later")
    recover(sealed, since=since)


@contextmanager
def transactional(line: Line) -> Iterator[KafkaProducer]:
    """A producer of transactions; at the end, every transaction of the topic is decided."""
    with transactional_producer(line.bootstrap, f"tx-{line.name}") as producer:
        yield producer
    all_decided(line.bootstrap, line.topic)


@pytest.mark.fault("F23")
def test_an_open_transaction_at_the_tail_is_planned_around_and_read_once_it_is_committed(line: Line) -> None:
    """S13: the plan stops at the last stable offset, and nothing behind it is skipped."""
    with transactional(line) as producer:
        producer.begin_transaction()
        held = line.send(producer, {0: [f"held {i}" for i in range(5)]})
        line.produce({0: ["behind the open transaction"]})

        planned = line.to_planned("run-1")

        first = min(offset for _partition, offset in held)
        assert {one.tp.partition: one.range.until for one in planned.ranges}[0] == first
        assert any("open transaction holds back" in note for note in planned.notes)
        assert line.run("run-1") == "success"
        assert line.heads()[0] == first
        producer.commit_transaction()
    line.produced |= held
    recover(line)


@pytest.mark.fault("F23")
def test_a_range_of_aborted_records_alone_commits_no_row_and_moves_the_head(new_line: NewLine) -> None:
    """S13, INV-9: aborted records and their marker are offsets without a record."""
    line = new_line(partitions=1)
    with transactional(line) as producer:
        producer.begin_transaction()
        aborted = line.send(producer, {0: [f"aborted {i}" for i in range(5)]})
        producer.abort_transaction()

    assert line.run() == "success"

    assert line.heads() == {0: len(aborted) + 1}
    assert line.query("SELECT records_read, rows_written FROM epochline.epochs") == [(0, 0)]
    assert_exact(line)
    line.produce({0: ["and then one"]})
    recover(line)


@pytest.mark.fault("F24")
def test_offsets_that_are_markers_are_no_missing_records(new_line: NewLine) -> None:
    """S13, INV-9: committed and aborted transactions in turn."""
    line = new_line(partitions=1)
    with transactional(line) as producer:
        for number in range(6):
            producer.begin_transaction()
            sent = line.send(producer, {0: [f"{number}-{i}" for i in range(3)]})
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                line.produced |= sent

    recover(line)

    asked = "SELECT sum(records_read)::int, sum(until_offset - start_offset)::int FROM epochline.offsets"
    assert line.query(asked) == [(9, 24)]


@pytest.mark.fault("F24")
def test_records_that_compaction_took_are_no_missing_records(new_line: NewLine) -> None:
    """The cleaner has left gaps; what a consumer sees is what arrives."""
    configs = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    line = new_line(partitions=1, configs=configs)
    for number in range(30):
        line.produce({0: [f"value {number}"]}, key=b"k%d" % (number % 3))

    def visible() -> dict[tuple[int, int], bytes]:
        return {(0, one.offset): one.value for one in read_topic(line.bootstrap, line.topic)}

    def gaps() -> bool:
        line.produce({0: ["rolls the segment"]}, key=b"roll")
        seen = visible()
        return len(seen) < max(offset for _partition, offset in seen)

    wait_for("the cleaner took records", gaps, 120, every=0.5)
    line.run()  # may read more than was looked at: the cleaner goes on while it reads

    since = time.monotonic()
    in_target = line.query(f"SELECT _offset, value FROM {line.name}")
    line.produced = {(0, offset): value.encode() for offset, value in in_target}
    assert line.produced.items() >= visible().items()
    recover(line, since=since)


@pytest.mark.fault("F25")
def test_retention_past_the_head_stops_every_run_and_moves_nothing(line: Line) -> None:
    """I11: the lost range is named; no run is green and no offset is reset, until an operator declares the loss."""
    assert line.run() == "success"
    head = line.heads()[0]
    line.produce({0: [f"lost {i}" for i in range(10)]})
    delete_records(line.bootstrap, line.topic, {0: head + 4})

    with pytest.raises(DataLossError, match=rf"\[{head}, {head + 4}\), 4 of them") as lost:
        line.plan("run-2")

    assert not lost.value.retryable
    assert line.run() == "failed"
    assert line.heads()[0] == head

    DeclareLoss().act(line.subject, DeclareLossParameters(), Request(actor="somebody@here", reason="a test lost them"))
    for offset in range(head, head + 4):
        del line.produced[0, offset]
    recover(line)


@pytest.mark.fault("F26")
@pytest.mark.parametrize("records", [3, 60], ids=["shorter", "longer"])
def test_a_topic_made_again_stops_every_run_though_its_offsets_look_fine(line: Line, records: int) -> None:
    """I11: by the topic's id."""
    assert line.run() == "success"
    heads = line.heads()
    Topic(line.bootstrap, line.topic).make_again(2)
    line.produce({p: [f"another {i}" for i in range(records)] for p in (0, 1)})

    with pytest.raises(DataLossError, match="deleted and made again"):
        line.plan("run-2")

    assert line.run() == "failed"
    assert line.heads() == heads


@pytest.mark.fault("F27")
def test_partitions_added_between_plan_and_read_and_between_epochs_are_read_from_their_first_record(line: Line) -> None:
    """S2: the epoch reads what was planned, the next one everything else."""
    planned = line.to_planned("run-1")
    add_partitions(line, 3)
    line.produce({2: ["early", "late"]})

    line.pre_commit(planned, "run-1")
    line.commit(1)

    assert set(line.heads()) == {0, 1}
    add_partitions(line, 4)
    line.produce({3: ["later still"]})
    recover(line)
    assert set(line.heads()) == {0, 1, 2, 3}


def add_partitions(line: Line, count: int) -> None:
    """Give the topic so many partitions in all."""
    with admin_of(line.bootstrap) as admin:
        admin.create_partitions({line.topic: NewPartitions(count)})
        wait_for("it is there", lambda: len(admin.describe_topics([line.topic])[0]["partitions"]) == count)


@pytest.mark.fault("F27")
def test_a_topic_that_newly_matches_the_pattern_is_read_from_its_first_record(new_line: NewLine) -> None:
    """S2, FLIP-288: whatever the startup mode says of topics that were there at first."""
    first = new_line(partitions=1)
    first.produce({0: ["before the pipeline"]})
    source = KafkaSource(pattern=f"{first.topic}(-new)?", startup="latest")
    first.pipeline = first.pipeline.model_copy(update={"source": source})
    assert first.plan("run-1").outcome is PlanOutcome.NOTHING_TO_READ
    first.produced.clear()
    first.topic = make_topic(first.bootstrap, f"{first.topic}-new")
    first.produce({0: ["in the new topic"]})

    recover(first)

    assert first.query(f"SELECT value, _topic FROM {first.name}") == [("in the new topic", first.topic)]
