"""The state machine is one table; every pair of states is allowed by it or refused."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from epochline.errors import EpochStateError
from epochline.protocol.epoch import NEXT, UNFINISHED, Attempt, AttemptState, Counts, Epoch, EpochKind, EpochState, Run

ALLOWED = {
    (EpochState.PLANNED, EpochState.PRE_COMMITTED),
    (EpochState.PLANNED, EpochState.ABORTED),
    (EpochState.PRE_COMMITTED, EpochState.COMMITTED),
    (EpochState.PRE_COMMITTED, EpochState.ABORTED),
    (EpochState.ABORTED, EpochState.PLANNED),
}
RUN = Run(dag_id="orders", run_id="run-1", host="here")


def epoch(state: EpochState) -> Epoch:
    return Epoch(
        pipeline="orders", epoch_id=7, generation=1, state=state, attempt=1, kind=EpochKind.REGULAR, run=RUN,
        declaration_hash="0", lease_expired=False, planned_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


@pytest.mark.parametrize("after", EpochState, ids=str.lower)
@pytest.mark.parametrize("before", EpochState, ids=str.lower)
def test_a_transition_is_allowed_by_the_table_or_refused(before: EpochState, after: EpochState) -> None:
    if (before, after) in ALLOWED:
        assert epoch(before).to(after) is after
        return

    with pytest.raises(EpochStateError, match=f"epoch 7 of orders: is {before} and cannot become {after}"):
        epoch(before).to(after)


def test_the_table_names_every_state_nothing_leaves_committed_and_the_unfinished_ones_can_be_finished() -> None:
    """INV-7: a committed epoch changes no more."""
    assert set(NEXT) == set(EpochState)
    assert NEXT[EpochState.COMMITTED] == frozenset()
    assert {state for state in EpochState if EpochState.ABORTED in NEXT[state]} == UNFINISHED


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        pytest.param({}, True, id="the same run"),
        pytest.param({"host": "elsewhere"}, True, id="cleared and moved to another host"),
        pytest.param({"run_id": "run-2"}, False, id="another run"),
        pytest.param({"dag_id": "returns"}, False, id="another dag"),
    ],
)
def test_an_epoch_belongs_to_the_run_that_planned_it(changes: dict[str, str], own: bool) -> None:
    assert epoch(EpochState.PLANNED).belongs_to(replace(RUN, **changes)) is own


def test_counts_of_partitions_add_up() -> None:
    one, other = Counts(read=3, passed=1, skipped=1, quarantined=1), Counts(read=2, passed=2)

    assert one + other == Counts(read=5, passed=3, skipped=1, quarantined=1)


def test_sessions_of_an_attempt_are_found_by_a_name_that_postgresql_does_not_cut() -> None:
    """Fencing ends them by ``application_name``, which holds 63 bytes."""
    attempt = Attempt(
        attempt_id=2**63 - 1, pipeline="p", epoch_id=1, number=1, token="0198a8f0-0000-7000-8000-000000000001",
        state=AttemptState.RUNNING,
    )  # fmt: skip

    assert len(attempt.application_name.encode()) <= 63
    assert attempt.application_name == f"epochline:{2**63 - 1}:0198a8f0"
