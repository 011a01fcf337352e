"""Watermarks and windows: what is late, what closes, and that neither goes back."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.declare.event_time import (
    EventTime,
    PartitionTime,
    Session,
    Sliding,
    Tumbling,
    Window,
    closed,
    forgotten,
    watermark,
)
from epochline.errors import DeclarationError

T0 = datetime(2026, 3, 1, tzinfo=UTC)
NOW = datetime(2026, 5, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def read(seconds: float | None, ago: float = 0) -> PartitionTime:
    if seconds is None:
        return PartitionTime()
    return PartitionTime(newest=at(seconds), read_at=NOW - timedelta(seconds=ago))


TWO_LATE = EventTime(column="at", out_of_orderness=timedelta(seconds=2))
MINUTE_IDLE = EventTime(column="at", out_of_orderness=timedelta(seconds=2), idle_after=timedelta(minutes=1))


def test_the_watermark_is_that_of_the_slowest_partition() -> None:
    """E11: out-of-orderness 2 s."""
    assert watermark(TWO_LATE, {0: read(9), 1: read(7)}, None, NOW) == at(5)


def test_a_partition_without_a_record_holds_the_watermark_back_for_ever() -> None:
    """X22: nobody knows what a silent partition will bring."""
    assert watermark(TWO_LATE, {0: read(9), 1: read(None)}, None, NOW) is None
    assert watermark(TWO_LATE, {0: read(9), 1: read(None)}, at(1), NOW) == at(1)


def test_an_idle_partition_holds_nothing_back_and_while_all_are_idle_the_clock_goes_on() -> None:
    assert watermark(MINUTE_IDLE, {0: read(9), 1: read(3, ago=60), 2: read(None)}, None, NOW) == at(7)
    assert watermark(MINUTE_IDLE, {0: read(9), 1: read(3, ago=59)}, None, NOW) == at(1)
    assert watermark(MINUTE_IDLE, {0: read(9, ago=100), 1: read(3, ago=70)}, None, NOW) == at(9 + 100 - 2)
    assert watermark(MINUTE_IDLE, {0: read(None)}, None, NOW) is None, "nothing is known before the first record"
    assert watermark(MINUTE_IDLE, {}, None, NOW) is None


moments = st.none() | st.floats(0, 1000).map(at)


def test_a_partition_with_unread_records_is_never_idle() -> None:
    """E11: what waits there may have any time that the partition's newest record allows."""
    waiting, unseen = replace(read(3, ago=600), unread=True), PartitionTime(unread=True)

    assert watermark(MINUTE_IDLE, {0: read(9), 1: waiting}, None, NOW) == at(1)
    assert watermark(MINUTE_IDLE, {0: read(9), 1: unseen}, at(0), NOW) == at(0)
    assert watermark(MINUTE_IDLE, {0: read(9, ago=600), 1: waiting}, None, NOW) == at(1), "the clock waits as well"


@given(
    was=moments,
    partitions=st.dictionaries(st.integers(0, 3), st.builds(read, st.none() | st.floats(0, 1000), st.floats(0, 200))),
    declared=st.sampled_from([TWO_LATE, MINUTE_IDLE]),
)
def test_a_watermark_never_goes_back(
    was: datetime | None, partitions: dict[int, PartitionTime], declared: EventTime
) -> None:
    now = watermark(declared, partitions, was, NOW)

    assert was is None or (now is not None and now >= was)


@given(first=moments, second=moments)
def test_the_newest_record_of_a_partition_is_kept_whatever_comes_later(
    first: datetime | None, second: datetime | None
) -> None:
    later = NOW + timedelta(hours=1)

    one = PartitionTime().and_then(first, NOW).and_then(second, later)

    assert one.newest == max((moment for moment in (first, second) if moment is not None), default=None)
    assert one.read_at == (later if second is not None else NOW if first is not None else None)


def test_windows_are_aligned_and_half_open_and_a_session_waits_for_the_gap() -> None:
    assert Tumbling(size=5).of(at(4.999)) == (Window(at(0), at(5)),)
    assert Tumbling(size=5).of(at(5)) == Sliding(size=5, slide=5).of(at(7)) == (Window(at(5), at(10)),)
    assert Sliding(size=10, slide=5).of(at(7)) == (Window(at(0), at(10)), Window(at(5), at(15)))
    assert Session(gap=30).of(at(7)) == (Window(at(7), at(37)),)


@given(seconds=st.floats(-1e6, 1e6), size=st.integers(1, 100), parts=st.integers(1, 10))
def test_every_window_of_a_moment_holds_it_and_none_is_left_out(seconds: float, size: int, parts: int) -> None:
    moment, sliding = at(seconds), Sliding(size=size * parts, slide=size)

    windows = sliding.of(moment)

    assert all(one.start <= moment < one.end for one in windows)
    assert len(windows) == parts


def test_a_slide_longer_than_the_window_is_refused() -> None:
    with pytest.raises(DeclarationError, match="records between two windows would belong to none"):
        Sliding(size=5, slide=6)


def test_a_window_closes_when_the_watermark_reaches_its_end_and_is_forgotten_a_lateness_later() -> None:
    """E11: t = 6 must not close [0, 5) at 2 s of out-of-orderness, t = 7 does. E5: 5 s of lateness after that."""
    window, lateness = Window(at(0), at(5)), timedelta(seconds=5)

    assert not closed(window, at(6 - 2))
    assert closed(window, at(7 - 2))
    assert not closed(window, None)
    assert not forgotten(window, at(9.9), lateness)
    assert forgotten(window, at(10), lateness)
    assert not forgotten(window, None, lateness)
