"""Which ranges come next, how many records they have, how tasks share them, and how often records may wake a pipeline."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.protocol.epoch import Counts, Epoch, EpochKind, EpochState, Interval, Run
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange, TopicPartition
from epochline.protocol.planning import (
    IntervalOffsets,
    PartOfInterval,
    adapted_limit,
    missed_interval,
    next_ranges,
    parts_of,
    share_limit,
    shared,
)
from epochline.protocol.waking import FIRST_PATIENCE, MOST_PATIENCE, Restraint
from tests.unit.partitions import head, tp, view

partitions = st.integers(0, 30)

Backlog = tuple[dict[TopicPartition, int], list[TopicPartition]]


@st.composite
def backlogs(draw: st.DrawFn) -> Backlog:
    waiting = draw(st.dictionaries(partitions.map(tp), st.integers(1, 10**6), min_size=1, max_size=12))
    return waiting, draw(st.permutations(sorted(waiting)))


@given(backlog=backlogs(), limit=st.integers(1, 20) | st.integers(1, 10**7))
def test_shares_add_up_to_the_limit_and_none_exceeds_its_backlog(backlog: Backlog, limit: int) -> None:
    """B1: no lagging partition is left out if the limit allows one offset each, and none gets a clearly smaller share
    than a smaller backlog."""
    waiting, order = backlog

    shares = share_limit(waiting, limit, order)

    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(1 <= share <= waiting[one] for one, share in shares.items())
    if limit >= len(waiting):
        assert set(shares) == set(waiting)
        for one, other in itertools.permutations(waiting, 2):
            assert waiting[one] <= waiting[other] or shares[one] >= shares[other] - 1


@given(backlog=backlogs(), data=st.data())
def test_with_a_smaller_limit_those_that_waited_longest_go_first(backlog: Backlog, data: st.DataObject) -> None:
    waiting, order = backlog
    limit = data.draw(st.integers(1, len(waiting)))
    expected = waiting if limit >= sum(waiting.values()) else order[:limit]

    assert set(share_limit(waiting, limit, order)) == set(expected)


@given(backlog=backlogs(), limit=st.integers(1, 10**6), data=st.data())
def test_a_backlog_is_shared_the_same_however_it_is_listed(backlog: Backlog, limit: int, data: st.DataObject) -> None:
    """A plan that is tried again gives the same ranges."""
    waiting, order = backlog
    shuffled = {one: waiting[one] for one in data.draw(st.permutations(list(waiting)))}

    assert share_limit(waiting, limit, order) == share_limit(shuffled, limit, order)


@given(
    logs=st.dictionaries(partitions, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=10),
    limit=st.none() | st.integers(1, 3000),
)
def test_ranges_go_from_each_head_to_the_last_stable_offset_at_most(
    logs: dict[int, tuple[int, int]], limit: int | None
) -> None:
    """INV-1, C2, S7: never beyond the last stable offset, never an empty range, sorted."""
    heads = [head(tp(number), next_offset=first) for number, (first, _) in logs.items()]
    views = [
        view(tp(number), end=first + more, high_watermark=first + more + 7) for number, (first, more) in logs.items()
    ]

    ranges = next_ranges(heads, views, limit=limit)

    total = sum(more for _, more in logs.values())
    assert [one.tp for one in ranges] == sorted(one.tp for one in ranges)
    assert sum(len(one.range) for one in ranges) == (total if limit is None else min(limit, total))
    for one in ranges:
        first, more = logs[one.tp.partition]
        assert one.range.start == first
        assert one.range.until <= first + more
        assert one.leader_epoch == 3


def test_a_partition_never_read_goes_before_one_read_long_ago_and_that_before_a_recent_one() -> None:
    heads = [head(tp(0), 5, epoch_id=9), head(tp(1), 5, epoch_id=2), head(tp(2), 0)]
    views = [view(tp(number)) for number in range(3)]

    assert [one.tp.partition for one in next_ranges(heads, views, limit=1)] == [2]
    assert [one.tp.partition for one in next_ranges(heads, views, limit=2)] == [1, 2]


def test_a_backfill_bound_ends_a_range_and_a_partition_without_one_is_not_read() -> None:
    """U3: a range never goes beyond the interval's end, nor beyond the last stable offset."""
    heads = [head(tp(number), 2) for number in range(4)]
    views = [view(tp(number)) for number in range(4)]

    ranges = next_ranges(heads, views, bounds={tp(0): 7, tp(1): 99, tp(2): 1})

    assert [str(one) for one in ranges] == ["orders-0[2, 7)", "orders-1[2, 10)"]


def test_a_head_whose_partition_kafka_does_not_show_is_not_read() -> None:
    assert next_ranges([head(tp(0))], []) == []


def planned(partition: int, start: int, until: int) -> PlannedRange:
    tp = TopicPartition(topic="t", partition=partition, topic_id="id")
    return PlannedRange(tp=tp, range=OffsetRange(start=start, until=until))


def test_a_large_partition_is_cut_and_small_ones_are_read_by_one_task() -> None:
    ranges = [planned(0, 10, 20), planned(1, 0, 2), planned(2, 5, 7)]

    first, second = shared(ranges, 2)

    assert first == (planned(0, 10, 17),)
    assert second == (planned(0, 17, 20), planned(1, 0, 2), planned(2, 5, 7))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=8), st.integers(1, 12))
def test_every_offset_is_read_by_exactly_one_task_and_shares_differ_by_one_at_most(
    sizes: list[tuple[int, int]], tasks: int
) -> None:
    """INV-3: what tasks read is the planned range, however many they are."""
    ranges = [planned(partition, start, start + size) for partition, (start, size) in enumerate(sizes)]

    shares = shared(ranges, tasks)

    def offsets(one: PlannedRange) -> list[tuple[int, int]]:
        return [(one.tp.partition, at) for at in range(one.range.start, one.range.until)]

    wanted = [place for one in ranges for place in offsets(one)]
    assert [place for share in shares for one in share for place in offsets(one)] == wanted
    assert len(shares) == min(tasks, len(wanted))
    counts = [sum(len(one.range) for one in share) for share in shares]
    assert max(counts, default=1) - min(counts, default=1) <= 1
    assert min(counts, default=1) > 0


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
INTERVAL = Interval(start=NOON, until=NOON + timedelta(hours=1))
TP = tp()


def part(head: Head, start: int | None, until: int | None, end: int = 100) -> PartOfInterval:
    offsets = IntervalOffsets(interval=INTERVAL, starts={TP: start}, untils={TP: until})
    [only] = parts_of([head], [view(TP, end=end)], offsets)
    return only


@pytest.mark.parametrize(
    ("origin", "head", "start", "until", "expected"),
    [
        pytest.param(0, 10, 20, 30, ("-", "-", "[10, 20)"), id="ahead of the head"),
        pytest.param(0, 20, 20, 30, ("-", "-", "-"), id="at the head"),
        pytest.param(0, 25, 20, 30, ("-", "[20, 25)", "-"), id="around the head"),
        pytest.param(0, 50, 20, 30, ("-", "[20, 30)", "-"), id="behind the head"),
        pytest.param(40, 50, 20, 30, ("[20, 30)", "-", "-"), id="before the origin"),
        pytest.param(25, 50, 20, 30, ("[20, 25)", "[25, 30)", "-"), id="around the origin"),
        pytest.param(40, 40, 20, 60, ("[20, 40)", "-", "-"), id="around an origin that is the head"),
        pytest.param(0, 50, 20, 20, ("-", "-", "-"), id="without a record"),
        pytest.param(0, 50, None, None, ("-", "-", "[50, 100)"), id="after the last record"),
        pytest.param(0, 50, 20, None, ("-", "[20, 50)", "-"), id="up to the last record"),
    ],
)
def test_an_interval_is_divided_at_origin_and_head(
    origin: int, head: int, start: int | None, until: int | None, expected: tuple[str, str, str]
) -> None:
    """INV-1, Triggers."""
    one = part(Head(tp=TP, origin=origin, next_offset=head), start, until)

    assert (str(one.before_origin or "-"), str(one.committed or "-"), str(one.early or "-")) == expected


def offsets(found: OffsetRange | None) -> set[int]:
    return set() if found is None else set(range(found.start, found.until))


@given(numbers=st.lists(st.integers(0, 50), min_size=4, max_size=4), end=st.integers(0, 50))
def test_the_parts_and_the_next_range_never_overlap_and_leave_nothing_of_the_interval_out(
    numbers: list[int], end: int
) -> None:
    """INV-8: the interval decides where a range ends, and nothing else."""
    origin, head = sorted(numbers[:2])
    start, until = sorted(numbers[2:])
    heads = [Head(tp=TP, origin=origin, next_offset=head)]
    one = part(heads[0], start, until, end=end)

    ranges = next_ranges(heads, [view(TP, end=end, high_watermark=max(end, head))], bounds={TP: one.until})

    read = offsets(ranges[0].range) if ranges else set()
    interval = set(range(start, min(until, end)))
    assert interval == offsets(one.before_origin) | offsets(one.committed) | (read & interval)
    assert not offsets(one.before_origin) & offsets(one.committed)
    assert not read & (offsets(one.before_origin) | offsets(one.committed))
    if read:
        assert read - interval == offsets(one.early)
        assert min(read) == head
        assert max(read) < min(until, end)


@pytest.mark.parametrize(
    ("start", "until", "said"),
    [
        (NOON, NOON, "needs start < until"),
        (NOON, NOON - timedelta(seconds=1), "needs start < until"),
        (NOON.replace(tzinfo=None), NOON, "need a time zone"),
    ],
    ids=["empty", "backward", "without a zone"],
)
def test_an_interval_that_says_nothing_is_refused(start: datetime, until: datetime, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Interval(start=start, until=until)


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
    """B1."""
    assert adapted_limit(MOST_RECORDS, TARGET, newest) == expected


@given(records=st.integers(0, 10**9), seconds=st.floats(0, 1e6), most=st.integers(1, 10**7))
def test_no_epoch_leads_out_of_the_declared_limits(records: int, seconds: float, most: int) -> None:
    assert max(1, most // 100) <= adapted_limit(most, TARGET, committed(records, seconds)) <= most


def test_an_interval_that_was_not_kept_is_named_with_its_epoch() -> None:
    """K8."""
    said = missed_interval(timedelta(seconds=10), committed(1, 42.31))

    assert said == "the interval of 10 s was not kept: epoch 7 of p took 42.3 s from its plan to its commit"
    assert missed_interval(timedelta(seconds=43), committed(1, 42.31)) is None
    assert missed_interval(timedelta(seconds=1), None) is None
