"""Whether a log is still the one that was read: what is said of each way to lose records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.errors import DataLossError
from epochline.protocol.data_loss import check_not_truncated, check_same_log
from epochline.protocol.planning import PartitionView
from tests.unit.partitions import head, tp, view


@given(first=st.integers(0, 1000), origin=st.integers(0, 1000), end=st.integers(0, 1000))
def test_a_head_inside_the_log_is_accepted_and_any_other_is_refused(first: int, origin: int, end: int) -> None:
    """A head at the end of the log is inside, one beyond it is not."""
    start, end = min(first, end), max(first, end)
    inside = start <= origin <= end

    if inside:
        check_same_log("p", [head(tp(), origin)], [view(tp(), start, end)])
        return
    with pytest.raises(DataLossError, match="Nothing was planned"):
        check_same_log("p", [head(tp(), origin)], [view(tp(), start, end)])


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        pytest.param([], "no longer has the partition", id="partition gone"),
        pytest.param(
            [view(tp(topic_id="other"))], "deleted and made again .its id was id, is now other", id="made again"
        ),
        pytest.param(
            [view(tp(), 7, 10)], r"retention passed the head of orders-0: offsets \[5, 7\), 2 of", id="retention"
        ),
        pytest.param([view(tp(), 0, 3)], "ends at 3: 2 offsets that were read have been truncated", id="truncated"),
    ],
)
def test_another_log_is_refused_with_what_is_gone_and_what_to_do(seen: list[PartitionView], said: str) -> None:
    """Never a silent reset."""
    with pytest.raises(DataLossError, match=said):
        check_same_log("p", [head(tp(), 5)], seen)


def test_a_head_above_the_last_stable_offset_but_within_the_log_is_no_loss() -> None:
    """An open transaction may hold the last stable offset below a head that was read before it."""
    check_same_log("p", [head(tp(), 8)], [view(tp(), 0, 5, high_watermark=10)])


def test_every_partition_is_named_with_its_offsets_and_their_sum() -> None:
    """An operator who declares the loss knows its size."""
    heads = [head(tp(number), 5) for number in range(3)]
    views = [view(tp(0), 7, 10), view(tp(1), 5, 10), view(tp(2), 9, 10)]

    with pytest.raises(DataLossError) as caught:
        check_same_log("p", heads, views)

    said = str(caught.value)
    assert "orders-0: offsets [5, 7), 2 of them" in said
    assert "orders-2: offsets [5, 9), 4 of them" in said
    assert "orders-1" not in said
    assert "(6 offsets in all)" in said
    assert "`epochline declare-loss p`" in said


def test_of_many_partitions_the_first_ten_are_named() -> None:
    heads = [head(tp(number), 5) for number in range(30)]

    with pytest.raises(DataLossError, match=r"orders-9: .*and 20 partitions more \(60 offsets in all\)"):
        check_same_log("p", heads, [view(tp(number), 7, 10) for number in range(30)])


def test_a_topic_with_fewer_partitions_was_made_again_and_one_that_is_gone_may_be_meant_to_be() -> None:
    """The topic's id need not be known for it."""
    heads = [head(tp(0), 5), head(tp(1), 6)]

    with pytest.raises(
        DataLossError,
        match=r"orders-1, committed up to offset 6 \(6 offsets were committed\)\..*with fewer: `epochline adopt-topic p"
        r" orders` goes on with the new one, which holds 10 offsets in 1 partition\.",
    ):
        check_same_log("p", heads, [view(tp(0))])
    with pytest.raises(
        DataLossError, match=r"orders-0, .* 5; orders-1, .* 6 \(11 offsets were .*or take it out of the declaration"
    ):
        check_same_log("p", heads, [])


def test_a_topic_made_again_names_every_head_that_it_makes_void() -> None:
    heads = [head(tp(0), 5), head(tp(1), 6)]
    views = [view(tp(number, topic_id="other")) for number in range(2)]

    with pytest.raises(
        DataLossError,
        match=r"offset 5 of partition 0; offset 6 of partition 1 now means another record\. 11 offsets of the old topic were"
        r" committed;.*which holds 20 offsets in 2 partitions\.",
    ):
        check_same_log("p", heads, views)


def _led(number: int, offset: int, leader_epoch: int = 3):
    return replace(head(tp(number), offset), leader_epoch=leader_epoch)


@pytest.mark.parametrize("end", [10, 11, 50], ids=["at the head", "one beyond", "far beyond"])
def test_a_new_leader_that_has_all_that_was_read_is_no_loss(end: int) -> None:
    check_not_truncated("p", [_led(0, 10), _led(1, 99)], {tp(0): end})


def test_a_log_that_lost_what_was_read_and_grew_again_stops_the_pipeline() -> None:
    """By offsets alone nothing is wrong."""
    with pytest.raises(
        DataLossError,
        match="orders-0 is committed up to offset 10, but what leader epoch 3 wrote now ends at 8 .*: 2 offsets that were"
        " read have been truncated.*`epochline adopt-topic p orders`",
    ):
        check_not_truncated("p", [_led(0, 10), _led(1, 10)], {tp(0): 8, tp(1): 10})


def test_a_log_whose_leaders_are_all_older_is_another_one() -> None:
    with pytest.raises(
        DataLossError, match="its log knows no leader epoch 3 or later any more: offsets that were read"
    ):
        check_not_truncated("p", [_led(0, 10)], {tp(0): None})
