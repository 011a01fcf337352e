"""Replay on real PostgreSQL: what is compared, what a promotion replaces, and what is refused."""

from typing import Any

import pytest

from epochline.coordinator import Plan, PlanOutcome
from epochline.errors import ActionRefusedError, EpochNotFoundError, EpochStateError, HeadMovedError
from epochline.operations.replay import differences, plan_replay, promote
from epochline.protocol.epoch import Epoch
from tests.contract.worlds import run
from tests.databases import set_aside
from tests.driver import epoch_of
from tests.integration.bench import ADD, LINEAGE, UPSERT, Bench, NewBench, Row, kv
from tests.integration.guarantee import broken
from tests.integration.operating import ORDER, act, begun_at_the_end

EPOCHS = "SELECT epoch_id, kind, state, replays, undone_by FROM epochline.epochs ORDER BY epoch_id"
FIRST = [kv("a", 1), kv("b", 1), kv("c", 1)]
MENDED = [kv("a", 1), kv("b", 9), kv("d", 1, _row=1)]


def planned(it: Bench, epoch_id: int = 1) -> Plan:
    it.runs += 1
    return plan_replay(it.subject, epoch_id, run(f"run-{it.runs}"))


def replayed(it: Bench, *rows: Row, epoch_id: int = 1) -> Epoch:
    return epoch_of(it.seal_staged(planned(it, epoch_id), *rows))


@pytest.mark.parametrize("v", ["v", "__v"])
def test_a_replay_says_what_todays_code_makes_of_an_epoch_and_changes_nothing(bench: NewBench, v: str) -> None:
    def rows(made: list[Row]) -> list[Row]:
        return [{v if name == "v" else name: value for name, value in row.items()} for row in made]

    it = bench({"k": "text", v: "integer"}).after(rows(FIRST))
    before = it.rows(f"k, {v}, _offset, _epoch")

    (found,) = differences(it.subject, replayed(it, *rows(MENDED)))

    assert (found.same, found.inserted, found.deleted, found.changed) == (1, 1, 1, 1)
    assert [(one.kind, one.place, one.before, one.after) for one in found.samples] == [
        ("changed", ("orders", 0, 1, 0), {v: "1"}, {v: "9"}),
        ("deleted", ("orders", 0, 2, 0), {"k": "c", v: "1"}, {}),
        ("inserted", ("orders", 0, 2, 1), {}, {"k": "d", v: "1"}),
    ]
    assert it.rows(f"k, {v}, _offset, _epoch") == before
    assert it.sql("SELECT max(next_offset) FROM epochline.heads") == [(3,)]


@pytest.mark.parametrize("rule", ["UNIQUE (v)", "EXCLUDE USING hash (v WITH =)"])
def test_a_replay_is_tried_without_the_rows_whose_place_it_takes(bench: NewBench, rule: str) -> None:
    """The trial does what the promotion will do: the same values are there once, not twice."""
    it = bench(existing=f"CREATE TABLE t (k text, v integer{LINEAGE}, {rule})").after([kv("a", 1), kv("b", 2)])

    promote(it.subject, replayed(it, kv("a", 2), kv("b", 1)), ORDER)

    assert it.rows() == [("a", 2), ("b", 1)]


def test_a_promoted_replay_takes_the_epochs_place_and_the_ledger_keeps_both(bench: NewBench) -> None:
    """INV-1, INV-2: the chain stays as it was; rows of other epochs too; who wanted it is written down with it."""
    it = bench().after(FIRST, [kv("z", 5)])
    replay = replayed(it, *MENDED)

    promote(it.subject, replay, ORDER)

    assert it.rows("k, v, _offset, _epoch") == [("a", 1, 0, 3), ("b", 9, 1, 3), ("d", 1, 2, 3), ("z", 5, 3, 2)]
    assert it.sql(EPOCHS) == [
        (1, "regular", "COMMITTED", None, 3), (2, "regular", "COMMITTED", None, None),
        (3, "replay", "COMMITTED", 1, None),
    ]  # fmt: skip
    chain = "SELECT start_offset, until_offset, epoch_id FROM epochline.committed_ranges WHERE partition = 0 ORDER BY 2"
    assert it.sql(chain) == [(None, 0, None), (0, 3, 1), (3, 4, 2)]
    written = it.sql("SELECT action, actor, reason, epoch_id FROM epochline.actions")
    assert written == [("replay --promote", ORDER.actor, ORDER.reason, 3)]
    it.epoch(kv("y", 6))
    assert it.sql("SELECT max(next_offset) FROM epochline.heads") == [(5,)]
    assert broken(it.sql, "orders", "t") == {}


def test_what_took_a_place_can_be_replayed_again_and_what_lost_it_cannot(bench: NewBench) -> None:
    it = bench().after(FIRST)
    promote(it.subject, replayed(it, *MENDED), ORDER)

    with pytest.raises(ActionRefusedError, match="epoch 1 .* was undone"):
        planned(it, 1)
    promote(it.subject, replayed(it, *FIRST, epoch_id=2), ORDER)

    assert it.rows("k, v, _epoch") == [("a", 1, 3), ("b", 1, 3), ("c", 1, 3)]


def test_a_replay_that_its_process_left_sealed_is_aborted_and_not_promoted(bench: NewBench) -> None:
    """INV-6: recovery commits what a run of the pipeline sealed, and never what an operator only looked at."""
    it = bench().after(FIRST)
    replay = replayed(it, *MENDED)
    it.sql("UPDATE epochline.epoch SET lease_until = now() - interval '1 s' WHERE epoch_id = 2")

    assert it.plan(kv("z", 5)).outcome is PlanOutcome.PLANNED

    assert [row[:3] for row in it.sql(EPOCHS)] == [
        (1, "regular", "COMMITTED"), (2, "replay", "ABORTED"), (3, "regular", "PLANNED"),
    ]  # fmt: skip
    with pytest.raises(EpochStateError, match="was aborted"):
        promote(it.subject, replay, ORDER)
    assert it.rows() == [("a", 1), ("b", 1), ("c", 1)]


def test_what_was_requeued_since_is_not_replaced(bench: NewBench) -> None:
    """INV-9: or the record would be in the target twice."""
    it = bench().after(FIRST)
    replay = replayed(it, *MENDED)
    set_aside(it.dsn, 2, requeued_by=1, requeued_at="now")

    with pytest.raises(HeadMovedError, match="a record that it quarantined was requeued"):
        promote(it.subject, replay, ORDER)

    assert it.rows() == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(
    ("sink", "log", "said"),
    [
        (UPSERT, {}, "does not keep each epoch's rows apart .mode upsert"),
        (ADD, {}, "does not keep each epoch's rows apart .mode add"),
        ({"lineage": False}, {}, "only rows of append targets with lineage"),
        ({}, {"log_start": 2}, "The source no longer holds"),
    ],
    ids=["upsert", "add", "no lineage", "retention"],
)
def test_what_cannot_be_compared_is_refused(
    bench: NewBench, sink: dict[str, Any], log: dict[str, int], said: str
) -> None:
    it = bench(**sink).after(FIRST)
    it.kafka.change("orders", 0, **log)

    with pytest.raises(ActionRefusedError, match=said):
        planned(it)
    with pytest.raises(EpochNotFoundError, match="has no epoch 9"):
        planned(it, 9)


def test_a_savepoint_from_before_a_promotion_cannot_bring_the_replaced_rows_back(bench: NewBench) -> None:
    it = bench().after(FIRST)
    act(it, "savepoint", name="before")
    promote(it.subject, replayed(it, *MENDED), ORDER)

    with pytest.raises(ActionRefusedError, match="took the place of epoch 1"):
        act(it, "restore", name="before")

    assert it.rows() == [("a", 1), ("b", 9), ("d", 1)]


def test_a_replay_reads_no_other_records_than_its_epoch_did(bench: NewBench) -> None:
    """INV-9, I1: its promotion would take away the rows of records that nobody can read any more."""
    it = bench().after(FIRST)
    it.kafka.change_leader("orders", 0, truncate_to=2)
    it.kafka.produce("orders", 0, 4)

    said = r"no longer holds orders-0.0, 3. as it was read: its log was truncated at offset 2"
    with pytest.raises(ActionRefusedError, match=said):
        planned(it)


def test_a_savepoint_from_before_an_extension_keeps_the_rows_of_its_replay(bench: NewBench) -> None:
    """I1, INV-1: what was extended back lies before every head, also after a replay took its place."""
    it = begun_at_the_end(bench, 2)
    it.epoch(kv("c", 1))
    act(it, "savepoint", name="before")
    it.commit_staged(it.order("extend-back", ORDER, "back", to="earliest"), kv("a", 1), kv("b", 1))
    promote(it.subject, replayed(it, kv("a", 1), kv("b", 9), epoch_id=2), ORDER)

    with pytest.raises(ActionRefusedError, match=r"orders-0.0, 2. lies before the head of the savepoint"):
        act(it, "restore", name="before")

    assert it.rows() == [("a", 1), ("b", 9), ("c", 1)]
