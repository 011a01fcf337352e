"""The network between a run and PostgreSQL, or Kafka: cut, one way, reset, away for a while."""

import time
from collections.abc import Callable, Iterator
from typing import Literal

import pyarrow as pa
import pytest

from epochline.errors import EpochlineError, SourceUnavailableError
from epochline.protocol.epoch import EpochState
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line, in_background
from tests.crash.proxy import Proxy
from tests.integration.kafka_topics import group_offsets
from tests.waiting import wait_for

Batches = Iterator[pa.RecordBatch]
BREAKS: dict[str, Callable[[Proxy], None]] = {"cut": Proxy.cut, "reset": Proxy.reset, "unplugged": Proxy.unplug}


def broken(batches: Batches, how: str, proxy: Proxy) -> Batches:
    """The batches, with a break after the first of them."""
    for number, batch in enumerate(batches):
        yield batch
        if number == 0:
            BREAKS[how](proxy)


@pytest.mark.fault("F21")
@pytest.mark.parametrize("how", BREAKS)
def test_a_break_to_postgresql_during_copy_fails_the_writer_and_the_run_heals(
    proxied: tuple[Line, Proxy], how: str
) -> None:
    """I1, I7: the writer's error says that a retry helps."""
    line, proxy = proxied
    planned, ticket = line.to_begun("run-1")

    with pytest.raises(EpochlineError) as error:
        line.writer(ticket).write(broken(line.read(planned.ranges[0]), how, proxy))
    assert error.value.retryable
    since = time.monotonic()
    proxy.heal()

    assert line.run("run-1") == "success"
    recover(line, since=since)


@pytest.mark.fault("F21")
@pytest.mark.parametrize("side", ["server", "client"])
def test_a_commit_that_hears_nothing_goes_on_when_the_network_does(
    proxied: tuple[Line, Proxy], side: Literal["server", "client"]
) -> None:
    """One way: from the connection on, only what the other side sends arrives. Nobody commits twice."""
    line, proxy = proxied
    line.to_sealed("run-1")
    proxy.silence(side)
    committing = in_background(lambda: line.commit(1))
    # It has connected to the proxy, and waits for PostgreSQL's first word.
    wait_for("it is connected", lambda: proxy.connections)
    assert not committing.done()
    since = time.monotonic()
    proxy.heal()

    assert committing.result(90).epoch.epoch_id == 1
    recover(line, since=since)


@pytest.fixture
def far_line(to_kafka: Proxy, new_line: NewLine) -> Line:
    line = new_line(kafka=to_kafka.address)
    line.some()
    return line


@pytest.mark.fault("F21")
@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_break_to_kafka_while_records_are_read_loses_and_doubles_none(
    far_line: Line, to_kafka: Proxy, how: str
) -> None:
    """I1: a consumer reconnects and goes on at its position."""
    planned, ticket = far_line.to_begun("run-1")

    far_line.stage_parts((broken(far_line.read(one), how, to_kafka) for one in planned.ranges), ticket)
    since = time.monotonic()

    assert far_line.seal(ticket, "run-1").read == len(far_line.produced)
    recover(far_line, since=since)


@pytest.mark.fault("F21")
def test_without_a_network_to_kafka_plan_and_commit_say_that_a_retry_helps(
    far_line: Line, to_kafka: Proxy, new_line: NewLine
) -> None:
    """INV-8, F38: nothing is planned, and nothing committed of which Kafka cannot say whether it is news."""
    far_line.to_sealed("run-1")
    other = new_line(kafka=to_kafka.address)
    other.some(3)
    to_kafka.unplug()

    for refused in (in_background(lambda: other.plan("run-1")), in_background(lambda: far_line.commit(1))):
        with pytest.raises(SourceUnavailableError):
            refused.result(90)

    assert far_line.state() is EpochState.PRE_COMMITTED
    assert other.query("SELECT * FROM epochline.epochs") == []
    since = time.monotonic()
    to_kafka.heal()
    far_line.some(2, "later")
    recover(far_line, since=since)
    recover(other, since=since)
    assert group_offsets(far_line.bootstrap, far_line.pipeline.consumer_group) == far_line.heads()
