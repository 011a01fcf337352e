"""Data-loss guards over both ledgers: each stops the pipeline, says what is gone, and moves no head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from epochline.coordinator import PlanOutcome, preview
from epochline.errors import DataLossError, SourceError
from epochline.planning import OpenTransaction
from tests.contract.worlds import World, fake_world, postgres_world


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
    """Traps 9, 10, 11: what happened, how many offsets, what the operator may do; a retry does not help."""
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
    """Trap 11: also when the broker was only restarted, twice."""
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
    """Trap 13: a skip with the reason, never "no data"."""
    world.kafka.produce("orders", 0, 4)
    world.kafka.change("orders", 0, last_stable=10, open_transactions=tuple(transactions))

    planned = world.plan("r2")

    assert planned.outcome is PlanOutcome.NOTHING_TO_READ
    assert planned.notes == (f"orders-0: an open transaction holds back offsets [10, 14); {said}",)
