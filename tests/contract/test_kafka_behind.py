"""Kafka is put back to a backup and goes on growing: its logs do not show it, the consumer group does (INV-8, INV-9)."""

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from epochline import KafkaSource
from epochline.coordinator import PlanOutcome
from epochline.coordinator.mirror import mirror
from epochline.errors import (
    ActionRefusedError,
    DataLossError,
    KafkaBehindError,
    LedgerBehindError,
    PipelinePausedError,
    SourceUnavailableError,
)
from epochline.operations.replay import plan_replay
from epochline.protocol.mirror import MirroredOffset
from tests.contract.operators import act, heads, ordered, preview_of, refusal_of, refused_plan
from tests.contract.worlds import World, orders, ranges, run
from tests.in_memory.kafka import FakeKafka

GROUP = "epochline.orders"


def put_back(world: World, backup: dict[str, Any], *, records: int = 6) -> None:
    """Kafka is what it was; producers write other records since."""
    world.kafka.__dict__.update(deepcopy(backup))
    world.kafka.produce("orders", 0, records)


def two_epochs(world: World) -> dict[str, Any]:
    """Two epochs, to offsets 3 and 7; a backup of Kafka of the time between them."""
    world.source = FakeKafka()
    world.kafka.produce("orders", 0, 3)
    world.to_committed("r1")
    backup = deepcopy(world.kafka.__dict__)
    world.kafka.produce("orders", 0, 4)
    world.to_committed("r2")
    return backup


@pytest.fixture
def behind(world: World) -> World:
    """After two epochs, Kafka holds three records of the first, and six others."""
    put_back(world, two_epochs(world))
    return world


def test_a_kafka_from_a_backup_that_grew_again_stops_the_pipeline(behind: World) -> None:
    """INV-9: other records have taken the offsets up to the head. Resumed, it stops again."""
    shown = behind.kafka.mirrored(GROUP)

    for who in ("r3", "r4"):
        refused_plan(behind, who, KafkaBehindError, "orders-0: offset 3 of epoch 1.* than the one of epoch 2")
        with pytest.raises(PipelinePausedError, match="adopt-topic orders --cluster --at truncation"):
            behind.plan(who)
        assert behind.kafka.mirrored(GROUP) == shown
        act(behind, "resume")

    assert heads(behind) == {"orders-0": 7}


def test_where_the_group_stands_every_record_that_took_a_place_is_read(behind: World) -> None:
    with pytest.raises(KafkaBehindError):
        behind.plan("r3")
    assert "Kafka went back in time" in refusal_of(behind, "adopt-topic", topic="orders", at="earliest")

    act(behind, "adopt-topic", cluster=True, at="truncation")

    assert ranges(behind.to_committed("r4")) == ["orders-0[3, 9)"]
    behind.kafka.produce("orders", 0, 1)
    assert ranges(behind.to_committed("r5")) == ["orders-0[9, 10)"]
    assert "there is no cluster to adopt" in refusal_of(behind, "adopt-topic", cluster=True)


def test_begun_at_its_end_the_log_can_be_extended_back_to_where_the_group_stood(behind: World) -> None:
    act(behind, "adopt-topic", cluster=True, at="latest")

    lines = preview_of(behind, "extend-back", to="earliest").lines

    assert lines[0] == "orders-0: offsets [3, 9) are committed, the newest first"


def test_an_operator_who_knows_the_log_to_be_the_same_goes_on_at_the_heads(behind: World) -> None:
    act(behind, "adopt-topic", cluster=True, at="head")

    assert ranges(behind.to_committed("r3")) == ["orders-0[7, 9)"]
    assert behind.kafka.mirrored(GROUP)["orders", 0].offset == 9


def test_what_was_sealed_before_is_committed_and_the_evidence_stays(world: World) -> None:
    """INV-6: its records are staged. INV-8: the mirror of that commit would cover up that Kafka went back."""
    backup = two_epochs(world)
    world.kafka.produce("orders", 0, 1)
    world.to_sealed("r3", lease=timedelta(seconds=-1))
    put_back(world, backup)

    with pytest.raises(KafkaBehindError):
        world.plan("r4")

    assert heads(world) == {"orders-0": 8}
    assert world.kafka.mirrored(GROUP)["orders", 0].offset == 3


def test_no_operation_reads_a_log_that_went_back(behind: World) -> None:
    with pytest.raises(KafkaBehindError):
        plan_replay(behind.subject, 2, run("r3"))
    act(behind, "resume")
    with pytest.raises(KafkaBehindError):
        ordered(behind, "extend-back", "r3", to="earliest")


# What is legal, and must not stop.


def away(*_: object, **__: object) -> None:
    raise SourceUnavailableError("away")


def died_before_its_mirror(world: World, run: str, *, records: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.kafka, "mirror", away)
        world.kafka.produce("orders", 0, records)
        world.to_committed(run)


def test_a_commit_whose_mirror_was_never_written_stops_nothing(world: World) -> None:
    """The process died in between, or Kafka was away: the ledger knows that nothing was confirmed."""
    world.to_committed("r1")

    died_before_its_mirror(world, "r2", records=1)
    world.kafka.produce("orders", 0, 1)

    assert world.to_committed("r3").outcome is PlanOutcome.PLANNED


@pytest.mark.parametrize("before", [0, 1], ids=["the first epoch", "a later one"])
def test_a_plan_with_nothing_to_read_writes_the_mirror_of_a_commit_that_died(world: World, before: int) -> None:
    """INV-8: no retry of the commit comes, as its run was deleted, and no later commit. Monitors would see lag for ever."""
    if before:
        world.to_committed("r1")
    died_before_its_mirror(world, "r2", records=3)
    shown = {key: one.offset for key, one in world.kafka.mirrored(GROUP).items()}
    assert shown == ({("orders", 0): 10, ("orders", 1): 5} if before else {})

    assert world.plan("r3").outcome is PlanOutcome.NOTHING_TO_READ

    assert {str(key): one.offset for key, one in world.kafka.mirrored(GROUP).items()} == {
        str(("orders", partition)): offset for partition, offset in world.heads().items()
    }
    written = world.kafka.mirrored(GROUP)
    assert {one.epoch_id for one in written.values()} == {1 + before}
    world.plan("r4")
    assert world.kafka.mirrored(GROUP) == written


def test_a_plan_with_nothing_to_read_leaves_a_group_that_somebody_else_wrote_or_uses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: a plan says that it was moved; Kafka refuses a write beside the group's members."""
    world.to_committed("r1")
    died_before_its_mirror(world, "r2", records=3)
    before = world.kafka.mirrored(GROUP)
    with monkeypatch.context() as patched:
        patched.setattr(world.kafka, "mirror", away)
        assert world.plan("r3").outcome is PlanOutcome.NOTHING_TO_READ
    assert world.kafka.mirrored(GROUP) == before
    world.kafka.groups[GROUP]["orders", 1] = MirroredOffset(offset=2)
    before = world.kafka.mirrored(GROUP)

    planned = world.plan("r4")

    assert any("was moved to 2" in note for note in planned.notes)
    assert world.kafka.mirrored(GROUP) == before


def test_a_plan_with_nothing_to_read_makes_a_group_again_that_has_expired(world: World) -> None:
    world.to_committed("r1")
    before = {key: one.offset for key, one in world.kafka.mirrored(GROUP).items()}
    world.kafka.forget(GROUP)
    world.kafka.groups_kept = timedelta(0)

    planned = world.plan("r2")

    assert any("they are written again" in note for note in planned.notes)
    assert {key: one.offset for key, one in world.kafka.mirrored(GROUP).items()} == before


def test_a_plan_with_nothing_to_read_never_covers_up_what_a_group_shows(world: World) -> None:
    """INV-8: a ledger that went back, a group that was deleted and a Kafka that went back stop the pipeline as before."""
    world.to_committed("r1")
    first = world.kafka.mirrored(GROUP)
    died_before_its_mirror(world, "r2", records=3)
    lost = "11111111-1111-4111-8111-111111111111"
    unknown = {key: MirroredOffset(offset=5, generation=1, epoch_id=1, token=lost, number=9) for key in first}
    older = {key: MirroredOffset(offset=5, generation=1, epoch_id=0, number=0) for key in first}
    for shown, error in (unknown, LedgerBehindError), ({}, KafkaBehindError), (older, KafkaBehindError):
        world.kafka.groups[GROUP] = dict(shown)
        with pytest.raises(error):
            world.plan("r3")
        assert world.kafka.mirrored(GROUP) == shown
        act(world, "resume")


def test_a_group_that_takes_no_write_fills_no_table(world: World) -> None:
    """Where a login may not write it, each plan with nothing to read tries again."""
    world.to_committed("r1")
    with world.ledger.transaction() as tx:
        for _ in range(1100):
            tx.receipts.begin_mirror("orders", 1, 1, ["orders"])
        last = tx.receipts.last_mirror("orders")

    assert last is not None
    assert (last.epoch_id, len(last.after), max(last.after)) == (1, 1000, last.number + 1100)


def test_a_slow_mirror_that_was_overtaken_and_died_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its write of the older heads reaches Kafka after the newer ones, and it does not live to look again."""
    world.to_committed("r1")
    write = world.kafka.mirror
    late: list[tuple[Any, ...]] = []

    def die_before(*given: Any) -> None:
        late.append(given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(world.kafka, "mirror", die_before)
        with pytest.raises(KeyboardInterrupt):
            mirror(world.ledger, world.kafka, world.pipeline)
    world.kafka.produce("orders", 0, 1)
    world.to_committed("r2")
    write(*late[0])
    assert world.kafka.mirrored(GROUP)["orders", 0].offset == 10
    world.kafka.produce("orders", 0, 1)

    assert world.to_committed("r3").outcome is PlanOutcome.PLANNED


def test_a_group_that_a_person_moved_stops_nothing(world: World) -> None:
    """INV-8: reported, and overwritten."""
    world.to_committed("r1")
    for key in world.kafka.groups[GROUP]:
        world.kafka.groups[GROUP][key] = MirroredOffset(offset=0)
    world.kafka.produce("orders", 0, 1)

    planned = world.to_committed("r2")

    assert any("was moved to 0" in note for note in planned.notes)
    assert world.kafka.mirrored(GROUP)["orders", 0].offset == 11


@pytest.mark.parametrize("kept", [timedelta(0), None], ids=["expired", "Kafka does not say"])
def test_a_group_that_has_expired_stops_nothing_and_is_evidence_again(world: World, kept: timedelta | None) -> None:
    world.to_committed("r1")
    world.kafka.forget(GROUP)
    world.kafka.groups_kept = kept
    world.kafka.produce("orders", 0, 1)

    planned = world.to_committed("r2")

    assert any("they are written again" in note for note in planned.notes)
    assert world.kafka.mirrored(GROUP)["orders", 0].offset == 11
    world.kafka.groups_kept = timedelta(days=7)
    world.kafka.forget(GROUP)
    with pytest.raises(KafkaBehindError, match="holds no offset of orders any more"):
        world.plan("r3")


def test_a_group_that_was_deleted_stops_until_somebody_knows_the_log_to_be_the_same(world: World) -> None:
    """Kafka may have gone back to before the first mirror; nobody but an operator can tell."""
    world.to_committed("r1")
    world.kafka.forget(GROUP)
    world.kafka.produce("orders", 0, 1)
    refused_plan(world, "r2", KafkaBehindError, "Somebody deleted the group, or Kafka went back")
    assert "nobody knows where the logs were cut off" in refusal_of(world, "adopt-topic", cluster=True, at="truncation")

    act(world, "adopt-topic", cluster=True, at="head")

    assert ranges(world.to_committed("r3")) == ["orders-0[10, 11)"]


def test_a_mirror_of_an_older_version_is_evidence_by_its_epoch(world: World) -> None:
    """It has no number. Before the first numbered one it shows nothing."""
    world.to_committed("r1")
    group = world.kafka.groups[GROUP]
    older = {key: MirroredOffset(offset=0, generation=1, epoch_id=0) for key in group}
    same = {key: MirroredOffset(offset=one.offset, generation=1, epoch_id=1) for key, one in group.items()}
    world.kafka.produce("orders", 0, 1)

    world.kafka.groups[GROUP] = same
    assert world.plan("r2", lease=timedelta(seconds=-1)).outcome is PlanOutcome.PLANNED
    world.kafka.groups[GROUP] = older
    with pytest.raises(KafkaBehindError):
        world.plan("r3")


def test_one_topic_that_kafka_deleted_is_named_as_such(world: World) -> None:
    """Kafka deletes its offsets with it, and no group went back for that."""
    world.to_committed("r1")
    for key in [key for key in world.kafka.views if key[0] == "orders"]:
        del world.kafka.views[key]
    world.kafka.forget(GROUP)

    with pytest.raises(Exception, match="no longer has the partition") as refused:
        world.plan("r2")

    assert not isinstance(refused.value, KafkaBehindError | ActionRefusedError)


@pytest.mark.parametrize("mirror", [True, False], ids=["with a group", "without a group"])
def test_a_log_that_lost_records_behind_the_head_goes_on_there_once_somebody_said_so(
    world: World, mirror: bool
) -> None:
    """INV-9: they are gone before they were read, which neither the group nor the head shows."""
    world.pipeline = orders(source=KafkaSource(topics="orders", mirror=mirror))
    world.source = FakeKafka()
    world.kafka.produce("orders", 0, 8)
    world.to_committed("r1", record_limit=6)
    world.kafka.change("orders", 0, high_watermark=7, last_stable=7)
    with pytest.raises(DataLossError, match=r"orders-0 ended at 8 .* and ends at 7 now"):
        world.plan("r2")

    assert "ended at 8" in preview_of(world, "adopt-topic", topic="orders", at="truncation").lines[-1]
    act(world, "adopt-topic", topic="orders", at="truncation")

    assert ranges(world.to_committed("r3")) == ["orders-0[6, 7)"]
    assert "there is nothing to adopt" in refusal_of(world, "adopt-topic", topic="orders", at="truncation")


@pytest.mark.parametrize("lost", [0, 2], ids=["not written since", "written since"])
def test_a_topic_that_is_not_declared_meanwhile_keeps_its_head_when_kafka_went_back(world: World, lost: int) -> None:
    """INV-1, INV-9: declared again, it is neither begun anew nor read from behind what replaced its lost records."""
    both, alone = (orders(source=KafkaSource(topics=topics)) for topics in (("orders", "refunds"), ("orders",)))
    world.source, world.pipeline = FakeKafka(), both
    world.kafka.produce("orders", 0, 3)
    world.kafka.produce("refunds", 0, 5)
    world.to_committed("r1")
    backup = deepcopy(world.kafka.__dict__)
    world.kafka.produce("orders", 0, 1)
    world.kafka.produce("refunds", 0, lost)
    world.to_committed("r2")
    world.pipeline = alone
    put_back(world, backup)
    world.kafka.produce("refunds", 0, 4)

    act(world, "adopt-topic", cluster=True, at="truncation")
    world.to_committed("r3")
    world.pipeline = both

    assert ranges(world.to_committed("r4")) == ["refunds-0[5, 9)"]
