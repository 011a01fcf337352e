"""The network between a run and PostgreSQL, or Kafka: cut, one way, reset, away for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from epochline.errors import EpochlineError, SourceUnavailableError
from epochline.protocol.epoch import EpochState
from tests.crash.checker import recover
from tests.crash.conftest import InBackground, NewLine
from tests.crash.line import Line
from tests.crash.proxy import Proxy
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.waiting import wait_for

BREAKS: dict[str, Callable[[Proxy], None]] = {"cut": Proxy.cut, "reset": Proxy.reset, "unplugged": Proxy.unplug}


@pytest.mark.fault("F21")
@pytest.mark.parametrize("how", BREAKS)
def test_a_break_to_postgresql_during_copy_fails_the_writer_and_the_run_heals(
    proxied: tuple[Line, Proxy], how: str, recovery: Recovery
) -> None:
    """I1, I7: the writer's error says that a retry helps."""
    line, proxy = proxied
    planned, ticket = line.to_begun("run-1")

    def breaking() -> Iterator[Any]:
        for number, batch in enumerate(line.read(planned.ranges[0])):
            yield batch
            if number == 0:
                BREAKS[how](proxy)

    with pytest.raises(EpochlineError) as broken:
        line.writer(ticket).write(breaking())
    assert broken.value.retryable
    since = recovery.last_fault()
    proxy.heal()

    assert line.run("run-1") == "success"
    recovery.took(recover(line, since=since))


@pytest.mark.fault("F21")
@pytest.mark.parametrize("side", ["server", "client"])
def test_a_commit_that_hears_nothing_goes_on_when_the_network_does(
    proxied: tuple[Line, Proxy], side: str, background: InBackground, recovery: Recovery
) -> None:
    """One way: one side's words arrive and the other's do not, from the connection on. Nobody commits twice."""
    line, proxy = proxied
    line.to_sealed("run-1")
    proxy.silence(**{side: True})
    committing = background(lambda: line.commit(1))
    # It has connected to the proxy, and waits for PostgreSQL's first word.
    wait_for("it is connected", lambda: proxy.connections)
    assert committing.running
    since = recovery.last_fault()
    proxy.heal()

    assert committing.result().epoch.epoch_id == 1
    recovery.took(recover(line, since=since))


@pytest.fixture
def far_broker(server: Server, new_line: NewLine) -> Iterator[tuple[Line, Proxy]]:
    """A pipeline that plans and reads through a proxy."""
    proxy = server.to_kafka
    line = new_line(kafka=f"127.0.0.1:{proxy.port}")
    line.some()
    yield line, proxy
    proxy.heal()


@pytest.mark.fault("F21")
@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_break_to_kafka_while_records_are_read_loses_and_doubles_none(
    far_broker: tuple[Line, Proxy], how: str, recovery: Recovery
) -> None:
    """I1: a consumer reconnects and goes on at its position."""
    line, proxy = far_broker
    planned, ticket = line.to_begun("run-1")

    def breaking(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 1:
                BREAKS[how](proxy)
            yield batch

    line.stage(planned.ranges, ticket, through=breaking)
    since = recovery.last_fault()

    assert line.seal(ticket, "run-1").read == len(line.produced)
    recovery.took(recover(line, since=since))


@pytest.mark.fault("F21")
def test_without_a_network_to_kafka_plan_and_commit_say_that_a_retry_helps(
    far_broker: tuple[Line, Proxy], new_line: NewLine, background: InBackground, recovery: Recovery
) -> None:
    """INV-8, F38: nothing is planned, and nothing committed of which Kafka cannot say whether it is news."""
    line, proxy = far_broker
    line.to_sealed("run-1")
    other = new_line(kafka=line.kafka)
    other.some(3)
    proxy.unplug()
    planning, committing = background(lambda: other.plan("run-1")), background(lambda: line.commit(1))

    with pytest.raises(SourceUnavailableError):
        planning.result()
    with pytest.raises(SourceUnavailableError):
        committing.result()

    assert line.state() is EpochState.PRE_COMMITTED
    assert other.query("SELECT * FROM epochline.epochs") == []
    since = recovery.last_fault()
    proxy.heal()
    line.some(2, "later")
    recovery.took(max(recover(line, since=since), recover(other, since=since)))
    mirrored = line.source.mirrored(line.pipeline.consumer_group)
    assert {partition: held.offset for (_topic, partition), held in mirrored.items()} == line.heads()
