"""One suite over both ledgers: the fake in memory and PostgreSQL keep the same promises."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from epochline import Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Text
from epochline.coordinator import LEASE, PlanOutcome, renew
from epochline.coordinator.evidence import guarded_by_sinks_alone
from epochline.declare.external import Files
from epochline.errors import (
    DeclarationError,
    EpochBusyError,
    EpochFencedError,
    EpochStateError,
    HeadMovedError,
    LedgerBehindError,
    PipelinePausedError,
    SealRefusedError,
    TargetError,
)
from epochline.protocol.epoch import AbortOutcome, CommitOutcome, EpochState
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.offsets import Head
from tests.contract.operators import refused_plan
from tests.contract.worlds import World, orders, ranges, rows_of, run
from tests.driver import epoch_of

LOST = "0b5f3a52-6d0e-4b0c-9a57-7c1c3f3f6d11"
"""A token of the newer ledger."""

EXPIRED = timedelta(seconds=-1)


def everything(epoch: int = 1) -> list[tuple[str, int, int, int]]:
    return [("orders", partition, at, epoch) for partition, end in ((0, 10), (1, 5)) for at in range(end)]


def test_the_first_plan_writes_origins_and_the_whole_backlog(world: World) -> None:
    """S1, S9, INV-3."""
    planned = world.plan()

    assert planned.outcome is PlanOutcome.PLANNED
    assert ranges(planned) == ["orders-0[0, 10)", "orders-1[0, 5)"]
    assert world.heads() == {0: 0, 1: 0}


def test_a_plan_with_nothing_to_read_writes_no_epoch_and_keeps_its_origins(world: World) -> None:
    """U1, S9: startup mode latest, nothing there at first, loses nothing that comes later."""
    world.pipeline = orders(source=KafkaSource(topics="orders", startup="latest"))

    assert world.plan().outcome is PlanOutcome.NOTHING_TO_READ
    assert world.heads() == {0: 10, 1: 5}

    world.kafka.produce("orders", 0, 3)
    planned = world.plan("run-2")

    assert ranges(planned) == ["orders-0[10, 13)"]
    assert epoch_of(planned).epoch_id == 1


def test_a_plan_stops_at_the_last_stable_offset_and_says_what_holds_records_back(world: World) -> None:
    """S13."""
    world.kafka.change("orders", 0, last_stable=7)

    planned = world.plan()

    assert ranges(planned) == ["orders-0[0, 7)", "orders-1[0, 5)"]
    assert planned.notes == (
        "orders-0: an open transaction holds back offsets [7, 10); the broker does not say whose it is",
    )


def test_a_second_plan_of_the_same_run_gives_the_same_epoch_though_more_was_produced(world: World) -> None:
    """INV-3, C2: a retry never plans a later end."""
    first = world.plan()
    world.kafka.produce("orders", 0, 50)

    second = world.plan()

    assert second.outcome is PlanOutcome.RESUMED
    assert second.ranges == first.ranges


def test_another_run_with_a_live_lease_is_waited_for_and_then_named(world: World) -> None:
    """K14."""
    world.to_begun("run-1", lease=timedelta(seconds=0.2))  # begin renews the lease to a minute

    with pytest.raises(EpochBusyError, match="run run-1 of orders on here"):
        world.plan("run-2", lease=timedelta(seconds=0.2))


def test_an_expired_lease_lets_another_run_take_the_range_over(world: World) -> None:
    world.plan("run-1", lease=EXPIRED)

    planned = world.plan("run-2")

    assert planned.notes == ("aborted epoch 1 of orders, which run run-1 of orders left planned with an expired lease",)
    assert ranges(planned) == ["orders-0[0, 10)", "orders-1[0, 5)"]
    assert world.epoch(1).state is EpochState.ABORTED


def test_a_pre_committed_epoch_of_another_run_is_committed_before_planning(world: World) -> None:
    """INV-6, P6."""
    world.to_sealed("run-1")

    planned = world.plan("run-2")

    assert planned.outcome is PlanOutcome.NOTHING_TO_READ
    assert planned.notes == ("committed epoch 1 of orders, which run run-1 of orders left pre-committed",)
    assert world.visible() == everything()
    assert world.kafka.mirrored("epochline.orders")["orders", 0].offset == 10


def test_an_aborted_epoch_is_tried_again_with_the_same_range(world: World) -> None:
    """U4: clear after failure."""
    world.plan()
    world.abort()
    world.kafka.produce("orders", 0, 50)

    planned = world.plan()

    assert planned.outcome is PlanOutcome.REOPENED
    assert ranges(planned) == ["orders-0[0, 10)", "orders-1[0, 5)"]
    assert world.epoch(1).state is EpochState.PLANNED
    assert world.epoch(1).error is None


def test_an_aborted_epoch_whose_range_another_run_took_is_not_tried_again(world: World) -> None:
    """U5: no range is committed twice."""
    world.plan("run-1")
    world.abort()
    world.to_committed("run-2")

    planned = world.plan("run-1")

    assert planned.outcome is PlanOutcome.NOTHING_TO_READ
    assert "epoch 1 of orders is not tried again: epoch 2 of orders (COMMITTED) came after it" in planned.notes
    assert world.visible() == everything(epoch=2)


def test_an_aborted_epoch_is_not_tried_again_when_the_leader_changed(world: World) -> None:
    world.plan()
    world.abort()
    world.kafka.change("orders", 0, leader_epoch=1)

    planned = world.plan()

    assert planned.outcome is PlanOutcome.PLANNED
    assert epoch_of(planned).epoch_id == 2
    assert "another leader epoch" in planned.notes[0]


def _heads(world: World) -> Sequence[Head]:
    with world.ledger.transaction() as tx:
        return tx.chain.heads("orders", 1)


@pytest.mark.parametrize("written", [(7, None), (7, LOST), (1, LOST)], ids=["by an older version", "later", "earlier"])
def test_a_mirror_that_shows_what_the_ledger_does_not_know_pauses_the_pipeline(
    world: World, written: tuple[int, str | None]
) -> None:
    """INV-8: the ledger went back in time. Its ids may have met those of the mirror since; the token decides."""
    world.to_committed()
    world.kafka.produce("orders", 0, 1)
    world.kafka.mirror("epochline.orders", _heads(world), 1, *written)
    mirrored = dict(world.kafka.mirrored("epochline.orders"))

    refused_plan(world, "run-2", LedgerBehindError, "went back in time")
    with pytest.raises(PipelinePausedError, match="accept-ledger"):
        world.plan("run-3")

    with world.ledger.transaction() as tx:
        row = tx.epochs.pipeline("orders")
    assert row is not None
    assert row.last_epoch_id == 1
    assert world.kafka.mirrored("epochline.orders") == mirrored


@pytest.mark.parametrize("by", ["its own commit", "another run's plan"])
def test_a_sealed_epoch_is_not_committed_while_the_mirror_shows_what_the_ledger_does_not_know(
    world: World, by: str
) -> None:
    """INV-8: recovery overwrote the evidence before it was looked at."""
    world.to_sealed()
    world.kafka.mirror("epochline.orders", _heads(world), 1, 7, LOST)
    mirrored = dict(world.kafka.mirrored("epochline.orders"))

    with pytest.raises(LedgerBehindError, match="went back in time"):
        world.commit(1) if by == "its own commit" else world.plan("run-2")

    assert world.epoch(1).state is EpochState.PRE_COMMITTED
    assert world.kafka.mirrored("epochline.orders") == mirrored


def test_without_a_mirror_no_group_is_written_or_read_and_every_plan_says_what_is_left_of_the_guard(
    world: World,
) -> None:
    """N3: the mirror is off. What the group holds is no evidence, and stays as it is."""
    source = KafkaSource(topics="orders", mirror=False)
    world.pipeline = orders(source=source)
    world.to_committed()
    assert world.kafka.mirrored("epochline.orders") == {}
    world.kafka.produce("orders", 0, 1)
    world.kafka.mirror("epochline.orders", _heads(world), 1, 7, LOST)
    others = dict(world.kafka.mirrored("epochline.orders"))

    planned, again = world.plan("run-2"), world.plan("run-2")

    said = "no consumer group is written: nothing outside the ledger shows"
    assert [sum(note.startswith(said) for note in one.notes) for one in (planned, again)] == [1, 1]
    assert world.kafka.mirrored("epochline.orders") == others
    guarded = orders(source=source, sinks=[KafkaTopic(topic="out", value=Json(columns={"value": "text"}))])
    assert guarded_by_sinks_alone(guarded)[0].endswith("only kafka:out can show whether the ledger went back in time")


def test_a_mirror_of_the_sealed_attempt_lets_the_ledger_catch_up(world: World) -> None:
    """INV-6: the newer ledger had committed what this one has sealed."""
    world.to_sealed()
    world.kafka.mirror("epochline.orders", _heads(world), 1, 1, world.live().token)

    world.plan("run-2")

    assert world.epoch(1).state is EpochState.COMMITTED


def test_an_offset_moved_by_hand_is_reported_and_never_read(world: World) -> None:
    """S11."""
    world.to_committed()
    world.kafka.groups["epochline.orders"]["orders", 0] = MirroredOffset(offset=0)
    world.kafka.produce("orders", 0, 1)

    planned = world.plan("run-2")

    assert ranges(planned) == ["orders-0[10, 11)"]
    assert planned.notes == ("orders-0: the consumer group was moved to 0; the ledger's 10 counts",)


def test_a_preview_changes_nothing(world: World) -> None:
    shown = world.preview(record_limit=6)

    assert ranges(shown) == ["orders-0[0, 4)", "orders-1[0, 2)"]
    assert world.heads() == {}
    with world.ledger.transaction() as tx:
        assert tx.epochs.pipeline("orders") is None


def test_a_missing_target_is_refused(world: World) -> None:
    world.pipeline = orders(sinks=[PostgresTable(table="nowhere", columns={"value": "text"})])

    with pytest.raises(TargetError, match="nowhere does not exist"):
        world.plan()


def test_a_declaration_that_would_change_what_rows_mean_is_refused(world: World) -> None:
    world.to_committed()
    world.pipeline = orders(sinks=[PostgresTable(table="orders", columns={"value": "text"}, mode="replace")])
    world.kafka.produce("orders", 0, 1)

    refused_plan(world, "run-2", DeclarationError, r"sinks\.orders\.mode append → replace: existing rows were")


def test_epoch_ids_increase_and_are_never_used_again(world: World) -> None:
    """C5."""
    world.to_committed("run-1", record_limit=3)
    world.plan("run-2", record_limit=3)
    world.abort(2, "run-2")
    third = world.to_committed("run-3", record_limit=3)

    assert epoch_of(third).epoch_id == 3


def test_each_epoch_starts_where_the_one_before_ended(world: World) -> None:
    """S6, U2, INV-1."""
    for number in range(1, 6):
        world.to_committed(f"run-{number}", record_limit=3)

    assert len(world.visible()) == 15
    assert {row[:3] for row in world.visible()} == {row[:3] for row in everything()}


def test_a_second_execution_of_pre_commit_fences_the_first(world: World) -> None:
    """INV-4, U8: each execution is an attempt of its own."""
    planned, first = world.to_begun()
    second = world.attempt(planned)

    assert not world.write(first, planned.ranges[0])
    world.stage(planned, second)
    world.seal(second)
    world.commit(1)

    assert second.attempt == 2
    assert world.visible() == everything()


def test_a_fenced_attempt_cannot_seal_or_renew(world: World) -> None:
    planned, first = world.to_begun()
    world.stage(planned, first)
    world.begin(1)

    with pytest.raises(EpochFencedError, match="1 of epoch 1"):
        world.seal(first)
    with pytest.raises(EpochFencedError):
        renew(world.ledger, first, run(), lease=LEASE)


def test_after_the_seal_begin_has_nothing_to_do_and_a_part_is_refused(world: World) -> None:
    """A retried task whose first try sealed succeeds without Spark."""
    planned, ticket = world.to_begun()
    world.stage(planned, ticket)
    world.seal(ticket)

    assert world.begin(1) is None
    assert not world.write(ticket, planned.ranges[0], 9)


def test_another_run_may_not_begin_seal_or_abort(world: World) -> None:
    planned, ticket = world.to_begun()
    world.stage(planned, ticket)

    with pytest.raises(EpochStateError, match="may not stage it"):
        world.begin(1, "run-2")
    with pytest.raises(EpochStateError, match="may not seal it"):
        world.seal(ticket, "run-2")
    with pytest.raises(EpochStateError, match="may not abort it"):
        world.abort(1, "run-2")


@pytest.mark.parametrize(
    ("staged", "passed", "ends", "said"),
    [
        (2, None, False, "without its end mark"),
        (1, None, True, r"orders-1\[0, 5\): 5 of 5 offsets gave no record"),
        (2, 1, True, r"read 10, but passed 1 \+ skipped 0 \+ quarantined 0"),
    ],
    ids=["a job without its end mark", "records missing without a reason", "records neither passed nor refused"],
)
def test_what_does_not_balance_is_not_sealed(
    world: World, staged: int, passed: int | None, ends: bool, said: str
) -> None:
    planned, ticket = world.to_begun()
    for number, one in enumerate(planned.ranges[:staged]):
        assert world.write(ticket, one, number, passed=passed)
    if ends:
        assert world.writer.end(ticket)

    with pytest.raises(SealRefusedError, match=said):
        world.seal(ticket)
    assert world.epoch(1).state is EpochState.PLANNED


def test_offsets_without_a_record_are_expected_in_a_compacted_topic(world: World) -> None:
    """S13, INV-9: elsewhere the batches of the log have to explain each of them."""
    planned, ticket = world.to_begun()
    for number, one in enumerate(planned.ranges):
        rows = rows_of(one)[:-1]
        assert world.write(ticket, one, number, {"orders": rows}, received=len(rows), passed=len(rows))
    assert world.writer.end(ticket)

    world.kafka.compacted.add("orders")
    counts = world.seal(ticket)
    world.commit(1)

    assert counts.read == 13
    assert world.heads() == {0: 10, 1: 5}


@pytest.mark.fault("F10")
def test_commit_twice_gives_the_receipt_and_changes_nothing(world: World) -> None:
    """INV-5."""
    world.to_sealed()

    first, second = world.commit(1), world.commit(1)

    assert first.outcome is CommitOutcome.COMMITTED
    assert second.outcome is CommitOutcome.ALREADY_COMMITTED
    assert second.epoch.committed_at == first.epoch.committed_at
    assert world.visible() == everything()


def test_a_commit_moves_the_heads_mirrors_them_and_leaves_no_staging(world: World) -> None:
    """P2, S5, C14: nothing is visible before it."""
    world.to_sealed()
    assert world.visible() == []
    assert world.heads() == {0: 0, 1: 0}

    world.commit(1)

    assert world.heads() == {0: 10, 1: 5}
    mirrored = world.kafka.mirrored("epochline.orders")
    assert {key: held.offset for key, held in mirrored.items()} == {("orders", 0): 10, ("orders", 1): 5}
    assert world.left_over() == 0


@pytest.mark.fault("F10")
def test_a_plan_after_its_own_commit_shows_the_receipt(world: World) -> None:
    """U3: a cleared run that committed does nothing again, and does not wait for a run that stages an epoch."""
    world.to_committed()
    world.kafka.produce("orders", 0, 5)

    planned = world.plan("run-1")
    world.plan("run-2")
    again = world.plan("run-1")

    assert planned.outcome is again.outcome is PlanOutcome.ALREADY_COMMITTED
    assert epoch_of(planned).epoch_id == epoch_of(again).epoch_id == 1


def test_abort_twice_is_abort_once(world: World) -> None:
    """INV-7, P15."""
    world.to_begun()

    assert world.abort(reason="why not") is AbortOutcome.ABORTED
    assert world.abort(reason="again") is AbortOutcome.ALREADY_ABORTED
    assert world.epoch(1).error == "why not"
    assert world.left_over() == 0
    assert world.heads() == {0: 0, 1: 0}


@pytest.mark.fault("F10")
def test_abort_after_commit_changes_nothing(world: World) -> None:
    world.to_committed()

    assert world.abort() is AbortOutcome.ALREADY_COMMITTED
    assert world.abort(by_operator=True) is AbortOutcome.ALREADY_COMMITTED
    assert world.visible() == everything()


def test_commit_and_begin_of_an_epoch_that_is_not_ready_say_what_to_clear(world: World) -> None:
    world.plan()
    with pytest.raises(EpochStateError, match="Clear the run from pre_commit"):
        world.commit(1)

    world.abort(reason="why not")
    for act in (world.commit, world.begin):
        with pytest.raises(EpochStateError, match="why not.*Clear the run from plan_epoch"):
            act(1)


def test_a_moved_head_refuses_the_commit(world: World) -> None:
    """INV-1: the compare-and-swap."""
    planned = world.to_sealed()
    with world.ledger.transaction() as tx:
        assert tx.chain.advance(world.epoch(1), planned.ranges[0])

    with pytest.raises(HeadMovedError, match=r"orders-0\[0, 10\) does not start at the head"):
        world.commit(1)
    assert world.visible() == []


@pytest.mark.parametrize("spelled", ["the same", "a link", "a link's target"])
def test_a_folder_has_one_writer_from_the_first_plan_on(world: World, tmp_path: Path, spelled: str) -> None:
    """P5: the second pipeline is refused before it reads a record, and takes the folder once the first is dropped."""
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    folders = {"the same": ("disk", "disk"), "a link": ("disk", "link"), "a link's target": ("link", "disk")}
    one, two = (
        Pipeline(
            name=name, source=KafkaSource(topics="orders"), parse=Text(),
            sinks=[
                PostgresTable(table=name),
                Files(path=str(tmp_path / folder / "visits"), columns={"value": "text"}, format="json"),
            ],
        )
        for name, folder in zip(("one", "two"), folders[spelled], strict=True)
    )  # fmt: skip
    with world.ledger.transaction() as tx:
        for pipeline in (one, two):
            tx.epochs.lock_pipeline(pipeline.name)
        tx.targets.claim(one)

    for refuses in ("claim", "refuse_foreign"):
        with pytest.raises(TargetError, match="belongs to pipeline one"), world.ledger.transaction() as tx:
            getattr(tx.targets, refuses)(two)

    with world.ledger.transaction() as tx:
        assert one.external[0].name.removeprefix("files:") in tx.targets.claimed("one")
        tx.operators.drop("one", "ada", "moved")
    with world.ledger.transaction() as tx:
        tx.targets.claim(two)


def test_two_sinks_that_are_one_folder_by_a_link_are_refused(world: World, tmp_path: Path) -> None:
    """P5, Q5: a reader of the manifest would miss the rows of one. The link may come after a plan."""
    paths = [tmp_path / folder / "visits" for folder in ("disk", "link")]
    world.pipeline = orders(
        sinks=[*world.pipeline.sinks, *(Files(path=str(p), columns={"value": "text"}) for p in paths)]
    )
    with world.ledger.transaction() as tx:
        tx.epochs.lock_pipeline("orders")
        tx.targets.claim(world.pipeline)

    (tmp_path / "link").symlink_to(tmp_path / "disk")

    for refuses in ("claim", "refuse_foreign"):
        with (
            pytest.raises(TargetError, match="link/visits is the folder of .*disk/visits"),
            world.ledger.transaction() as tx,
        ):
            getattr(tx.targets, refuses)(world.pipeline)


def test_run_ids_that_come_again_show_their_receipts_and_later_runs_read_the_rest(world: World) -> None:
    """INV-3, INV-5: Airflow's database is put back to a backup, and its scheduler makes the same runs again."""
    world.to_committed("run-1")
    world.kafka.produce("orders", 0, 3)
    world.to_committed("run-2")
    world.kafka.produce("orders", 0, 2)
    rows = world.visible()

    for again, epoch_id in (("run-1", 1), ("run-2", 2)):
        planned = world.plan(again)
        assert (planned.outcome, epoch_of(planned).epoch_id) == (PlanOutcome.ALREADY_COMMITTED, epoch_id)
        assert world.begin(epoch_id, again) is None
        assert world.commit(epoch_id).outcome is CommitOutcome.ALREADY_COMMITTED
    assert world.visible() == rows

    assert ranges(world.to_committed("run-3")) == ["orders-0[13, 15)"]
