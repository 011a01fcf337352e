"""How often a pipeline may be woken."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.protocol.epoch import Counts, Epoch, EpochKind, EpochState, Run
from epochline.protocol.planning import adapted_limit, missed_interval
from epochline.protocol.waking import FIRST_PATIENCE, MOST_PATIENCE, Restraint

FIRST, MOST = FIRST_PATIENCE.total_seconds(), MOST_PATIENCE.total_seconds()


@pytest.fixture
def restraint() -> Restraint:
    """Of a pipeline with an interval of ten seconds, woken once at second 0, after epoch 7."""
    one = Restraint(timedelta(seconds=10))
    assert one.admits(7, 0)
    one.woken(7, 0)
    return one


def test_a_waking_that_led_to_an_epoch_is_followed_by_one_after_the_interval(restraint: Restraint) -> None:
    assert not restraint.admits(8, 9.9)
    assert restraint.admits(8, 10)


def test_wakings_that_lead_to_no_epoch_become_rare(restraint: Restraint) -> None:
    """A full sink, a lost log or a scheduler that is down must not pile up runs."""
    now, pauses = 0.0, []
    for _ in range(6):
        begun = now
        while not restraint.admits(7, now):
            now += 1
        restraint.woken(7, now)
        pauses.append(now - begun)

    assert pauses == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, MOST, MOST]
    assert restraint.admits(8, now + 10), "an epoch came of it"


def test_a_long_interval_is_kept_in_any_case() -> None:
    restraint = Restraint(timedelta(hours=1))
    restraint.woken(1, 0)

    assert not restraint.admits(1, 3599)
    assert restraint.admits(1, 3600)


MOST_RECORDS = 1_000_000
TARGET = timedelta(seconds=30)
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def committed(records: int, seconds: float, limit: int | None = MOST_RECORDS, attempt: int = 1) -> Epoch:
    return Epoch(
        pipeline="p", epoch_id=7, generation=1, state=EpochState.COMMITTED, attempt=attempt, kind=EpochKind.REGULAR,
        run=Run(dag_id="p", run_id="r", host="h"), declaration_hash="", lease_expired=False, planned_at=BEGUN,
        committed_at=BEGUN + timedelta(seconds=seconds), counts=Counts(read=records), record_limit=limit,
    )  # fmt: skip


def limits(seconds: Callable[[int], float], epochs: int, first: int = MOST_RECORDS) -> list[int]:
    found = [first]
    for _ in range(epochs):
        found.append(adapted_limit(MOST_RECORDS, TARGET, committed(found[-1], seconds(found[-1]), found[-1])))
    return found


@given(fixed=st.floats(0, 20), each=st.floats(1e-5, 1e-3), first=st.integers(1, MOST_RECORDS))
def test_the_limit_settles_where_an_epoch_takes_the_target(fixed: float, each: float, first: int) -> None:
    settled = limits(lambda records: fixed + each * records, 40, first)[-1]

    wanted = (TARGET.total_seconds() - fixed) / each
    assert settled == pytest.approx(min(MOST_RECORDS, max(MOST_RECORDS // 100, wanted)), rel=0.05)


def test_a_table_that_becomes_slow_and_fast_again_is_followed() -> None:
    slow = limits(lambda records: records / 2_000, 4)
    fast = limits(lambda records: records / 100_000, 4, slow[-1])

    assert slow[-1] == 60_000
    assert fast == [60_000, 240_000, 960_000, MOST_RECORDS, MOST_RECORDS]


def test_a_target_below_the_start_of_spark_leaves_a_hundredth_of_the_declared_limit() -> None:
    assert limits(lambda records: 60, 20)[-1] == MOST_RECORDS // 100


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (None, MOST_RECORDS),
        (committed(5, 12, limit=80_000), 80_000),
        (committed(80_000, 12, limit=80_000), 200_000),
        (committed(40_000, 60, limit=80_000), 20_000),
        (committed(80_000, 3600, limit=80_000, attempt=2), 80_000),
        (committed(0, 0, limit=None), MOST_RECORDS),
        (committed(MOST_RECORDS, 0), MOST_RECORDS),
    ],
    ids=["first epoch", "little to read", "in time", "late", "several attempts", "no limit before", "at once"],
)
def test_each_kind_of_newest_epoch_gives_a_limit(newest: Epoch | None, expected: int) -> None:
    assert adapted_limit(MOST_RECORDS, TARGET, newest) == expected


@given(records=st.integers(0, 10**9), seconds=st.floats(0, 1e6), most=st.integers(1, 10**7))
def test_no_epoch_leads_out_of_the_declared_limits(records: int, seconds: float, most: int) -> None:
    assert max(1, most // 100) <= adapted_limit(most, TARGET, committed(records, seconds)) <= most


def test_an_interval_that_was_not_kept_is_named_with_its_epoch() -> None:
    said = missed_interval(timedelta(seconds=10), committed(1, 42.31))

    assert said == "the interval of 10 s was not kept: epoch 7 of p took 42.3 s from its plan to its commit"
    assert missed_interval(timedelta(seconds=43), committed(1, 42.31)) is None
    assert missed_interval(timedelta(seconds=1), None) is None
