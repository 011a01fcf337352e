"""Publish under faults of the broker, the network and PostgreSQL, with both kinds of consumers attached all the time.

In every test a consumer of committed records sees whole epochs, in their order, each record once and each key's in order.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from epochline.errors import LedgerUnavailableError, SourceUnavailableError
from tests.crash.proxy import Proxy
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.crash.stream import NewStream, Stream, ended
from tests.crash.watching import Watchers

TIME_OUT, STOP = 5.0, 10.0
"""Seconds: the transaction time-out that a document sets (K17), and a stop that outlasts it (X3)."""


# F19.


@pytest.mark.fault("F19")
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("topic.fence", marks=pytest.mark.slow),
        pytest.param("topic.record@30", marks=pytest.mark.slow),
        "topic.commit",
        pytest.param("topic.committed", marks=pytest.mark.slow),
    ],
)
def test_a_broker_killed_while_an_epoch_is_published_shows_it_once(
    place: str, server: Server, stream: tuple[Stream, Watchers], recovery: Recovery
) -> None:
    """P9, P11, I7: before the transaction, in the middle of its records, before its commit and after it."""
    pipeline, watchers = stream
    pipeline.publish()
    pipeline.commit()
    pipeline.commit()
    publisher = pipeline.publisher(place)
    server.kill_broker()
    os.kill(publisher.pid, signal.SIGCONT)
    recovery.last_fault()

    server.start_broker()

    code, said = ended(publisher)
    assert code == 0 or "SinkUnavailableError" in said, said
    pipeline.recover(watchers, recovery)


@pytest.mark.fault("F19")
def test_an_epoch_that_is_sealed_while_the_broker_is_away_is_committed_and_shown_when_it_is_back(
    server: Server, stream: tuple[Stream, Watchers], recovery: Recovery
) -> None:
    """E6: Kafka has to say first that the ledger knows all that is shown; nothing is lost or out of order."""
    pipeline, watchers = stream
    sealed = pipeline.seal()
    server.kill_broker()

    with pytest.raises(SourceUnavailableError):
        pipeline.commit_sealed(sealed)

    assert pipeline.world.it.sql("SELECT max(_epoch) FROM lines") == [(1,)]
    recovery.last_fault()
    server.start_broker()
    pipeline.commit_sealed(sealed)
    assert pipeline.recover(watchers, recovery) == 0


# F20.


@pytest.mark.fault("F20")
@pytest.mark.parametrize("place", [pytest.param("topic.record@30", marks=pytest.mark.slow), "topic.commit"])
def test_a_broker_that_pauses_longer_than_the_time_out_shows_the_epoch_once(
    place: str, server: Server, new_stream: NewStream, recovery: Recovery
) -> None:
    """X3, K17: five seconds of time-out, ten of a stop; the sender gives up, and the marker says what became of it."""
    pipeline, watchers = new_stream(timeout=TIME_OUT)
    publisher = pipeline.publisher(place)
    broker = server.kafka.pid
    assert broker is not None
    with server.frozen(broker):
        os.kill(publisher.pid, signal.SIGCONT)
        time.sleep(STOP)
        code, said = ended(publisher)
        recovery.last_fault()

    assert code != 0
    assert "SinkUnavailableError" in said, said
    pipeline.recover(watchers, recovery)


@pytest.mark.fault("F20", "F22")
def test_a_publisher_that_stops_longer_than_the_time_out_shows_the_epoch_once(
    new_stream: NewStream, recovery: Recovery
) -> None:
    """X3, K17: the broker ends its transaction; woken, it is told so, and the next try sends the epoch again."""
    pipeline, watchers = new_stream(timeout=TIME_OUT)
    publisher = pipeline.publisher("topic.commit")
    assert watchers.undecided()

    watchers.decided()
    os.kill(publisher.pid, signal.SIGCONT)
    recovery.last_fault()
    code, said = ended(publisher)
    assert code != 0
    assert "SinkUnavailableError" in said, said
    assert watchers.whole_epochs(pipeline.epochs()) == []
    assert pipeline.recover(watchers, recovery) == 60


# F22.


@pytest.mark.fault("F22")
def test_a_zombie_that_wakes_under_the_transaction_of_its_successor_commits_neither_its_own_nor_that_one(
    stream: tuple[Stream, Watchers], recovery: Recovery
) -> None:
    """P13: its epoch was published without it; the next one is being published, by the same transactional id."""
    pipeline, watchers = stream
    zombie = pipeline.publisher("topic.commit")
    assert pipeline.publish() == [1]
    pipeline.commit()
    successor = pipeline.publisher("topic.commit")

    os.kill(zombie.pid, signal.SIGCONT)
    code, said = ended(zombie)

    assert code != 0
    assert "another process took over" in said, said
    assert watchers.undecided()
    assert watchers.whole_epochs(pipeline.epochs()) == [1]
    recovery.last_fault()
    os.kill(successor.pid, signal.SIGCONT)
    assert ended(successor)[0] == 0
    assert pipeline.recover(watchers, recovery) == 60


@pytest.mark.fault("F22")
def test_a_zombie_that_takes_over_after_later_epochs_were_published_sends_nothing(
    stream: tuple[Stream, Watchers], recovery: Recovery
) -> None:
    """P11, P13: it stood before its fence, which now fences nobody; the marker says that its epoch is there."""
    pipeline, watchers = stream
    zombie = pipeline.publisher("topic.fence")
    pipeline.publish()
    pipeline.commit()
    pipeline.publish()

    os.kill(zombie.pid, signal.SIGCONT)
    recovery.last_fault()

    assert ended(zombie)[0] == 0
    assert pipeline.recover(watchers, recovery) == 0


# The answer of the commit, and its request, are lost.


@pytest.fixture
def far_broker(server: Server) -> Iterator[tuple[Proxy, str]]:
    """A proxy in front of the broker, and its address."""
    proxy = server.to_kafka
    yield proxy, f"127.0.0.1:{proxy.port}"
    proxy.heal()


@pytest.mark.fault("F11", "F21")
def test_a_commit_of_a_transaction_whose_answer_is_lost_is_settled_by_the_marker(
    new_stream: NewStream, far_broker: tuple[Proxy, str], recovery: Recovery
) -> None:
    """P11: the broker has committed, the sender cannot know; nothing is sent again."""
    proxy, address = far_broker
    pipeline, watchers = new_stream(timeout=TIME_OUT)
    publisher = pipeline.publisher("topic.commit", BOOTSTRAP=address)
    proxy.silence(server=True)

    os.kill(publisher.pid, signal.SIGCONT)
    watchers.decided()
    assert watchers.whole_epochs(pipeline.epochs()) == [1]
    proxy.unplug()
    recovery.last_fault()

    code, said = ended(publisher)
    assert code != 0
    assert "its outcome is not known; the marker settles it" in said, said
    assert pipeline.world.receipts()[0][2] == "OPEN"
    assert pipeline.recover(watchers, recovery) == 0


@pytest.mark.fault("F12", "F21")
def test_a_commit_of_a_transaction_that_does_not_arrive_is_settled_by_the_marker(
    new_stream: NewStream, far_broker: tuple[Proxy, str], recovery: Recovery
) -> None:
    """P11: to the sender it looks the same; the broker has not committed, and the epoch is sent again."""
    proxy, address = far_broker
    pipeline, watchers = new_stream(timeout=TIME_OUT)
    publisher = pipeline.publisher("topic.commit", BOOTSTRAP=address)
    proxy.unplug()
    os.kill(publisher.pid, signal.SIGCONT)
    recovery.last_fault()

    code, said = ended(publisher)

    assert code != 0
    assert "its outcome is not known; the marker settles it" in said, said
    assert watchers.whole_epochs(pipeline.epochs()) == []
    assert pipeline.recover(watchers, recovery) == 60


@pytest.mark.fault("F21")
def test_a_connection_that_is_cut_at_the_commit_of_a_transaction_is_made_again_by_the_sender_itself(
    stream: tuple[Stream, Watchers], far_broker: tuple[Proxy, str], recovery: Recovery
) -> None:
    """P11: asked again, the broker answers as it did before."""
    proxy, address = far_broker
    pipeline, watchers = stream
    publisher = pipeline.publisher("topic.commit", BOOTSTRAP=address)
    proxy.silence(server=True)
    os.kill(publisher.pid, signal.SIGCONT)
    watchers.decided()
    assert watchers.whole_epochs(pipeline.epochs()) == [1]

    proxy.cut()
    proxy.heal()
    recovery.last_fault()

    assert ended(publisher)[0] == 0
    assert pipeline.recover(watchers, recovery) == 0


# PostgreSQL, where the outbox and the receipts are.


@pytest.mark.fault("F13")
def test_postgresql_stops_while_the_outbox_is_read_and_nothing_of_the_epoch_is_visible(
    server: Server, stream: tuple[Stream, Watchers], recovery: Recovery
) -> None:
    """P12: rows are read in pieces of five thousand; what was sent before the stop is aborted."""
    pipeline, watchers = stream
    pipeline.publish()
    pipeline.commit(12_000)
    publisher = pipeline.publisher("topic.record@4000")
    server.crash_and_restart()
    recovery.last_fault()

    os.kill(publisher.pid, signal.SIGCONT)
    code, said = ended(publisher)

    assert code != 0
    assert LedgerUnavailableError.__name__ in said, said
    assert watchers.whole_epochs(pipeline.epochs()) == [1]
    assert pipeline.recover(watchers, recovery) > 0
