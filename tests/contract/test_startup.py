"""Startup modes over both ledgers: resolved once, kept as the origin, beaten by the ledger."""

from datetime import UTC, datetime, timedelta

import pytest

from epochline import FromGroup, FromOffsets, FromTimestamp, KafkaSource
from epochline.coordinator import PlanOutcome, preview
from epochline.declare.source import Startup
from epochline.errors import SourceError
from epochline.protocol.mirror import MirroredOffset
from tests.contract.worlds import World, orders, ranges

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
ROW_8 = FIRST + timedelta(minutes=8)
EXPIRED = timedelta(seconds=-1)

MODES: dict[str, tuple[Startup, int, str]] = {
    "earliest": ("earliest", 0, "startup earliest"),
    "latest": ("latest", 10, "startup latest"),
    "group": (FromGroup(group="flink"), 6, "startup group flink offset 6"),
    "timestamp": (FromTimestamp(timestamp=ROW_8), 8, f"startup timestamp {ROW_8.isoformat()}"),
    "offsets": (FromOffsets(offsets={"rows": {0: 3}}), 3, "startup offset"),
}
"""S9's check: 10 old rows, the group's offset at 6, the timestamp of row 8, offset 3."""


@pytest.fixture
def world(world: World) -> World:
    for number in range(10):
        world.kafka.produce("rows", 0, 1, at=FIRST + timedelta(minutes=number))
    world.kafka.groups["flink"] = {("rows", 0): MirroredOffset(offset=6)}
    return world


def declare(world: World, startup: Startup) -> None:
    world.pipeline = orders(source=KafkaSource(topics="rows", startup=startup))


@pytest.mark.parametrize(("mode", "start", "chosen_by"), MODES.values(), ids=MODES.keys())
def test_a_mode_decides_once_where_a_fresh_start_begins(
    world: World, mode: Startup, start: int, chosen_by: str
) -> None:
    """S9: a preview shows it before; what the group, or the log, says later changes nothing."""
    declare(world, mode)

    shown = preview(world.ledger, world.kafka, world.pipeline)
    world.plan("r1", lease=EXPIRED)

    assert [(origin.offset, origin.chosen_by) for origin in shown.origins] == [(start, chosen_by)]
    assert world.heads() == {0: start}
    world.kafka.groups["flink"] = {("rows", 0): MirroredOffset(offset=9)}
    world.kafka.produce("rows", 0, 5)
    world.plan("r2")
    assert world.heads() == {0: start}


@pytest.mark.parametrize("mode", [mode for mode, *_ in MODES.values()], ids=MODES.keys())
def test_the_ledger_beats_every_mode(world: World, mode: Startup) -> None:
    """S9, X32: with a ledger row at 4 every mode gives 4; five more are produced, and none is skipped."""
    declare(world, "earliest")
    world.to_committed("r1", record_limit=4)
    declare(world, mode)
    world.kafka.produce("rows", 0, 5)

    assert ranges(world.plan("r2")) == ["rows-0[4, 15)"]


@pytest.mark.parametrize(("reset", "start"), [("earliest", 0), ("latest", 10)])
def test_a_group_that_knows_nothing_falls_back_to_its_reset(world: World, reset: str, start: int) -> None:
    """S10: latest gives no row."""
    declare(world, FromGroup(group="unknown", reset=reset))

    planned = world.plan()

    assert world.heads() == {0: start}
    assert (planned.outcome is PlanOutcome.NOTHING_TO_READ) == (reset == "latest")


@pytest.mark.parametrize(
    ("startup", "said"),
    [
        (FromGroup(group="unknown"), r"group unknown holds no offset, for rows-0, whose log is \[0, 10\]"),
        (FromOffsets(offsets={"rows": {0: 11}}), r"offset 11 for rows-0, whose log is \[0, 10\]"),
    ],
    ids=["a group without a reset", "an offset outside the log"],
)
def test_a_mode_that_gives_no_offset_stops_the_plan(world: World, startup: Startup, said: str) -> None:
    """S10: and no origin is written."""
    declare(world, startup)

    with pytest.raises(SourceError, match=said):
        world.plan()
    assert world.heads() == {}


def test_a_topic_added_later_begins_by_the_mode_and_its_later_partitions_at_0(world: World) -> None:
    """S2, S9."""
    world.plan("r1", lease=EXPIRED)
    world.pipeline = orders(source=KafkaSource(topics=("orders", "rows"), startup=FromGroup(group="flink")))

    planned = world.plan("r2", lease=EXPIRED)
    assert "rows-0[6, 10)" in ranges(planned)

    world.kafka.produce("rows", 1, 3)
    assert "rows-1[0, 3)" in ranges(world.plan("r3"))
