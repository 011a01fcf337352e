"""Requeue and extend-back over both ledgers: epochs that an operator asks for, by the same states as any other."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epochline import KafkaSource, PostgresTable
from epochline.coordinator import Plan, PlanOutcome
from epochline.declare.names import QUARANTINE
from epochline.errors import ActionRefusedError, HeadMovedError, PipelinePausedError, SealRefusedError
from epochline.operations import ACTIONS
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.epoch import EpochKind, EpochState
from epochline.protocol.staging import StagingTicket
from tests.chains import chain_breaks
from tests.contract.operators import ORDER, act, heads, make_again, ordered, origins, preview_of, refusal_of, written
from tests.contract.worlds import World, bad_record, orders, quarantined, ranges
from tests.driver import epoch_of
from tests.in_memory.kafka import FakeKafka


def stage(world: World, planned: Plan, who: str, good: list[int], bad: list[int]) -> StagingTicket:
    """Stage a requeue epoch as Spark would: the claimed records, under their own positions."""
    ticket = world.attempt(planned, who)
    offsets = sorted(good + bad)
    rows = {
        "orders": [
            {"value": f"again {at}", "_topic": "orders", "_partition": 0, "_offset": at, "_row": 0} for at in good
        ],
        QUARANTINE: [bad_record(at, f"still bad at {at}") for at in bad],
    }
    seen = PartitionCounts(
        received=len(offsets), passed=len(good), skipped=0, quarantined=len(bad),
        first_offset=offsets[0], last_offset=offsets[-1], digest=1,
    )  # fmt: skip
    assert world.writer.part(ticket, 0, rows, {("orders", 0): seen})
    assert world.writer.end(ticket)
    return ticket


def requeued(world: World, who: str, good: list[int], bad: list[int], **parameters: Any) -> int:
    ticket = stage(world, ordered(world, "requeue", who, **parameters), who, good, bad)
    world.seal(ticket, who)
    world.commit(ticket.epoch_id)
    return ticket.epoch_id


def at(world: World, offset: int) -> list[int]:
    """Epochs whose rows of this offset of partition 0 are in the target."""
    return [epoch for _, partition, where, epoch in world.visible() if (partition, where) == (0, offset)]


def test_a_requeued_record_is_written_once_with_its_own_position_and_moves_no_head(world: World) -> None:
    """INV-2, INV-9."""
    quarantined(world)

    epoch_id = requeued(world, "run-2", [2, 3], [], everything=True)

    assert (at(world, 2), at(world, 3), len(world.visible())) == ([epoch_id], [epoch_id], 15)
    assert heads(world) == {"orders-0": 10, "orders-1": 5}
    assert world.epoch(epoch_id).kind is EpochKind.REQUEUE
    assert written(world) == [("requeue", ORDER.actor, ORDER.reason, epoch_id)]
    with pytest.raises(ActionRefusedError, match="no record in the quarantine fits, or each was requeued or erased"):
        ordered(world, "requeue", "run-3", everything=True)


def test_a_record_that_fails_again_stays_with_the_new_reason_and_may_be_requeued_once_more(world: World) -> None:
    quarantined(world)

    requeued(world, "run-2", [2], [3], everything=True)

    assert (at(world, 2), at(world, 3)) == ([2], [])
    assert preview_of(world, "requeue", like="still bad%").before == {"quarantined": {"orders-0": 1}}
    requeued(world, "run-3", [3], [], offset=3)
    assert (at(world, 2), at(world, 3), world.quarantined()) == ([2], [3], 2)


@pytest.mark.parametrize(
    ("parameters", "records"),
    [
        ({"everything": True}, 2),
        ({"epoch": 1}, 2),
        ({"epoch": 2}, 0),
        ({"topic": "orders", "partition": 0, "offset": 3}, 1),
        ({"partition": 1}, 0),
        ({"like": "%at 2"}, 1),
        ({"like": "not JSON%"}, 2),
        ({"topic": "refunds"}, 0),
    ],
)
def test_records_are_chosen_by_what_is_given(world: World, parameters: dict[str, Any], records: int) -> None:
    quarantined(world)

    foreseen = preview_of(world, "requeue", **parameters)

    if records:
        assert foreseen.before == {"quarantined": {"orders-0": records}}
    else:
        assert "no record in the quarantine fits" in (foreseen.refusal or "")


def test_a_requeue_that_lost_a_record_is_not_sealed(world: World) -> None:
    """INV-9: every claimed record is read."""
    quarantined(world)
    ticket = stage(world, ordered(world, "requeue", "run-2", everything=True), "run-2", [2], [])

    with pytest.raises(SealRefusedError, match="orders-0: 2 quarantined records were claimed and 1 read"):
        world.seal(ticket, "run-2")


def test_an_aborted_requeue_gives_its_records_back_and_its_own_run_tries_it_again(world: World) -> None:
    quarantined(world)
    ordered(world, "requeue", "run-2", offset=2)
    world.abort(2, "run-2")

    again = ordered(world, "requeue", "run-2", offset=2)

    assert again.outcome is PlanOutcome.REOPENED
    ticket = stage(world, again, "run-2", [2], [])
    assert ticket.epoch_id == 2
    world.seal(ticket, "run-2")
    world.commit(2)
    assert at(world, 2) == [2]
    assert ordered(world, "requeue", "run-2", offset=2).outcome is PlanOutcome.ALREADY_COMMITTED


def test_an_aborted_requeue_whose_record_another_run_requeued_is_not_tried_again(world: World) -> None:
    quarantined(world)
    ordered(world, "requeue", "run-2", offset=2)
    world.abort(2, "run-2")
    requeued(world, "run-3", [2], [], offset=2)

    with pytest.raises(ActionRefusedError, match="each was requeued or erased"):
        ordered(world, "requeue", "run-2", offset=2)
    assert at(world, 2) == [3]


def test_a_sealed_requeue_of_a_dead_run_is_committed_by_the_next_run(world: World) -> None:
    """INV-6."""
    quarantined(world)
    planned = ordered(world, "requeue", "run-2", everything=True)
    world.seal(stage(world, planned, "run-2", [2, 3], []), "run-2")

    world.plan("run-3")

    assert (at(world, 2), at(world, 3)) == ([2], [2])
    assert world.epoch(2).state is EpochState.COMMITTED


def test_a_record_that_is_no_longer_there_to_be_requeued_stops_the_commit(world: World) -> None:
    """The compare-and-swap of a requeue: nothing is written twice."""
    quarantined(world)
    ticket = stage(world, ordered(world, "requeue", "run-2", everything=True), "run-2", [2, 3], [])
    world.seal(ticket, "run-2")
    with world.ledger.transaction() as tx:
        assert tx.quarantine.requeue(ticket.table(QUARANTINE), tx.epochs.lock("orders", 2)) == (2, 0)

    with pytest.raises(HeadMovedError, match="claimed 2 quarantined records, but only 0 are still there"):
        world.commit(2)
    assert len(world.visible()) == 13


def test_nothing_is_requeued_without_a_choice_or_while_the_pipeline_is_paused(world: World) -> None:
    quarantined(world)

    with pytest.raises(ActionRefusedError, match="say which records"):
        ordered(world, "requeue", "run-2")
    act(world, "pause")
    with pytest.raises(PipelinePausedError):
        ordered(world, "requeue", "run-2", everything=True)


def test_records_of_an_earlier_generation_are_requeued_when_it_is_named(world: World) -> None:
    quarantined(world)
    make_again(world)
    act(world, "adopt-topic", topic="orders", at="latest")

    assert "no record in the quarantine fits" in refusal_of(world, "requeue", everything=True)
    requeued(world, "run-2", [2, 3], [], everything=True, generation=1)

    assert (at(world, 2), at(world, 3)) == ([2], [2])


def test_a_replaced_table_takes_no_requeued_records(world: World) -> None:
    quarantined(world)
    world.pipeline = orders(sinks=[PostgresTable(table="orders", columns={"value": "text"}, mode="replace")])

    assert "the requeued records would take the place of all" in refusal_of(world, "requeue", everything=True)


def late(world: World) -> None:
    """A pipeline that began at the end: origins 10 and 5, then three records more, committed."""
    world.pipeline = orders(source=KafkaSource(topics="orders", startup="latest"))
    world.plan()
    world.kafka.produce("orders", 0, 3)
    world.to_committed("run-2")
    assert heads(world) == {"orders-0": 13, "orders-1": 5}


def extended(world: World, who: str, **parameters: Any) -> list[str]:
    return ranges(world.finish(ordered(world, "extend-back", who, **parameters), who))


def test_what_lies_before_the_origin_is_committed_in_steps_and_the_head_stays(world: World) -> None:
    """S9, INV-1."""
    late(world)

    first = extended(world, "run-3", to="earliest", step=6)
    second = extended(world, "run-4", to="earliest", step=9)

    assert first == ["orders-0[6, 10)", "orders-1[3, 5)"]
    assert second == ["orders-0[0, 6)", "orders-1[0, 3)"]
    assert origins(world) == {"orders-0": 0, "orders-1": 0}
    assert heads(world) == {"orders-0": 13, "orders-1": 5}
    assert len(world.visible()) == 18
    assert len({row[:3] for row in world.visible()}) == 18
    for partition, origin in enumerate(origins(world).values()):
        links = [(offset, offset + 1) for _, of, offset, _ in world.visible() if of == partition]
        assert chain_breaks([(None, origin), *links]) == []
    with pytest.raises(ActionRefusedError, match="they are back there"):
        ordered(world, "extend-back", "run-5", to="earliest")
    assert [one[0] for one in written(world)] == ["extend-back", "extend-back"]
    world.kafka.produce("orders", 0, 2)
    assert ranges(world.to_committed("run-6")) == ["orders-0[13, 15)"]


def test_a_pipeline_is_extended_back_to_an_offset_and_no_further(world: World) -> None:
    late(world)

    assert extended(world, "run-3", to="7") == ["orders-0[7, 10)"]
    assert origins(world) == {"orders-0": 7, "orders-1": 5}


def test_a_pipeline_is_extended_back_to_a_time(world: World) -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    world.source = FakeKafka()
    for at in (moment - timedelta(days=1), moment):
        world.kafka.produce("orders", 0, 4, at=at)
    world.kafka.produce("orders", 1, 5, at=moment - timedelta(days=1))
    world.pipeline = orders(source=KafkaSource(topics="orders", startup="latest"))
    world.plan()
    assert origins(world) == {"orders-0": 8, "orders-1": 5}

    assert extended(world, "run-3", to="2026-03-01T00:00:00") == ["orders-0[4, 8)"]
    assert origins(world) == {"orders-0": 4, "orders-1": 5}


def test_an_offset_that_kafka_no_longer_holds_is_refused_and_earliest_is_what_it_holds(world: World) -> None:
    late(world)
    world.kafka.change("orders", 0, log_start=8)

    with pytest.raises(ActionRefusedError, match="the source no longer holds offset 2: orders-0 begins at 8"):
        ordered(world, "extend-back", "run-3", to="2")
    assert extended(world, "run-3", to="earliest") == ["orders-0[8, 10)", "orders-1[0, 5)"]


def test_two_epochs_cannot_both_end_at_the_origin(world: World) -> None:
    """INV-1: the compare-and-swap of an extend-back epoch."""
    late(world)
    planned = ordered(world, "extend-back", "run-3", to="7")
    world.pre_commit(planned, "run-3")
    with world.ledger.transaction() as tx:
        assert tx.chain.extend_back(epoch_of(planned), planned.ranges[0])

    with pytest.raises(HeadMovedError, match="does not end at the origin"):
        world.commit(epoch_of(planned).epoch_id)
    assert len(world.visible()) == 3


def test_an_aborted_step_back_is_tried_again_by_its_own_run(world: World) -> None:
    late(world)
    first = ordered(world, "extend-back", "run-3", to="7")
    world.abort(epoch_of(first).epoch_id, "run-3")

    again = ordered(world, "extend-back", "run-3", to="7")

    assert (again.outcome, again.ranges) == (PlanOutcome.REOPENED, first.ranges)


def test_what_was_committed_in_an_earlier_generation_is_not_committed_again(world: World) -> None:
    world.to_committed()
    world.kafka.produce("orders", 0, 2)
    world.kafka.change("orders", 1, last_stable=4, high_watermark=4)
    act(world, "adopt-topic", topic="orders", at="latest")

    foreseen = preview_of(world, "extend-back", to="earliest")

    assert foreseen.before == {"origins": {"orders-0": 12}}
    assert foreseen.after == {"origins": {"orders-0": 10}}


def test_a_target_that_depends_on_the_order_of_epochs_is_refused(world: World) -> None:
    late(world)
    world.pipeline = orders(sinks=[PostgresTable(table="orders", columns={"value": "text"}, mode="replace")])

    assert "only rows of mode append and add" in refusal_of(world, "extend-back", to="earliest")


@pytest.mark.parametrize("to", ["yesterday", "", "-3"])
def test_what_is_no_place_in_a_log_is_refused(to: str) -> None:
    with pytest.raises(ValueError, match="earliest, an offset or a time"):
        ACTIONS["extend-back"].parameters(to=to)
