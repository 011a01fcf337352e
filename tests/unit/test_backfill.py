"""Where an interval lies in a partition, by properties: what is committed, what is early, what is before the origin."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.protocol.epoch import Interval
from epochline.protocol.offsets import Head, OffsetRange
from epochline.protocol.planning import IntervalOffsets, PartOfInterval, next_ranges, parts_of
from tests.unit.partitions import tp, view

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
