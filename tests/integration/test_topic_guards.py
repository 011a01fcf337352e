"""The topic's guards on real servers: each promise holds, and fails once its guard is taken away (P11 to P13)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from epochline import KafkaTopic, Text
from epochline.errors import SinkAheadError, SinkError, SinkUnavailableError
from epochline.failpoints import FailpointError
from epochline.kafka import sending
from epochline.kafka.markers import Marker
from epochline.kafka.sending import TransactionalSender
from tests.integration.sinks_world import SinksPipeline, new_world, values
from tests.model.guards import TOPIC_MUTANTS, Mutant

Promise = Callable[[SinksPipeline], None]


@contextmanager
def _at(place: str, act: Callable[[], object]) -> Iterator[list[str]]:
    """Do something the first time that a publisher passes a failpoint; what happened, as a list."""
    happened: list[str] = []

    def passed(name: str) -> None:
        if name == place and not happened:
            happened.append(name)
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "failpoint", passed)
        yield happened


def _dies() -> None:
    raise FailpointError("killed here")


def _killed_at(world: SinksPipeline, place: str) -> None:
    with _at(place, _dies) as happened, suppress(FailpointError):
        world.it.publish()
    assert happened == [place]


def a_publisher_that_was_fenced_shows_nothing(world: SinksPipeline) -> None:
    with _at("topic.commit", world.it.publish), suppress(SinkError):
        world.it.publish()

    assert values(world.seen()) == ["a", "b"]


def what_is_committed_before_the_fence_is_not_sent_again(world: SinksPipeline) -> None:
    with _at("topic.fence", lambda: _killed_at(world, "topic.committed")):
        world.it.publish()

    assert values(world.seen()) == ["a", "b"]


def what_a_killed_publisher_began_is_there_once(place: str, world: SinksPipeline) -> None:
    _killed_at(world, place)
    world.it.publish()

    assert values(world.seen()) == ["a", "b"]


def epochs_are_published_in_their_order(world: SinksPipeline) -> None:
    world.epoch("c")

    assert [one.epoch_id for one in world.it.publish()] == [1, 2]
    assert values(world.seen()) == ["a", "b", "c"]


def a_marker_that_nobody_knows_stops_the_publisher(world: SinksPipeline) -> None:
    name, (topic,) = world.it.pipeline.name, world.it.pipeline.topics
    marker = Marker(generation=1, epoch_id=9, token="7d0b6a3e-6c8e-4a62-9a3c-0a3f0d4a5b11")
    with TransactionalSender(world.it.kafka, "somebody", topic.transaction_timeout) as sender:
        sender.fence()
        sender.send(topic.topic, [], Marker.key(name, topic.name), marker.body())

    with suppress(SinkAheadError):
        world.it.publish()
        raise AssertionError("the publisher went on")
    assert world.seen() == []


PROMISES: dict[str, Promise] = {
    "nobody is fenced": a_publisher_that_was_fenced_shows_nothing,
    "the marker is asked before the fence": what_is_committed_before_the_fence_is_not_sent_again,
    # Killed after its commit, before its commit, and before it sent anything.
    "the marker is not asked": partial(what_a_killed_publisher_began_is_there_once, "topic.committed"),
    "the marker is committed in a transaction of its own": partial(
        what_a_killed_publisher_began_is_there_once, "topic.commit"
    ),
    "the receipt is written before the commit": partial(what_a_killed_publisher_began_is_there_once, "topic.fence"),
    "a newer epoch is published before an older one": epochs_are_published_in_their_order,
    "a marker that the ledger does not know is accepted": a_marker_that_nobody_knows_stops_the_publisher,
}


@pytest.fixture
def world(postgres_dsn: str, kafka_bootstrap: str) -> SinksPipeline:
    made = new_world(postgres_dsn, kafka_bootstrap, KafkaTopic(topic="out", value=Text()))
    made.epoch("a", "b")
    return made


@pytest.mark.parametrize("mutant", TOPIC_MUTANTS, ids=str)
def test_the_promise_holds_with_the_guard(mutant: Mutant, world: SinksPipeline) -> None:
    PROMISES[mutant.name](world)


@pytest.mark.parametrize("mutant", TOPIC_MUTANTS, ids=str)
def test_the_promise_fails_without_the_guard(mutant: Mutant, world: SinksPipeline) -> None:
    """What would be sent twice, or not at all, is: the test above can fail."""
    with mutant.in_force(), pytest.raises(AssertionError):
        PROMISES[mutant.name](world)


def test_a_publisher_that_comes_too_late_finds_the_outbox_published_not_changed(world: SinksPipeline) -> None:
    """P13: between its look at the marker and at the outbox, another process published the epoch; found by the model."""
    with (
        _at("topic.begin", world.it.publish) as happened,
        pytest.raises(SinkUnavailableError, match="another process published epoch 1 of .* meanwhile"),
    ):
        world.it.publish()

    assert happened == ["topic.begin"]
    assert values(world.seen()) == ["a", "b"]
    assert world.it.publish() == []
