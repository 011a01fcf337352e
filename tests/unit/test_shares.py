"""How the ranges of an epoch are shared among the tasks that read them."""

from hypothesis import given
from hypothesis import strategies as st

from epochline.protocol.offsets import OffsetRange, PlannedRange, TopicPartition
from epochline.protocol.planning import shared


def planned(partition: int, start: int, until: int) -> PlannedRange:
    tp = TopicPartition(topic="t", partition=partition, topic_id="id")
    return PlannedRange(tp=tp, range=OffsetRange(start=start, until=until))


def test_a_large_partition_is_cut_and_small_ones_are_read_by_one_task() -> None:
    ranges = [planned(0, 10, 20), planned(1, 0, 2), planned(2, 5, 7)]

    first, second = shared(ranges, 2)

    assert first == (planned(0, 10, 17),)
    assert second == (planned(0, 17, 20), planned(1, 0, 2), planned(2, 5, 7))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=8),
    st.integers(1, 12),
)
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
