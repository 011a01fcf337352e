"""Data-loss guards over both ledgers: each stops the pipeline, says what is gone, and moves no head."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from epochline import KafkaSource
from epochline.coordinator import Plan, PlanOutcome
from epochline.errors import DataLossError, SourceError
from epochline.protocol.epoch import AbortOutcome, EpochState
from epochline.protocol.planning import OpenTransaction
from epochline.protocol.staging import StagingTicket
from tests.contract.operators import make_again, refused_plan
from tests.contract.worlds import World, orders, ranges

Change = Callable[[World], object]


@pytest.fixture
def world(world: World) -> World:
    """Two partitions of which ten and five offsets are committed."""
    world.to_committed()
    return world


def _retention(world: World) -> None:
    world.kafka.produce("orders", 0, 5)
    world.kafka.change("orders", 0, log_start=12)


def _truncated_and_grown(world: World) -> None:
    world.kafka.change_leader("orders", 0, truncate_to=8)
    world.kafka.produce("orders", 0, 30)


def _older_log(world: World) -> None:
    world.kafka.change_leader("orders", 0)
    world.kafka.produce("orders", 0, 1)
    world.to_committed("r2")
    world.kafka.leader_epochs["orders", 0] = {0: 0}
    world.kafka.change("orders", 0, leader_epoch=0)


def _lost_unread(world: World) -> None:
    world.kafka.produce("orders", 0, 5)
    world.to_committed("r2", record_limit=3)
    world.kafka.change_leader("orders", 0, truncate_to=13)


def _moved(world: World) -> None:
    world.kafka.cluster_id = "another"


def _moved_without_the_topic(world: World) -> None:
    _moved(world)
    world.kafka.views.clear()


LOSSES: dict[str, tuple[Change, str]] = {
    "retention": (
        _retention,
        r"retention passed the head of orders-0: offsets \[10, 12\), 2 of them, are gone.*`epochline declare-loss orders --reason …`$",
    ),
    "truncated": (
        lambda world: world.kafka.change_leader("orders", 0, truncate_to=8),
        "its log ends at 8: 2 offsets that were read.*`epochline adopt-topic orders orders --reason …`$",
    ),
    "truncated under the same leader": (
        lambda world: world.kafka.change("orders", 0, high_watermark=7, last_stable=7),
        "its log ends at 7: 3 offsets that were read have been truncated",
    ),
    "truncated and grown": (
        _truncated_and_grown,
        "orders-0 is committed up to offset 10, but the records of leader epoch 0 now end at 8 .*: 2 offsets that were read"
        " have been truncated.*`epochline adopt-topic orders orders --reason …`$",
    ),
    "truncated behind the head": (
        _lost_unread,
        "orders-0 ended at 15 when epoch 2 was planned, and ends at 13 now.*`epochline adopt-topic orders orders --at trunc",
    ),
    "a log of older leaders": (
        _older_log,
        "its log no longer has leader epoch 1 or a later one: offsets that were read",
    ),
    "made again": (
        make_again,
        r"deleted and made again .its id was id-of-orders, is now another.*offset 10 of partition 0; offset 5 of partition 1"
        r" now means another record\. 15 offsets of the old topic were committed;.*The new topic holds 9 offsets in 2"
        r" partitions\..*`epochline adopt-topic orders orders --reason …`$",
    ),
    "fewer partitions": (
        lambda world: world.kafka.views.pop(("orders", 1)),
        r"orders-1, committed up to offset 5 \(5 offsets were committed\)\..*made again with fewer\. The new one holds 10"
        r" offsets in 1 partition\..*`epochline adopt-topic orders orders --reason …`$",
    ),
    "topic gone": (
        lambda world: world.kafka.views.clear(),
        r"no longer has the partition.*orders-0, committed up to offset 10; orders-1, committed up to offset 5 \(15 offsets"
        " were .*Remove the topic from the declaration",
    ),
    "another cluster": (_moved, "belong to Kafka cluster fake, .*`epochline adopt-topic orders --cluster --reason …`$"),
    "another cluster without the topic": (_moved_without_the_topic, "belong to Kafka cluster fake"),
}


@pytest.mark.parametrize(("lose", "said"), LOSSES.values(), ids=LOSSES.keys())
def test_a_loss_stops_the_plan_and_its_preview_and_changes_nothing(world: World, lose: Change, said: str) -> None:
    """I11: what happened, how many offsets, what the operator may do; a retry does not help."""
    lose(world)
    heads, rows = world.heads(), world.visible()

    refused = refused_plan(world, "r9", DataLossError, said)

    assert "Nothing was planned" in str(refused)
    assert not refused.retryable
    assert (world.heads(), world.visible()) == (heads, rows)
    with world.ledger.transaction() as tx:
        assert tx.epochs.unfinished("orders") is None


def test_a_loss_in_a_topic_that_is_no_longer_declared_stops_nothing(world: World) -> None:
    world.kafka.views.clear()
    world.kafka.produce("returns", 0, 4)
    world.pipeline = orders(source=KafkaSource(topics="returns"))

    assert ranges(world.plan("r2")) == ["returns-0[0, 4)"]


def test_a_topic_that_was_never_read_and_is_not_there_is_a_mistake_and_no_loss(world: World) -> None:
    world.pipeline = orders(source=KafkaSource(topics=("orders", "orderz")))

    with pytest.raises(SourceError, match="Kafka has no topic orderz") as caught:
        world.plan("r2")
    assert not isinstance(caught.value, DataLossError)


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OF_PAYMENTS = OpenTransaction(
    start_offset=10, producer_id=4001, transactional_id="payments", begun_at=NOON, timeout=timedelta(seconds=60)
)


@pytest.mark.parametrize(
    ("transactions", "said"),
    [
        (
            [OF_PAYMENTS],
            "it began at offset 10, by producer 4001 of transactional id 'payments', at 2026-03-01T12:00:00+00:00, with a"
            " time-out of 1 min",
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
    ids=["known", "forgotten", "two", "not named"],
)
def test_a_hanging_transaction_is_no_loss_and_its_producer_is_named(
    world: World, transactions: list[OpenTransaction], said: str
) -> None:
    """S13: a skip with the reason, never "no data"."""
    world.kafka.produce("orders", 0, 4)
    world.kafka.change("orders", 0, last_stable=10, open_transactions=tuple(transactions))

    planned = world.plan("r2")

    assert planned.outcome is PlanOutcome.NOTHING_TO_READ
    assert planned.notes == (f"orders-0: an open transaction holds back offsets [10, 14); {said}",)


def _grown_and_planned(world: World) -> tuple[Plan, StagingTicket]:
    world.kafka.produce("orders", 0, 4)
    return world.to_begun("r2")


@pytest.mark.parametrize("resumed", [False, True], ids=["read at once", "resumed by a retry"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (make_again, "topic orders was deleted and made again (its id was id-of-orders, is now another)"),
        (lambda world: world.kafka.views.clear(), "orders-0 is gone"),
        (
            lambda world: world.kafka.change_leader("orders", 0, truncate_to=12),
            "the records of leader epoch 0 end at offset 12",
        ),
        (_truncated_and_grown, "the records of leader epoch 0 end at offset 8"),
    ],
    ids=["made again", "gone", "truncated", "truncated and grown"],
)
def test_an_epoch_whose_log_changed_after_its_plan_is_not_sealed(
    world: World, change: Change, said: str, resumed: bool
) -> None:
    """INV-3, INV-9: records are read by the topic's name, so what was staged may be of another log."""
    planned, ticket = _grown_and_planned(world)
    change(world)
    if resumed:
        planned, ticket = world.to_begun("r2")
        assert planned.outcome is PlanOutcome.RESUMED
    world.stage(planned, ticket)

    with pytest.raises(DataLossError, match=re.escape(said)) as raised:
        world.seal(ticket, "r2")

    assert "nothing was sealed and no offset moves" in str(raised.value)
    assert not raised.value.retryable
    assert world.epoch(ticket.epoch_id).state is EpochState.PLANNED
    assert world.abort(ticket.epoch_id, "r2") is AbortOutcome.ABORTED
    assert world.heads() == {0: 10, 1: 5}


def test_a_new_leader_with_the_whole_log_is_no_loss(world: World) -> None:
    """I11: neither before the plan, also when the broker was only restarted, twice, nor before the seal."""
    world.kafka.change_leader("orders", 0)
    world.kafka.change_leader("orders", 0)
    planned, ticket = _grown_and_planned(world)
    assert ranges(planned) == ["orders-0[10, 14)"]
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
    world.kafka.views.clear()

    assert world.seal(ticket, "r2") == counts
