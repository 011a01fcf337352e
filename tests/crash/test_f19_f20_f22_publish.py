"""Publish under faults of the broker, the network and PostgreSQL, with both kinds of consumers attached all the time.

In every test a consumer of committed records sees whole epochs, in their order, each record once and each key's in order.
"""

import time
from dataclasses import replace

import pytest

from epochline.errors import LedgerBehindError, SinkAheadError, SourceUnavailableError
from tests.crash.cases import slow
from tests.crash.proxy import Proxy
from tests.crash.servers import Server
from tests.crash.stream import NewStream, Stream, assert_failed
from tests.integration.sinks_world import SinksPipeline, in_process

TIME_OUT, STOP = 5.0, 10.0
"""Seconds: the transaction time-out that a document sets (K17), and a stop that outlasts it (X3)."""

# F19.


@pytest.mark.fault("F19")
@pytest.mark.parametrize("place", [*map(slow, ("topic.fence", "topic.record@30", "topic.committed")), "topic.commit"])
def test_a_broker_killed_while_an_epoch_is_published_shows_it_once(place: str, server: Server, stream: Stream) -> None:
    """P9, P11, I7, I9: before the transaction, in the middle of its records, before its commit and after it."""
    stream.publish()
    stream.commit()
    stream.commit()
    publisher = stream.publisher(place)
    server.kill_broker()
    stream.go_on(publisher)

    server.start_broker()

    assert publisher.wait() == 0 or "SinkUnavailableError" in publisher.written("err"), publisher.written("err")
    stream.recover()


@pytest.mark.fault("F19")
def test_an_epoch_that_is_sealed_while_the_broker_is_away_is_committed_and_shown_when_it_is_back(
    server: Server, stream: Stream
) -> None:
    """E6: Kafka has to say first that the ledger knows all that is shown; nothing is lost or out of order."""
    planned = stream.seal()
    server.kill_broker()

    with pytest.raises(SourceUnavailableError):
        stream.world.it.commit(planned)

    assert stream.world.it.sql("SELECT max(_epoch) FROM lines") == [(1,)]
    stream.recovery.last_fault()
    server.start_broker()
    stream.world.it.commit(planned)
    assert stream.recover() == 0


# F20.


@pytest.mark.fault("F20")
@pytest.mark.parametrize("place", [slow("topic.record@30"), "topic.commit"])
def test_a_broker_that_pauses_longer_than_the_time_out_shows_the_epoch_once(
    place: str, server: Server, new_stream: NewStream
) -> None:
    """X3, K17: five seconds of time-out, ten of a stop; the sender gives up, and the marker says what became of it."""
    stream = new_stream(timeout=TIME_OUT)
    publisher = stream.publisher(place)
    with server.frozen(server.kafka.pid):
        stream.go_on(publisher)
        time.sleep(STOP)
        assert_failed(publisher, "SinkUnavailableError")
        stream.recovery.last_fault()

    stream.recover()


@pytest.mark.fault("F20", "F22")
def test_a_publisher_that_stops_longer_than_the_time_out_shows_the_epoch_once(new_stream: NewStream) -> None:
    """X3, K17: the broker ends its transaction; the publisher fails, and the next try sends the epoch again."""
    stream = new_stream(timeout=TIME_OUT)
    publisher = stream.publisher("topic.commit")

    stream.watchers.decided()
    stream.go_on(publisher)
    assert_failed(publisher, "SinkUnavailableError")
    assert stream.watchers.whole_epochs(stream.epochs()) == []
    assert stream.recover() == 60


# F22.


@pytest.mark.fault("F22")
def test_a_zombie_that_wakes_under_the_transaction_of_its_successor_commits_neither_its_own_nor_that_one(
    stream: Stream,
) -> None:
    """P13: its epoch was published without it; the next one is being published, by the same transactional id."""
    zombie = stream.publisher("topic.commit")
    assert stream.publish() == [1]
    stream.commit()
    successor = stream.publisher("topic.commit")

    stream.go_on(zombie)
    assert_failed(zombie, "another process took over")
    assert stream.watchers.undecided()
    assert stream.watchers.whole_epochs(stream.epochs()) == [1]

    stream.go_on(successor)
    assert successor.wait() == 0
    assert stream.recover() == 60


@pytest.mark.fault("F22")
def test_a_zombie_that_takes_over_after_later_epochs_were_published_sends_nothing(stream: Stream) -> None:
    """P11, P13: it stood before its fence, which now fences nobody; the marker says that its epoch is there."""
    zombie = stream.publisher("topic.fence")
    stream.publish()
    stream.commit()
    stream.publish()

    stream.go_on(zombie)

    assert zombie.wait() == 0
    assert stream.recover() == 0


# F22: two publishers that are no zombies.


def twin_of(stream: Stream, server: Server, *, mirror: bool = False) -> SinksPipeline:
    """A pipeline of the same name in another database: its transactional id and its marker's key are the same."""
    declared = stream.world.it.pipeline
    source = declared.source.model_copy(update={"mirror": mirror})
    pipeline = declared.model_copy(update={"source": source})
    return replace(stream.world, it=in_process(server.new_database(), stream.world.bootstrap, pipeline).create())


@pytest.mark.fault("F22")
@pytest.mark.parametrize("place", ["topic.fence", *map(slow, ("topic.fenced", "topic.record@30")), "topic.commit"])
def test_of_one_pipeline_in_two_ledgers_one_publishes_and_the_other_is_stopped_by_name(
    place: str, server: Server, stream: Stream
) -> None:
    """P11, P13, INV-8: both committed the same records before any was sent; whoever commits in Kafka first goes on."""
    twin = twin_of(stream, server)
    twin.it.epoch()
    publisher = stream.publisher(place)

    assert [shown.epoch_id for shown in twin.it.publish()] == [1]

    stream.go_on(publisher)
    assert publisher.wait() != 0
    with pytest.raises(SinkAheadError, match="which the ledger does not know"):
        stream.publish()
    with pytest.raises(LedgerBehindError, match="a pipeline of this name in another database"):
        stream.world.it.asked_to_plan()
    stream.world = twin
    stream.commit()
    stream.recover()


@pytest.mark.fault("F22")
def test_a_second_ledger_with_a_pipelines_name_plans_nothing(server: Server, stream: Stream) -> None:
    """INV-8: consumer group and marker show epochs of the other one; the pipeline that was there is not disturbed."""
    stream.publish()
    twin = twin_of(stream, server, mirror=True)

    with pytest.raises(LedgerBehindError, match="a pipeline of this name in another database"):
        twin.it.asked_to_plan()

    assert twin.it.sql("SELECT count(*) FROM epochline.epochs") == [(0,)]
    stream.commit()
    stream.recover()


@pytest.mark.fault("F22")
@pytest.mark.parametrize("place", [slow("topic.fence"), slow("topic.record@30"), "topic.commit"])
def test_two_pipelines_publish_to_one_topic_and_neither_fences_or_doubles_the_other(
    place: str, server: Server, stream: Stream
) -> None:
    """P9, P12: each epoch is one transaction of its pipeline's own id, whole to a reader of committed records."""
    declared = stream.world.it.pipeline
    pipeline = declared.model_copy(update={"name": f"{declared.name}-other"})
    other = in_process(server.new_database(), stream.world.bootstrap, pipeline).create()
    other.epoch()
    publisher = stream.publisher(place)

    assert [shown.epoch_id for shown in other.publish()] == [1]

    stream.go_on(publisher)
    assert publisher.wait() == 0
    assert [*other.publish(), *stream.publish()] == []
    stream.recovery.took()
    sent = [value for records in stream.epochs().values() for _, value in records]
    assert sorted(one.value or "" for one in stream.world.seen()) == sorted(2 * sent)


# The answer of the commit, and its request, are lost.


@pytest.mark.fault("F11", "F21")
def test_a_commit_of_a_transaction_whose_answer_is_lost_is_settled_by_the_marker(
    new_stream: NewStream, to_kafka: Proxy
) -> None:
    """P11: the broker has committed, the sender cannot know; nothing is sent again."""
    stream = new_stream(timeout=TIME_OUT)
    publisher = stream.publisher("topic.commit", BOOTSTRAP=to_kafka.address)
    to_kafka.silence("server")

    stream.go_on(publisher)
    stream.watchers.decided()
    assert stream.watchers.whole_epochs(stream.epochs()) == [1]
    to_kafka.unplug()
    stream.recovery.last_fault()

    assert_failed(publisher, "its outcome is not known; the marker settles it")
    assert stream.world.receipts()[0][2] == "OPEN"
    assert stream.recover() == 0


@pytest.mark.fault("F12", "F21")
def test_a_commit_of_a_transaction_that_does_not_arrive_is_settled_by_the_marker(
    new_stream: NewStream, to_kafka: Proxy
) -> None:
    """P11: to the sender it looks the same; the broker has not committed, and the epoch is sent again."""
    stream = new_stream(timeout=TIME_OUT)
    publisher = stream.publisher("topic.commit", BOOTSTRAP=to_kafka.address)
    to_kafka.unplug()
    stream.go_on(publisher)

    assert_failed(publisher, "its outcome is not known; the marker settles it")
    assert stream.watchers.whole_epochs(stream.epochs()) == []
    assert stream.recover() == 60


@pytest.mark.fault("F21")
def test_a_connection_that_is_cut_at_the_commit_of_a_transaction_is_made_again_by_the_sender_itself(
    stream: Stream, to_kafka: Proxy
) -> None:
    """P11: asked again, the broker answers as it did before."""
    publisher = stream.publisher("topic.commit", BOOTSTRAP=to_kafka.address)
    to_kafka.silence("server")
    stream.go_on(publisher)
    stream.watchers.decided()
    assert stream.watchers.whole_epochs(stream.epochs()) == [1]

    to_kafka.cut()
    to_kafka.heal()
    stream.recovery.last_fault()

    assert publisher.wait() == 0
    assert stream.recover() == 0


# PostgreSQL, where the outbox and the receipts are.


@pytest.mark.fault("F13")
def test_postgresql_stops_while_the_outbox_is_read_and_nothing_of_the_epoch_is_visible(
    server: Server, stream: Stream
) -> None:
    """P12: rows are read in pieces of five thousand; what was sent before the stop is aborted."""
    stream.publish()
    stream.commit(12_000)
    # It waits for a second before it stops, so that records have left it by then.
    publisher = stream.publisher("topic.record@3999:sleep:1,topic.record@4000")
    server.crash_and_restart()

    stream.go_on(publisher)
    assert_failed(publisher, "LedgerUnavailableError")
    assert stream.watchers.whole_epochs(stream.epochs()) == [1]
    assert stream.recover() > 0
