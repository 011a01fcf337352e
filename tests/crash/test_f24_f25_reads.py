"""Three nodes of Kafka delete records of a range while an epoch reads it, and between two attempts of the epoch."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from epochline.errors import DataLossError, RecordsGoneError, SealRefusedError
from epochline.operations import Request
from epochline.protocol.offsets import PlannedRange
from tests.checker import assert_exact, recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.nodes import Nodes
from tests.integration.kafka_topics import configure, delete_records, read_topic, transactional_producer
from tests.reading import of_product
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

COMPACT = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
BOTH = {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "86400000"}
LOST = Request(actor="ada@here", reason="a test lost them")


def log_start(line: Line) -> int:
    return line.source.look(line.pipeline.source).partitions[0].log_start


@pytest.mark.fault("F25")
@pytest.mark.parametrize("by", ["request", "age"])
@pytest.mark.parametrize("configs", [{}, BOTH], ids=["delete", "compact,delete"])
def test_records_deleted_in_the_middle_of_a_read_end_the_attempt_by_name(
    nodes: Nodes, new_line: NewLine, configs: dict[str, str], by: str
) -> None:
    """I11, INV-9: the attempt stages no fewer, not even of a compacted topic, whose gaps nobody counts."""
    line = new_line(bootstrap=nodes.bootstrap_servers, partitions=1, configs={"segment.bytes": "1048576", **configs})
    line.produce({0: [b"x" * 100_000] * 300}, key=b"k")  # more than a client fetches ahead
    planned, ticket = line.to_begun("run-1")

    def read(one: PlannedRange) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(of_product(line.kafka, one)):
            yield batch
            if number == 0:
                if by == "request":
                    delete_records(line.bootstrap, line.topic, {0: 250})
                else:
                    configure(line.bootstrap, line.topic, **{"retention.ms": "1"})
                wait_for("they are deleted", lambda: log_start(line) >= 250)

    with pytest.raises(RecordsGoneError, match="no longer has these offsets"):
        line.stage_parts(map(read, planned.ranges), ticket)

    with pytest.raises(SealRefusedError, match="without its end mark"):
        line.seal(ticket, "run-1")
    line.abort()
    with pytest.raises(DataLossError, match="retention passed the head"):
        line.plan("run-2")
    assert line.rows() == [(0, 0)]
    configure(line.bootstrap, line.topic, **{"retention.ms": "-1"})
    line.act("declare-loss", LOST)
    line.produced = {place: value for place, value in line.produced.items() if place[1] >= log_start(line)}
    line.produce({0: ["afterwards"]}, key=b"k")
    recover(line)


@pytest.mark.fault("F25")
def test_markers_deleted_between_the_read_and_the_seal_are_not_taken_for_records(
    nodes: Nodes, new_line: NewLine
) -> None:
    """INV-9: nobody can say any more that each offset without a record was a marker."""
    line = new_line(bootstrap=nodes.bootstrap_servers, partitions=1)
    with transactional_producer(line.bootstrap, f"tx-{line.name}") as producer:
        producer.begin_transaction()
        line.send(producer, {0: ["of a transaction"] * 3})
        producer.commit_transaction()
    line.produce({0: ["afterwards"]})
    planned, ticket = line.to_staged("run-1")
    delete_records(line.bootstrap, line.topic, {0: planned.ranges[0].range.until})

    with pytest.raises(RecordsGoneError, match="whether those without a record were markers"):
        line.seal(ticket, "run-1")

    assert line.rows() == [(0, 0)]
    line.abort()
    with pytest.raises(DataLossError, match="retention passed the head"):
        line.plan("run-2")


@pytest.mark.fault("F24")
def test_compaction_between_two_attempts_leaves_what_the_second_one_saw(nodes: Nodes, new_line: NewLine) -> None:
    """I1, I4: the rows and counts of the first attempt count for nothing."""
    line = new_line(bootstrap=nodes.bootstrap_servers, partitions=1, configs=COMPACT)
    for number in range(30):
        line.produce({0: [f"value {number}"]}, key=b"k%d" % (number % 3))
    planned, ticket = line.to_begun("run-1")
    line.stage(planned, ticket)  # … and dies before it seals.
    until = planned.ranges[0].range.until
    staged = len([place for place in line.produced if place[1] < until])

    def visible() -> dict[tuple[int, int], bytes]:
        read = read_topic(line.bootstrap, line.topic)
        return {(0, one.offset): one.value for one in read if one.offset < until}

    def taken() -> bool:
        line.produce({0: ["rolls the segment"]}, key=b"roll")
        return len(visible()) < staged

    wait_for("the cleaner took records of the range", taken, 120, every=0.5)
    line.pre_commit(planned, "run-1")
    line.commit(planned)

    rows = {(0, offset): value.encode() for offset, value in line.query(f"SELECT _offset, value FROM {line.name}")}
    assert visible().items() <= rows.items() <= line.produced.items()
    assert len(rows) < staged
    assert line.query("SELECT attempt, records_read FROM epochline.epoch") == [(2, len(rows))]
    line.produced = rows
    assert_exact(line)
