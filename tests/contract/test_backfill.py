"""Backfill runs over both ledgers: any order of intervals, run any number of times, gives the same target."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from epochline import KafkaSource
from epochline.coordinator import PlanOutcome
from epochline.errors import BeforeOriginError
from epochline.protocol.epoch import EpochKind, Interval
from tests.contract.worlds import World, orders, ranges
from tests.driver import epoch_of

FIRST = datetime(2026, 3, 1, tzinfo=UTC)


def day(number: int, days: int = 1) -> Interval:
    start = FIRST + timedelta(days=number - 1)
    return Interval(start=start, until=start + timedelta(days=days))


@pytest.fixture
def world(world: World) -> World:
    """Ten and five records of long ago; then three and two on each of three days."""
    for number in (1, 2, 3):
        world.kafka.produce("orders", 0, 3, at=day(number).start)
        world.kafka.produce("orders", 1, 2, at=day(number).start + timedelta(hours=23))
    return world


def test_a_backfill_reads_from_the_head_to_the_end_of_its_interval(world: World) -> None:
    """Triggers: it says that it had to begin before the interval."""
    planned = world.plan(interval=day(2))

    assert ranges(planned) == ["orders-0[0, 16)", "orders-1[0, 9)"]
    assert (epoch_of(planned).kind, epoch_of(planned).interval) == (EpochKind.BACKFILL, day(2))
    assert "because a chain has no gap: orders-0[0, 13), orders-1[0, 7) were not committed yet" in planned.notes[0]


def test_the_records_limit_of_the_declaration_does_not_cut_a_backfill_but_that_of_its_conf_does(world: World) -> None:
    world.pipeline = orders(source=KafkaSource(topics="orders", records_per_epoch=2))

    assert ranges(world.plan("r1", interval=day(1))) == ["orders-0[0, 13)", "orders-1[0, 7)"]
    world.abort(1, "r1")

    assert ranges(world.plan("r2", interval=day(1), record_limit=2)) == ["orders-0[0, 1)", "orders-1[0, 1)"]


def test_an_interval_that_is_committed_shows_its_epochs_and_writes_none(world: World) -> None:
    """U3: also when only some of its offsets were committed by each of them."""
    world.to_committed("r1", record_limit=18)
    world.to_committed("r2", interval=day(3))

    planned = world.plan("r3", interval=day(1))

    assert planned.outcome is PlanOutcome.COVERED
    assert planned.epoch is None
    assert planned.covered_by == (1, 2)
    assert "orders-1[5, 7) is committed already, by epoch 1" in planned.notes
    assert "orders-0[10, 13) is committed already, by epochs 1, 2" in planned.notes
    with world.ledger.transaction() as tx:
        assert tx.epochs.unfinished("orders") is None


def test_an_interval_without_a_record_reads_nothing_and_says_so(world: World) -> None:
    world.to_committed("r1", interval=day(3))

    planned = world.plan("r2", interval=day(-5))

    assert planned.outcome is PlanOutcome.NOTHING_TO_READ
    assert "holds no record that Kafka still has" in planned.notes[0]


def test_an_interval_that_is_not_over_ends_at_the_last_stable_offset(world: World) -> None:
    """S13: no record is at or after its end, so o(t1) is the last stable offset."""
    world.kafka.change("orders", 0, last_stable=17)

    assert ranges(world.plan(interval=day(2, days=30))) == ["orders-0[0, 17)", "orders-1[0, 11)"]


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))), ids=str)
def test_any_order_of_intervals_run_twice_gives_the_same_target(world: World, order: tuple[int, ...]) -> None:
    """U2, INV-1: run backwards, the first does all the work."""
    for number, one in enumerate([*order, *order]):
        planned = world.plan(f"r{number}", interval=day(one))
        if planned.epoch is not None:
            world.finish(planned, f"r{number}")

    assert [row[:3] for row in world.visible()] == [
        *(("orders", 0, offset) for offset in range(19)),
        *(("orders", 1, offset) for offset in range(11)),
    ]


def test_an_interval_before_the_origin_fails_for_good_and_one_across_it_commits_its_part(world: World) -> None:
    """The failure names the way, the part names the rest."""
    world.pipeline = orders(source=KafkaSource(topics="orders", startup="latest"))

    wholly_before = r"orders-0\[10, 13\), orders-1\[5, 7\).*`epochline extend-back orders 2026-"
    with pytest.raises(BeforeOriginError, match=wholly_before):
        world.plan("r1", interval=day(1))
    assert not BeforeOriginError.retryable
    assert world.heads() == {0: 19, 1: 11}

    world.kafka.produce("orders", 0, 4, at=day(3).start + timedelta(hours=23))
    planned = world.plan("r2", interval=day(3))
    assert ranges(planned) == ["orders-0[19, 23)"]
    assert "not covered, because before the origin: orders-0[16, 19), orders-1[9, 11)" in planned.notes[0]


def test_an_aborted_backfill_epoch_is_tried_again_with_its_own_range(world: World) -> None:
    """INV-3: also when records of the interval came late, or the run is asked with another interval."""
    first = world.plan(interval=day(2))
    world.abort()

    again = world.plan(interval=day(3))

    assert again.outcome is PlanOutcome.REOPENED
    assert again.ranges == first.ranges
    assert epoch_of(again).interval == day(2)


def test_a_backfill_next_to_the_schedule_leaves_the_rest_to_it(world: World) -> None:
    """INV-1: each takes what comes next in the one chain; one that begins at its head has nothing to note."""
    world.to_committed("r1", interval=day(1))

    planned = world.to_committed("r2", interval=day(2))
    assert (ranges(planned), planned.notes) == (["orders-0[13, 16)", "orders-1[7, 9)"], ())
    assert ranges(world.plan("r3")) == ["orders-0[16, 19)", "orders-1[9, 11)"]
