"""Offsets that gave no record: what the log's batches explain, and what an operator declares lost (INV-9)."""

import pytest

from epochline.coordinator import Plan
from epochline.errors import DataLossError, SealRefusedError
from tests.contract.operators import act, heads, refusal_of
from tests.contract.worlds import World, ranges


def staged(world: World, planned: Plan, who: str, without: int) -> None:
    """Stage an epoch whose reader got no record at so many offsets of the first partition, and seal it."""
    ticket = world.attempt(planned, who)
    for number, one in enumerate(planned.ranges):
        received = len(one.range) - (without if one.tp.partition == 0 else 0)
        assert world.write(ticket, one, number, {"orders": []}, received=received, passed=received)
    assert world.writer.end(ticket)
    world.seal(ticket, who)
    world.commit(ticket.epoch_id)


def test_markers_and_aborted_records_of_forgotten_producers_are_counted(world: World) -> None:
    world.kafka.leave_out("orders", 0, markers=[2, 3])

    staged(world, world.plan("r1"), "r1", without=2)

    assert heads(world)["orders-0"] == 10


@pytest.mark.parametrize("without", [1, 3], ids=["a record too many", "a record lost"])
def test_no_other_number_of_records_passes_for_what_the_log_explains(world: World, without: int) -> None:
    """A record that the reader lost is not hidden behind a marker."""
    world.kafka.leave_out("orders", 0, markers=[2, 3])

    with pytest.raises(SealRefusedError, match="its log explains 2 of them"):
        staged(world, world.plan("r1"), "r1", without=without)


def test_a_hole_is_named_and_read_past_once_an_operator_declares_it(world: World) -> None:
    """Nothing explains it, so Kafka may have lost records; nobody edits data to go on."""
    world.kafka.leave_out("orders", 0, markers=[2], holes=[5, 6])
    planned = world.plan("r1")
    with pytest.raises(DataLossError, match=r"holds nothing at 2 of its offsets: orders-0\[5, 7\).*declare-loss"):
        staged(world, planned, "r1", without=3)
    world.abort(1, "r1")

    done = act(world, "declare-loss", holes=True)

    assert done.row.after == {"holes": [["orders-0", 5, 7]]}
    again = world.plan("r2")
    assert ranges(again) == ranges(planned)
    staged(world, again, "r2", without=3)
    assert heads(world)["orders-0"] == 10
    assert "no hole that is not declared lost" in refusal_of(world, "declare-loss", holes=True)


def test_a_declared_hole_excuses_no_lost_record(world: World) -> None:
    world.kafka.leave_out("orders", 0, holes=[5])
    world.plan("r1")
    world.abort(1, "r1")
    act(world, "declare-loss", holes=True)

    with pytest.raises(SealRefusedError, match="its log explains 1 of them"):
        staged(world, world.plan("r2"), "r2", without=2)


def test_a_log_without_gaps_is_not_read_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.kafka, "gaps", lambda _ranges: 1 / 0)

    world.to_committed("r1")

    assert heads(world)["orders-0"] == 10
