"""Data-loss guards over both ledgers: each stops the pipeline, says what is gone, and moves no head."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from epochline.coordinator import Plan, PlanOutcome, abort, preview
from epochline.errors import DataLossError, SourceError
from epochline.protocol.epoch import AbortOutcome, EpochState
from epochline.protocol.planning import OpenTransaction
from epochline.protocol.staging import StagingTicket
from tests.contract.worlds import World, fake_world, postgres_world, run


@pytest.fixture(params=["fake", pytest.param("postgres", marks=pytest.mark.server)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Two partitions of which ten and five offsets are committed."""
    one = fake_world() if request.param == "fake" else postgres_world(request.getfixturevalue("postgres_dsn"))
    one.to_committed()
    return one


def _retention(world: World) -> None:
    world.kafka.produce("orders", 0, 5)
    world.kafka.change("orders", 0, log_start=12)


def _truncated(world: World) -> None:
    world.kafka.change_leader("orders", 0, truncate_to=8)


def _truncated_and_grown(world: World) -> None:
    world.kafka.change_leader("orders", 0, truncate_to=8)
    world.kafka.produce("orders", 0, 30)


def _older_log(world: World) -> None:
    world.kafka.change_leader("orders", 0)
    world.kafka.produce("orders", 0, 1)
    world.to_committed("r2")
    world.kafka.leader_epochs["orders", 0] = {0: 0}
    world.kafka.change("orders", 0, leader_epoch=0)


def _made_again(world: World) -> None:
    for partition in (0, 1):
        world.kafka.produce("orders", partition, 30, topic_id="another")


def _shrunk(world: World) -> None:
    del world.kafka.views["orders", 1]


def _gone(world: World) -> None:
    world.kafka.views.clear()


def _moved(world: World) -> None:
    world.kafka.cluster_id = "another"


def _moved_without_the_topic(world: World) -> None:
    _moved(world)
    _gone(world)


LOSSES: dict[str, tuple[Callable[[World], None], str]] = {
    "retention": (_retention, r"offsets \[10, 12\), 2 of them, are gone.*`epochline declare-loss orders`"),
    "truncated": (_truncated, "its log ends at 8: 2 offsets that were read.*`epochline adopt-topic orders orders`"),
    "truncated and grown": (_truncated_and_grown, "leader epoch 0 wrote now ends at 8.*: 2 offsets that were read"),
    "a log of older leaders": (_older_log, "its log knows no leader epoch 1 or later any more"),
    "made again": (
        _made_again,
        "offset 10 of partition 0; offset 5 of partition 1.*`epochline adopt-topic orders orders`",
    ),
    "fewer partitions": (_shrunk, "orders-1, committed up to offset 5.*made again with fewer: `epochline adopt-topic"),
    "topic gone": (_gone, "orders-0, committed up to offset 10; orders-1, committed up to offset 5"),
    "another cluster": (_moved, "belong to Kafka cluster fake, .*`epochline adopt-topic orders --cluster`"),
    "another cluster without the topic": (_moved_without_the_topic, "belong to Kafka cluster fake"),
}


@pytest.mark.parametrize(("lose", "said"), LOSSES.values(), ids=LOSSES.keys())
def test_a_loss_stops_the_plan_and_its_preview_and_changes_nothing(
    world: World, lose: Callable[[World], None], said: str
) -> None:
    """The error says what happened, how many offsets are gone and what to do; a retry does not help."""
    lose(world)
    heads, rows = world.heads(), world.visible()

    with pytest.raises(DataLossError, match=said) as planning:
        world.plan("r9")
    with pytest.raises(DataLossError, match=said):
        preview(world.ledger, world.kafka, world.pipeline)

    assert "Nothing was planned" in str(planning.value)
    assert not planning.value.retryable
    assert (world.heads(), world.visible()) == (heads, rows)
    with world.ledger.transaction() as tx:
        assert tx.epochs.unfinished("orders") is None


def test_a_new_leader_with_the_whole_log_is_no_loss(world: World) -> None:
    """Not even after two restarts of the broker."""
    world.kafka.change_leader("orders", 0)
    world.kafka.change_leader("orders", 0)
    world.kafka.produce("orders", 0, 3)

    assert [str(one) for one in world.plan("r2").ranges] == ["orders-0[10, 13)"]


def test_a_loss_in_a_topic_that_is_no_longer_declared_stops_nothing(world: World) -> None:
    world.kafka.produce("returns", 0, 4)
    world.pipeline = world.pipeline.model_copy(
        update={"source": world.pipeline.source.model_copy(update={"topics": ("returns",)})}
    )
    del world.kafka.views["orders", 0], world.kafka.views["orders", 1]

    assert [str(one) for one in world.plan("r2").ranges] == ["returns-0[0, 4)"]


def test_a_topic_that_was_never_read_and_is_not_there_is_a_mistake_and_no_loss(world: World) -> None:
    world.pipeline = world.pipeline.model_copy(
        update={"source": world.pipeline.source.model_copy(update={"topics": ("orders", "orderz")})}
    )

    with pytest.raises(SourceError, match="Kafka has no topic orderz") as caught:
        world.plan("r2")
    assert not isinstance(caught.value, DataLossError)


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("transactions", "said"),
    [
        (
            [
                OpenTransaction(
                    start_offset=10,
                    producer_id=4001,
                    transactional_id="payments",
                    begun_at=NOON,
                    timeout=timedelta(seconds=60),
                )
            ],
            "it began at offset 10, by producer 4001 of transactional id 'payments', at 2026-03-01T12:00:00+00:00, with a"
            " time-out of 60 s",
        ),
        (
            [OpenTransaction(start_offset=10, producer_id=4001, last_write_at=NOON)],
            "it began at offset 10, by producer 4001, which wrote last at 2026-03-01T12:00:00+00:00 and is known to"
            " no coordinator: it will not end by itself",
        ),
        (
            [OpenTransaction(start_offset=10, producer_id=1), OpenTransaction(start_offset=11, producer_id=2)],
            "it began at offset 10, by producer 1, which is known to no coordinator: it will not end by itself;"
            " later ones are open: 1",
        ),
        ([], "the broker does not say whose it is"),
    ],
    ids=["known", "forgotten", "two", "not told"],
)
def test_a_hanging_transaction_is_no_loss_and_its_producer_is_named(
    world: World, transactions: list[OpenTransaction], said: str
) -> None:
    """The plan is skipped with the reason, never with "no data"."""
    world.kafka.produce("orders", 0, 4)
    world.kafka.change("orders", 0, last_stable=10, open_transactions=tuple(transactions))

    planned = world.plan("r2")

    assert planned.outcome is PlanOutcome.NOTHING_TO_READ
    assert planned.notes == (f"orders-0: an open transaction holds back offsets [10, 14); {said}",)


def _grown_and_planned(world: World) -> tuple[Plan, StagingTicket]:
    world.kafka.produce("orders", 0, 4)
    planned = world.plan("r2")
    assert planned.epoch is not None
    ticket = world.begin(planned.epoch.epoch_id, "r2")
    assert ticket is not None
    return planned, ticket


@pytest.mark.parametrize("resumed", [False, True], ids=["read at once", "resumed by a retry"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_made_again, "topic orders was deleted and made again (its id was id-of-orders, is now another)"),
        (_gone, "orders-0 is gone"),
        (
            lambda world: world.kafka.change_leader("orders", 0, truncate_to=12),
            "what leader epoch 0 wrote ends at offset 12",
        ),
        (_truncated_and_grown, "what leader epoch 0 wrote ends at offset 8"),
    ],
    ids=["made again", "gone", "truncated", "truncated and grown"],
)
def test_an_epoch_whose_log_changed_after_its_plan_is_not_sealed(
    world: World, change: Callable[[World], None], said: str, resumed: bool
) -> None:
    """INV-3, INV-9: records are read by the topic's name, so staged rows may come from another log."""
    planned, ticket = _grown_and_planned(world)
    change(world)
    if resumed:
        resumed_as = world.plan("r2")
        assert resumed_as.outcome is PlanOutcome.RESUMED
        again = world.begin(ticket.epoch_id, "r2")
        assert again is not None
        ticket = again
    world.stage(planned, ticket)

    with pytest.raises(DataLossError, match=re.escape(said)) as raised:
        world.seal(ticket, "r2")

    assert "nothing was sealed and no offset moves" in str(raised.value)
    assert not raised.value.retryable
    assert world.epoch(ticket.epoch_id).state is EpochState.PLANNED
    assert abort(world.ledger, "orders", ticket.epoch_id, run("r2"), reason="teardown") is AbortOutcome.ABORTED
    assert world.heads() == {0: 10, 1: 5}


def test_a_new_leader_between_plan_and_seal_is_no_change_of_the_log(world: World) -> None:
    planned, ticket = _grown_and_planned(world)
    world.kafka.change_leader("orders", 0)
    world.kafka.produce("orders", 0, 1)
    world.stage(planned, ticket)

    world.seal(ticket, "r2")

    assert world.epoch(ticket.epoch_id).state is EpochState.PRE_COMMITTED


def test_a_seal_that_is_asked_again_needs_no_kafka(world: World) -> None:
    """INV-5: what is sealed stays sealed, whatever becomes of the topic."""
    planned, ticket = _grown_and_planned(world)
    world.stage(planned, ticket)
    counts = world.seal(ticket, "r2")
    _gone(world)

    assert world.seal(ticket, "r2") == counts
