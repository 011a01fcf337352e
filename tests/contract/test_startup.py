"""Startup modes over both ledgers: resolved once, kept as the origin, beaten by the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from epochline import FromGroup, FromOffsets, FromTimestamp, KafkaSource
from epochline.coordinator import PlanOutcome, preview
from epochline.declare.startup import Startup
from epochline.errors import SourceError
from epochline.protocol.mirror import MirroredOffset
from tests.contract.worlds import World, fake_world, orders, postgres_world

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
EXPIRED = timedelta(seconds=-1)

MODES: dict[str, tuple[Callable[[], Startup], int]] = {
    "earliest": (lambda: "earliest", 0),
    "latest": (lambda: "latest", 10),
    "group": (lambda: FromGroup(group="flink"), 6),
    "timestamp": (lambda: FromTimestamp(timestamp=FIRST + timedelta(minutes=8)), 8),
    "offsets": (lambda: FromOffsets(offsets={"rows": {0: 3}}), 3),
}
"""S9's check: 10 old rows, the group's offset at 6, the timestamp of row 8, offset 3."""


@pytest.fixture(params=["fake", pytest.param("postgres", marks=pytest.mark.server)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    one = fake_world() if request.param == "fake" else postgres_world(request.getfixturevalue("postgres_dsn"))
    for number in range(10):
        one.kafka.produce("rows", 0, 1, at=FIRST + timedelta(minutes=number))
    one.kafka.groups["flink"] = {("rows", 0): MirroredOffset(offset=6)}
    return one


def declare(world: World, startup: Startup) -> None:
    world.pipeline = orders(source=KafkaSource(topics="rows", startup=startup))


@pytest.mark.parametrize(("mode", "start"), MODES.values(), ids=MODES.keys())
def test_a_mode_decides_where_a_fresh_start_begins(world: World, mode: Callable[[], Startup], start: int) -> None:
    """S9."""
    declare(world, mode())

    shown = preview(world.ledger, world.kafka, world.pipeline)
    world.plan()

    assert [origin.offset for origin in shown.origins] == [start]
    assert world.heads() == {0: start}


@pytest.mark.parametrize(("mode", "start"), MODES.values(), ids=MODES.keys())
def test_the_ledger_beats_every_mode(world: World, mode: Callable[[], Startup], start: int) -> None:
    """S9, X32: with a ledger row at 4 every mode gives 4; five more are produced, and none is skipped."""
    declare(world, "earliest")
    world.to_committed("r1", record_limit=4)
    declare(world, mode())
    world.kafka.produce("rows", 0, 5)

    assert [str(one) for one in world.plan("r2").ranges] == ["rows-0[4, 15)"]


@pytest.mark.parametrize(("mode", "start"), MODES.values(), ids=MODES.keys())
def test_a_mode_is_resolved_once(world: World, mode: Callable[[], Startup], start: int) -> None:
    """S9: what the group, or the log, says later changes nothing."""
    declare(world, mode())
    world.plan("r1", lease=EXPIRED)
    world.kafka.groups["flink"] = {("rows", 0): MirroredOffset(offset=9)}
    world.kafka.produce("rows", 0, 5)

    world.plan("r2")

    assert world.heads() == {0: start}


@pytest.mark.parametrize(("reset", "start"), [("earliest", 0), ("latest", 10)])
def test_a_group_that_knows_nothing_falls_back_to_its_reset(world: World, reset: str, start: int) -> None:
    """S10: latest gives no row."""
    declare(world, FromGroup(group="unknown", reset=reset))

    planned = world.plan()

    assert world.heads() == {0: start}
    assert (planned.outcome is PlanOutcome.NOTHING_TO_READ) == (reset == "latest")


def test_a_group_that_knows_nothing_stops_the_plan_where_no_reset_is_declared(world: World) -> None:
    """S10: and no origin is written."""
    declare(world, FromGroup(group="unknown"))

    with pytest.raises(SourceError, match=r"group unknown holds no offset, for rows-0, whose log is \[0, 10\]"):
        world.plan()
    assert world.heads() == {}


def test_a_given_offset_outside_the_log_stops_the_plan(world: World) -> None:
    declare(world, FromOffsets(offsets={"rows": {0: 11}}))

    with pytest.raises(SourceError, match=r"offset 11 for rows-0, whose log is \[0, 10\]"):
        world.plan()
    assert world.heads() == {}


def test_a_topic_added_later_begins_by_the_mode_and_its_later_partitions_at_0(world: World) -> None:
    """S2, S9."""
    world.pipeline = orders(source=KafkaSource(topics=("orders",)))
    world.plan("r1", lease=EXPIRED)
    world.pipeline = orders(source=KafkaSource(topics=("orders", "rows"), startup=FromGroup(group="flink")))

    planned = world.plan("r2", lease=EXPIRED)
    assert "rows-0[6, 10)" in [str(one) for one in planned.ranges]

    world.kafka.produce("rows", 1, 3)
    assert "rows-1[0, 3)" in [str(one) for one in world.plan("r3").ranges]


def test_a_preview_says_how_an_origin_would_be_chosen(world: World) -> None:
    declare(world, FromGroup(group="flink"))
    shown = preview(world.ledger, world.kafka, world.pipeline)

    assert [one.chosen_by for one in shown.origins] == ["startup group flink offset 6"]
