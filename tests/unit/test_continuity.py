"""Whether a log is still the one that was read: what is said of each way to lose records (I11)."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.errors import DataLossError
from epochline.protocol.data_loss import check_not_truncated, check_same_log
from epochline.protocol.offsets import Head
from epochline.protocol.planning import PartitionView
from tests.unit.partitions import head, tp, view


@given(first=st.integers(0, 1000), origin=st.integers(0, 1000), end=st.integers(0, 1000))
def test_a_head_inside_the_log_is_accepted_and_any_other_is_refused(first: int, origin: int, end: int) -> None:
    """I11: a head at the end of the log is inside, one beyond it is not."""
    start, end = min(first, end), max(first, end)
    inside = start <= origin <= end

    with nullcontext() if inside else pytest.raises(DataLossError, match="Nothing was planned"):
        check_same_log("p", [head(tp(), origin)], [view(tp(), start, end)])


ONE, TWO = [head(tp(), 5)], [head(tp(0), 5), head(tp(1), 6)]
FEWER = (
    r"orders-1, committed up to offset 6 \(6 offsets were committed\)\..*with fewer\. The new one holds 10"
    r" offsets in 1 partition\..*`epochline adopt-topic p orders --reason …`$"
)
VOID = (
    r"offset 5 of partition 0; offset 6 of partition 1 now means another record\. 11 offsets of the old topic were"
    r" committed;.*The new topic holds 20 offsets in 2 partitions\."
)


@pytest.mark.parametrize(
    ("heads", "seen", "said"),
    [
        (ONE, [], "no longer has the partition"),
        (ONE, [view(tp(topic_id="other"))], "deleted and made again .its id was id, is now other"),
        (ONE, [view(tp(), 7, 10)], r"retention passed the head of orders-0: offsets \[5, 7\), 2 of"),
        (ONE, [view(tp(), 0, 3)], "ends at 3: 2 offsets that were read have been truncated"),
        (TWO, [view(tp(0))], FEWER),
        (TWO, [], r"orders-0, .* 5; orders-1, .* 6 \(11 offsets were .*Remove the topic from the declaration"),
        (TWO, [view(tp(number, topic_id="other")) for number in range(2)], VOID),
    ],
    ids=["partition gone", "made again", "retention", "truncated", "fewer partitions", "both gone", "void heads"],
)
def test_another_log_is_refused_with_what_is_gone_and_what_to_do(
    heads: list[Head], seen: list[PartitionView], said: str
) -> None:
    """I11: never a silent reset. The topic's id need not be known to see that its partitions are fewer."""
    with pytest.raises(DataLossError, match=said):
        check_same_log("p", heads, seen)


def test_a_head_above_the_last_stable_offset_but_within_the_log_is_no_loss() -> None:
    """S13: an open transaction may hold the last stable offset below a head that was read before it."""
    check_same_log("p", [head(tp(), 8)], [view(tp(), 0, 5, high_watermark=10)])


def test_two_partitions_are_named_with_their_offsets_and_more_of_them_as_ranges_with_the_sum() -> None:
    """I11: an operator who declares the loss knows its size."""
    heads = [head(tp(number), 5) for number in range(3)]
    views = [view(tp(0), 7, 10), view(tp(1), 5, 10), view(tp(2), 9, 10)]

    with pytest.raises(DataLossError) as caught:
        check_same_log("p", heads, views)

    said = str(caught.value)
    assert "orders-0: offsets [5, 7), 2 of them" in said
    assert "orders-2: offsets [5, 9), 4 of them" in said
    assert "orders-1" not in said
    assert "(6 offsets in all)" in said
    assert "`epochline declare-loss p --reason …`" in said
    heads = [head(tp(number), 5) for number in range(30)]
    with pytest.raises(DataLossError, match=r"the heads of partitions 0-29 of orders: 60 offsets are gone"):
        check_same_log("p", heads, [view(tp(number), 7, 10) for number in range(30)])


def led(number: int, offset: int) -> Head:
    return head(tp(number), offset, leader_epoch=3)


@pytest.mark.parametrize("end", [10, 11, 50], ids=["at the head", "one beyond", "far beyond"])
def test_a_new_leader_that_has_all_that_was_read_is_no_loss(end: int) -> None:
    check_not_truncated("p", [led(0, 10), led(1, 99)], {tp(0): end})


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            8,
            "orders-0 is committed up to offset 10, but the records of leader epoch 3 now end at 8 .*: 2 offsets that"
            " were read have been truncated.*`epochline adopt-topic p orders --reason …`",
        ),
        (None, "its log no longer has leader epoch 3 or a later one: offsets that were read"),
    ],
    ids=["grown again", "older leaders alone"],
)
def test_a_log_that_lost_what_was_read_stops_the_pipeline(end: int | None, said: str) -> None:
    """I11: by offsets alone nothing is wrong."""
    with pytest.raises(DataLossError, match=said):
        check_not_truncated("p", [led(0, 10), led(1, 10)], {tp(0): end, tp(1): 10})
