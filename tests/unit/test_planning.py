"""Which ranges come next, by properties: limits, order, bounds."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from epochline.protocol.offsets import TopicPartition
from epochline.protocol.planning import next_ranges, share_limit
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
