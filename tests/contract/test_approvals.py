"""An epoch outside its bounds waits for a person; the decision holds for the attempt that was judged. On both ledgers."""

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

from epochline import Bounds
from epochline.coordinator import PlanOutcome
from epochline.declare.names import QUARANTINE
from epochline.errors import (
    ActionRefusedError,
    EpochAwaitsApprovalError,
    EpochStateError,
    OutsideBoundsError,
)
from epochline.operations import ACTIONS, DirectAction, Request, tidy
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.epoch import AbortOutcome, Approval, Epoch, EpochState
from epochline.protocol.waking import is_abandoned
from tests.contract.operators import ORDER, act, preview_of, refusal_of, refused_plan, written
from tests.contract.worlds import World, bad_record, orders, quarantined, run
from tests.driver import epoch_of

OTHER = Request(actor="grace@there", reason="looked at it as well")
SAID = "15 rows staged, at most 14 expected"


def bounded(world: World, **bounds: Any) -> None:
    world.pipeline = orders(bounds=Bounds(**{"most_rows": 14, **bounds}))


def waiting(world: World) -> Epoch:
    """Epoch 1, sealed and outside."""
    bounded(world)
    world.to_sealed()
    return world.epoch(1)


def restaged(world: World) -> None:
    """Epoch 1 is aborted, and its run stages it again."""
    act(world, "abort", epoch=1)
    world.to_sealed()
    assert world.epoch(1).attempt == 2


def decided(epoch: Epoch) -> tuple[str | None, str | None, str | None]:
    return epoch.approval, epoch.decided_by, epoch.decided_reason


def test_an_epoch_inside_its_bounds_commits_by_itself(world: World) -> None:
    bounded(world, most_rows=15)

    world.to_committed()

    assert len(world.visible()) == 15
    assert (world.epoch(1).approval, world.epoch(1).outside) == (Approval.INSIDE, None)


def test_an_epoch_without_bounds_has_no_verdict(world: World) -> None:
    world.to_committed()

    assert (world.epoch(1).approval, world.epoch(1).judged_attempt) == (None, None)


def test_an_epoch_outside_waits_and_nothing_of_it_is_visible(world: World) -> None:
    """U10, INV-6: no commit, no recovery, no janitor and no teardown makes it visible, or ends it, however long it waits."""
    epoch = waiting(world)
    assert (epoch.state, epoch.approval, epoch.outside) == (EpochState.PRE_COMMITTED, Approval.AWAITED, SAID)

    world.let_pass(timedelta(days=3).total_seconds())

    with pytest.raises(EpochAwaitsApprovalError, match=f"{SAID}.*epochline approve orders 1 --reason"):
        world.commit(1)
    refused_plan(world, "run-2", EpochAwaitsApprovalError, SAID)
    assert world.plan("run-1").outcome is PlanOutcome.PRE_COMMITTED
    assert world.begin(1) is None
    tidy(world.ledger, run("janitor"), stale_after=timedelta(0), sleep=lambda _: None)
    assert world.abort() is AbortOutcome.LEFT_FOR_RECOVERY
    assert not is_abandoned(world.epoch(1))
    assert (world.epoch(1).state, decided(world.epoch(1))) == (EpochState.PRE_COMMITTED, (Approval.AWAITED, None, None))
    assert (world.visible(), world.heads()) == ([], {0: 0, 1: 0})


@pytest.mark.parametrize("by", ["its run", "the next run"])
def test_an_approved_epoch_is_committed_by_its_run_or_the_next_one(world: World, by: str) -> None:
    waiting(world)

    done = act(world, "approve", epoch=1)

    assert (done.row.actor, done.row.reason, done.row.epoch_id) == (ORDER.actor, ORDER.reason, 1)
    assert done.row.before == {"state": "PRE_COMMITTED", "attempt": 1, "approval": "awaited"}
    assert world.visible() == []
    if by == "its run":
        world.commit(1)
    else:
        world.plan("run-2")
    assert len(world.visible()) == 15
    assert decided(world.epoch(1)) == (Approval.APPROVED, ORDER.actor, ORDER.reason)
    assert written(world) == [("approve", ORDER.actor, ORDER.reason, 1)]
    assert world.commit(1).epoch.state is EpochState.COMMITTED


def test_a_waiting_epoch_that_is_aborted_leaves_nothing_and_its_range_is_read_again(world: World) -> None:
    """INV-7."""
    waiting(world)

    act(world, "abort", epoch=1)

    assert (world.visible(), world.heads(), world.left_over()) == ([], {0: 0, 1: 0}, 0)
    assert refusal_of(world, "approve", epoch=1).startswith("epoch 1 of orders is aborted (")
    world.pipeline = orders()
    world.to_committed("run-2")
    assert len(world.visible()) == 15


def test_an_approval_counts_for_nothing_once_the_epoch_is_staged_again(world: World) -> None:
    """U10: the worst outcome is a value that nobody approved. An operator may still abort what is approved."""
    waiting(world)
    act(world, "approve", epoch=1)

    restaged(world)

    assert decided(world.epoch(1)) == (Approval.AWAITED, None, None)
    with pytest.raises(EpochAwaitsApprovalError):
        world.commit(1)
    assert world.visible() == []


def test_an_approval_of_what_was_shown_does_not_reach_a_later_attempt(world: World) -> None:
    """An operator looks at attempt 1, and answers when attempt 2 waits."""
    waiting(world)
    action = ACTIONS["approve"]
    assert isinstance(action, DirectAction)
    shown = preview_of(world, "approve", epoch=1)
    restaged(world)

    with pytest.raises(ActionRefusedError, match="attempt 2 awaits approval now, not attempt 1"):
        action.act(world.subject, action.pinned(action.parse({"epoch": 1}), shown), ORDER)

    assert world.epoch(1).approval == Approval.AWAITED


@pytest.mark.parametrize(("first", "second"), [("approve", "approve"), ("approve", "abort"), ("abort", "approve")])
def test_of_two_who_decide_at_once_one_wins_and_the_other_is_told(world: World, first: str, second: str) -> None:
    """Both have seen that the epoch waits."""
    waiting(world)
    late = ACTIONS[second]
    assert isinstance(late, DirectAction)
    parameters = late.pinned(late.parse({"epoch": 1}), preview_of(world, second, epoch=1))

    act(world, first, epoch=1)

    told = f"{ORDER.actor} approved it at" if first == "approve" else "is aborted"
    with pytest.raises(ActionRefusedError, match=told):
        late.act(world.subject, parameters, OTHER)
    assert [row[:2] for row in written(world)] == [(first, ORDER.actor)]
    expected = EpochState.PRE_COMMITTED if first == "approve" else EpochState.ABORTED
    assert world.epoch(1).state is expected


@pytest.mark.parametrize("prepare", [World.to_planned, World.to_committed])
def test_what_does_not_wait_cannot_be_approved(world: World, prepare: Callable[[World], object]) -> None:
    prepare(world)

    assert "awaits no approval" in refusal_of(world, "approve", epoch=1)


def test_an_epoch_without_a_verdict_is_never_committed_where_bounds_are_declared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a seal had forgotten it: the commit asks for it in its own transaction."""
    bounded(world, most_rows=15)
    with monkeypatch.context() as patched:
        patched.setattr(import_module("epochline.coordinator.seal"), "verdict_of", lambda *_: None)
        world.to_sealed()

    with pytest.raises(EpochStateError, match="nobody judged what attempt 1 staged"):
        world.commit(1)
    with pytest.raises(EpochStateError, match="nobody judged"):
        world.plan("run-2")
    assert world.visible() == []


def test_an_epoch_outside_is_aborted_where_the_declaration_says_so(world: World) -> None:
    bounded(world, outside="abort")
    planned, ticket = world.to_staged()

    with pytest.raises(OutsideBoundsError, match=SAID) as raised:
        world.seal(ticket)

    assert not raised.value.retryable
    assert world.epoch(1).state is EpochState.PLANNED
    world.abort()
    world.pipeline = orders(bounds=Bounds(most_rows=15, outside="abort"))
    assert epoch_of(world.to_committed("run-2")).epoch_id > epoch_of(planned).epoch_id
    assert len(world.visible()) == 15


def test_bounds_that_change_while_an_epoch_waits_are_those_of_its_plan(world: World) -> None:
    """A declaration that is widened afterwards approves nothing by itself."""
    waiting(world)

    world.pipeline = orders()

    with pytest.raises(EpochAwaitsApprovalError):
        world.plan("run-2")


def test_a_requeue_is_judged_by_its_shares_and_not_by_its_size(world: World) -> None:
    quarantined(world)
    world.pipeline = orders(bounds=Bounds(least_rows=3, most_quarantined=0.4))
    planned = world.order("requeue", ORDER, "run-2", everything=True)
    ticket = world.attempt(planned, "run-2")
    good = {"value": "again", "_topic": "orders", "_partition": 0, "_offset": 2, "_row": 0}
    seen = PartitionCounts(
        received=2, passed=1, skipped=0, quarantined=1, first_offset=2, last_offset=3, digest=1
    )  # fmt: skip
    rows = {"orders": [good], QUARANTINE: [bad_record(3, "still bad")]}
    assert world.writer.part(ticket, 0, rows, {("orders", 0): seen})
    assert world.writer.end(ticket)

    world.seal(ticket, "run-2")

    assert world.epoch(2).outside == "1 of 2 records quarantined (50.00%), at most 40 % expected"
    act(world, "approve", epoch=2)
    world.commit(2)
    assert len(world.visible()) == 14
