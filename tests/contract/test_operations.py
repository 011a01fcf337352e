"""What operators do, over both ledgers: each action shows what it will do, does that, and writes it down."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from epochline import KafkaSource
from epochline.coordinator import PlanOutcome, plan, preview
from epochline.errors import (
    ActionRefusedError,
    DataLossError,
    EpochNotFoundError,
    PipelineDroppedError,
    PipelinePausedError,
    SourceUnavailableError,
    TargetError,
)
from epochline.operations import Request
from epochline.protocol.epoch import EpochState
from tests.contract.operators import act, heads, make_again, origins, preview_of, refusal_of, written
from tests.contract.worlds import World, orders, ranges, run
from tests.driver import epoch_of


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_action_without_a_reason_is_refused(reason: str) -> None:
    with pytest.raises(ActionRefusedError, match="say why"):
        Request(actor="ada@here", reason=reason)


@pytest.mark.parametrize("action", ["pause", "drop", "declare-loss", "resume"])
def test_a_pipeline_that_the_ledger_does_not_know_is_named(world: World, action: str) -> None:
    for ask in (preview_of, act):
        with pytest.raises(EpochNotFoundError, match="knows no pipeline 'orders'"):
            ask(world, action)
    assert written(world) == []


@pytest.mark.parametrize(
    ("action", "parameters"),
    [("abort", {"epoch": 1}), ("pause", {}), ("drop", {}), ("declare-loss", {}), ("adopt-topic", {"topic": "orders"})],
)
def test_a_preview_changes_nothing_and_is_what_is_then_done_and_written(
    world: World, action: str, parameters: dict[str, Any]
) -> None:
    if action == "abort":
        world.plan()
    else:
        world.to_committed()
    if action == "declare-loss":
        world.kafka.change("orders", 0, log_start=12, last_stable=12, high_watermark=12)
    if action == "adopt-topic":
        make_again(world)
    before = heads(world)

    foreseen = preview_of(world, action, **parameters)

    assert foreseen.refusal is None
    assert foreseen.lines
    assert written(world) == []
    assert heads(world) == before
    done = act(world, action, **parameters)
    assert (done.row.before, done.row.after) == (foreseen.before, foreseen.after)
    assert done.row.acted_at is not None
    with world.ledger.transaction() as tx:
        assert tx.operators.actions("orders") == [done.row]


def test_an_operators_abort_ends_a_pre_committed_epoch_and_is_written_with_it(world: World) -> None:
    """INV-6, INV-7."""
    world.to_sealed()

    done = act(world, "abort", epoch=1)

    assert world.epoch(1).state is EpochState.ABORTED
    assert world.epoch(1).error == "ada@here: because a test says so"
    assert done.row.before["state"] == "PRE_COMMITTED"
    assert written(world) == [("abort", "ada@here", "because a test says so", 1)]
    assert world.left_over() == 0


def test_a_committed_epoch_is_not_aborted_and_nothing_is_written(world: World) -> None:
    world.to_committed()

    assert "cannot be aborted" in refusal_of(world, "abort", epoch=1)
    with pytest.raises(ActionRefusedError, match="with 15 rows; a committed epoch cannot be aborted"):
        act(world, "abort", epoch=1)
    assert written(world) == []


def test_a_paused_pipeline_plans_nothing_and_says_who_when_and_why(world: World) -> None:
    """An aborted epoch is not tried again either."""
    world.to_committed()
    world.kafka.produce("orders", 0, 3)
    world.plan("run-2")
    world.abort(2, "run-2")
    act(world, "pause")

    for who in ("run-2", "run-3"):
        with pytest.raises(PipelinePausedError, match=r"paused by ada@here at 2\d{3}-.* \(because a test says so\)"):
            world.plan(who)
    with pytest.raises(PipelinePausedError):
        preview(world.ledger, world.kafka, world.pipeline)
    with pytest.raises(ActionRefusedError, match="is paused already"):
        act(world, "pause")
    assert heads(world) == {"orders-0": 10, "orders-1": 5}
    assert world.epoch(2).state is EpochState.ABORTED

    act(world, "resume")
    assert ranges(world.plan("run-2")) == ["orders-0[10, 13)"]
    with pytest.raises(ActionRefusedError, match="is not paused"):
        act(world, "resume")
    assert [one[0] for one in written(world)] == ["pause", "resume"]


def test_what_was_pre_committed_before_the_pause_is_still_committed(world: World) -> None:
    """INV-6: by its own run, and by the recovery of another one."""
    world.to_sealed("run-1", record_limit=3)
    act(world, "pause")

    with pytest.raises(PipelinePausedError):
        world.plan("run-2")

    assert world.epoch(1).state is EpochState.COMMITTED
    assert len(world.visible()) == 3


def test_a_declared_loss_is_a_link_of_the_chain_and_the_pipeline_goes_on_behind_it(world: World) -> None:
    """INV-1, INV-9."""
    world.to_committed()
    world.kafka.produce("orders", 0, 20)
    world.kafka.change("orders", 0, log_start=25)
    with pytest.raises(DataLossError, match="retention passed the head"):
        world.plan("run-2")

    done = act(world, "declare-loss")

    assert done.row.after["lost"] == {"orders-0": [10, 25]}
    assert heads(world) == {"orders-0": 25, "orders-1": 5}
    assert world.kafka.mirrored("epochline.orders")["orders", 0].offset == 25
    assert ranges(world.to_committed("run-2")) == ["orders-0[25, 30)"]
    with pytest.raises(ActionRefusedError, match="nothing is lost"):
        act(world, "declare-loss")


@pytest.mark.parametrize(
    ("lose", "action", "parameters", "said"),
    [
        (
            lambda world: world.kafka.change("orders", 0, log_start=5),
            "declare-loss",
            {},
            "epoch 1 of orders is PRE_COMMITTED and may hold what looks lost",
        ),
        (make_again, "adopt-topic", {"topic": "orders"}, "its ranges are of the old log"),
    ],
    ids=["declare-loss", "adopt-topic"],
)
def test_a_lost_log_is_left_alone_while_an_epoch_is_unfinished(
    world: World, lose: Callable[[World], None], action: str, parameters: dict[str, Any], said: str
) -> None:
    world.to_sealed()
    lose(world)

    with pytest.raises(ActionRefusedError, match=said):
        act(world, action, **parameters)
    assert heads(world) == {"orders-0": 0, "orders-1": 0}


def test_an_aborted_epoch_over_a_lost_range_is_not_tried_again(world: World) -> None:
    world.plan()
    world.abort()
    world.kafka.change("orders", 0, log_start=4)
    act(world, "declare-loss")

    planned = world.plan()

    assert planned.outcome is PlanOutcome.PLANNED
    assert ranges(planned) == ["orders-0[4, 10)", "orders-1[0, 5)"]


def test_an_adopted_topic_is_read_from_its_log_start_in_a_new_generation(world: World) -> None:
    """I11: what was committed of the old topic stays, superseded."""
    world.to_committed()
    make_again(world)
    with pytest.raises(DataLossError, match="deleted and made again"):
        world.plan("run-2")

    act(world, "adopt-topic", topic="orders")
    planned = world.to_committed("run-2")

    assert ranges(planned) == ["orders-0[0, 7)", "orders-1[0, 2)"]
    assert epoch_of(planned).generation == 2
    assert heads(world) == {"orders-0": 10, "orders-1": 5}
    assert heads(world, 2) == {"orders-0": 7, "orders-1": 2}
    assert len([row for row in world.visible() if row[3] == 2]) == 9
    mirrored = world.kafka.mirrored("epochline.orders")["orders", 0]
    assert (mirrored.generation, mirrored.offset) == (2, 7)


def test_other_topics_are_carried_over_where_they_are(world: World) -> None:
    """INV-1: an aborted epoch of the old generation is not tried again, even where none of its partitions changed."""
    world.pipeline = orders(source=KafkaSource(topics=("orders", "refunds")))
    world.kafka.produce("refunds", 0, 6)
    world.to_committed()
    world.kafka.produce("refunds", 0, 1)
    world.plan("run-2")
    world.abort(2, "run-2")
    make_again(world)

    done = act(world, "adopt-topic", topic="orders")

    assert heads(world, 2) == {"orders-0": 0, "orders-1": 0, "refunds-0": 6}
    assert origins(world, 2) == {"orders-0": 0, "orders-1": 0, "refunds-0": 0}
    assert done.row.before["heads"] == {"orders-0": 10, "orders-1": 5, "refunds-0": 6}
    assert done.row.before["topic_ids"]["orders"] != done.row.after["topic_ids"]["orders"]
    planned = world.plan("run-2")
    assert (planned.outcome, epoch_of(planned).epoch_id, epoch_of(planned).generation) == (PlanOutcome.PLANNED, 3, 2)
    assert ranges(planned) == ["orders-0[0, 7)", "orders-1[0, 2)", "refunds-0[6, 7)"]
    assert any("generation 2 has begun" in note for note in planned.notes)


def test_a_truncated_topic_is_adopted_and_what_is_read_twice_is_said_before(world: World) -> None:
    """I11."""
    world.to_committed()
    world.kafka.change("orders", 0, last_stable=4, high_watermark=4)

    foreseen = preview_of(world, "adopt-topic", topic="orders")

    assert any("orders-0: offsets from 0 on were committed before" in line for line in foreseen.lines)
    act(world, "adopt-topic", topic="orders", at="latest")
    assert heads(world, 2) == {"orders-0": 4, "orders-1": 5}


@pytest.mark.parametrize(
    ("at", "grown", "begun", "origin", "read"),
    [
        ("truncation", 0, [8, 5], [0, 0], ["orders-1[5, 7)"]),
        ("truncation", 20, [8, 5], [0, 0], ["orders-0[8, 28)", "orders-1[5, 7)"]),
        ("latest", 20, [28, 7], [28, 7], []),
    ],
    ids=["as it was cut off", "grown since", "grown since, at its end"],
)
def test_a_truncated_topic_is_adopted_where_it_was_cut_off_or_at_its_end(
    world: World, at: str, grown: int, begun: list[int], origin: list[int], read: list[str]
) -> None:
    """I11: what came in place of the lost records is read, nothing twice, and whole partitions go on.

    Of a log that has grown since, only the leader epochs show that it was truncated.
    """
    world.to_committed()
    world.kafka.change_leader("orders", 0, truncate_to=8)
    world.kafka.produce("orders", 0, grown)
    world.kafka.produce("orders", 1, 2)
    with pytest.raises(DataLossError, match="truncated"):
        world.plan("run-2")

    act(world, "adopt-topic", topic="orders", at=at)

    assert [*heads(world, 2).values()] == begun
    assert [*origins(world, 2).values()] == origin
    assert ranges(world.plan("run-2")) == read


def test_a_topic_made_again_is_begun_at_its_end_and_was_cut_off_nowhere(world: World) -> None:
    """I11: it is another log."""
    world.to_committed()
    make_again(world)

    with pytest.raises(ActionRefusedError, match="the log is another one, not a truncated one"):
        act(world, "adopt-topic", topic="orders", at="truncation")
    act(world, "adopt-topic", topic="orders", at="latest")
    assert heads(world, 2) == {"orders-0": 7, "orders-1": 2}


def test_another_cluster_is_adopted_with_all_topics_or_not_at_all(world: World) -> None:
    world.to_committed()
    world.kafka.cluster_id = "another"
    make_again(world)

    with pytest.raises(ActionRefusedError, match="say --cluster"):
        act(world, "adopt-topic", topic="orders")
    act(world, "adopt-topic", cluster=True)

    with world.ledger.transaction() as tx:
        row = tx.epochs.pipeline("orders")
    assert row is not None
    assert (row.generation, row.cluster_id) == (2, "another")
    assert len(world.to_committed("run-2").ranges) == 2


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"topic": "orders"}, "there is nothing to adopt"),
        ({"topic": "nothing"}, "reads no topic 'nothing'"),
        ({"cluster": True}, "there is no cluster to adopt"),
        ({}, "name the topic, or say --cluster"),
        ({"topic": "orders", "cluster": True}, "not both"),
    ],
)
def test_what_needs_no_adoption_is_refused(world: World, parameters: dict[str, Any], said: str) -> None:
    world.to_committed()

    with pytest.raises(ActionRefusedError, match=said):
        act(world, "adopt-topic", **parameters)
    assert heads(world, 2) == {}


def test_a_dropped_pipeline_keeps_its_history_and_plans_no_more(world: World) -> None:
    world.to_committed()
    done = act(world, "drop")

    assert done.row.before["targets"] == ["public.orders"]
    with pytest.raises(PipelineDroppedError, match=r"was dropped by ada@here at .* \(because a test says so\)"):
        world.plan("run-2")
    with pytest.raises(ActionRefusedError, match="was dropped before"):
        act(world, "drop")
    assert len(world.visible()) == 15
    assert world.epoch(1).state is EpochState.COMMITTED
    assert "epochline.orders" not in world.kafka.groups


def test_targets_of_a_dropped_pipeline_are_free_for_another(world: World) -> None:
    """F36."""
    world.plan()
    world.abort()
    other = orders(name="others")
    with pytest.raises(TargetError, match="belongs to pipeline orders"):
        preview(world.ledger, world.kafka, other)
    with pytest.raises(TargetError, match="belongs to pipeline orders"):
        plan(world.ledger, world.kafka, other, run("x"))

    act(world, "drop")

    assert plan(world.ledger, world.kafka, other, run("x")).outcome is PlanOutcome.PLANNED


def test_a_table_with_rows_of_a_dropped_pipeline_is_not_taken_over(world: World) -> None:
    """INV-9, F36: the new one's rows would be held against positions of other records."""
    world.to_committed()
    act(world, "drop")

    with pytest.raises(TargetError, match="holds rows that another pipeline wrote"):
        plan(world.ledger, world.kafka, orders(name="others"), run("x"))


def test_a_pipeline_with_an_unfinished_epoch_is_not_dropped(world: World) -> None:
    world.plan(lease=timedelta(seconds=-1))

    with pytest.raises(ActionRefusedError, match="let run run-1 of orders finish it, or abort it first"):
        act(world, "drop")


def test_a_drop_goes_through_without_kafka_and_says_what_is_left_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.to_committed()
    monkeypatch.setattr(world.kafka, "forget", Mock(side_effect=SourceUnavailableError("Kafka does not answer")))

    done = act(world, "drop")

    assert "consumer group epochline.orders was left in Kafka" in done.lines[1]
    with world.ledger.transaction() as tx:
        assert tx.operators.standing("orders").dropped is not None
