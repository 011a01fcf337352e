"""Offsets: half-open ranges, whole chains and balances, whether a log is the one that was read, and where one begins."""

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epochline import FromGroup, FromOffsets, FromTimestamp
from epochline.errors import DataLossError, SourceError
from epochline.postgres.ledger.parts import counts_of, message_of
from epochline.protocol.balances import NOTHING_SEEN, PartitionCounts, add_up, unbalanced
from epochline.protocol.data_loss import check_not_truncated, check_same_log
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange
from epochline.protocol.origins import begun_by_startup, missing_origins
from tests.chains import chain_breaks
from tests.unit.partitions import head, tp, view

offsets = st.integers(min_value=0, max_value=2**62)
moments = st.datetimes(timezones=st.just(UTC))
tallies = st.integers(min_value=0, max_value=2**40)

Chain = list[tuple[int | None, int]]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    head = draw(st.integers(min_value=0, max_value=10**9))
    links: Chain = [(None, head)]
    for length in draw(st.lists(st.integers(min_value=1, max_value=10**6), min_size=1, max_size=20)):
        links.append((head, head + length))
        head += length
    return links


@st.composite
def counts(draw: st.DrawFn) -> PartitionCounts:
    passed, skipped, quarantined = draw(tallies), draw(tallies), draw(tallies)
    ends = sorted([draw(offsets), draw(offsets)]) if draw(st.booleans()) else [None, None]
    span = sorted([draw(moments), draw(moments)]) if draw(st.booleans()) else [None, None]
    return PartitionCounts(
        received=passed + skipped + quarantined, passed=passed, skipped=skipped, quarantined=quarantined,
        first_offset=ends[0], last_offset=ends[1], digest=draw(st.integers(min_value=0, max_value=2**64 - 1)),
        oldest_timestamp=span[0], newest_timestamp=span[1],
    )  # fmt: skip


def planned(start: int, until: int) -> PlannedRange:
    return PlannedRange(tp=tp(), range=OffsetRange(start=start, until=until))


def seen(one: PlannedRange, **changes: Any) -> PartitionCounts:
    full = PartitionCounts(
        received=len(one.range), passed=len(one.range), skipped=0, quarantined=0,
        first_offset=one.range.start, last_offset=one.range.until - 1, digest=0,
    )  # fmt: skip
    return replace(full, **changes)


@given(start=offsets, length=st.integers(min_value=1, max_value=2**40))
def test_a_range_holds_its_start_and_not_its_until(start: int, length: int) -> None:
    """S4, S6: the next epoch starts at ``until``, so two neighbours share no offset and leave none out."""
    until = start + length
    one = OffsetRange(start=start, until=until)

    assert (len(one), str(one)) == (length, f"[{start}, {until})")
    assert chain_breaks([(None, start), (start, until), (until, until + 1)]) == []


@given(start=st.integers(max_value=2**40), until=st.integers(max_value=2**40))
def test_a_range_that_is_empty_backward_or_negative_cannot_be_built(start: int, until: int) -> None:
    assume(not 0 <= start < until)

    with pytest.raises(ValueError, match="0 <= start < until"):
        OffsetRange(start=start, until=until)


@given(chain=chains(), data=st.data())
def test_a_chain_of_successive_epochs_is_whole_in_whatever_order_it_is_read(chain: Chain, data: st.DataObject) -> None:
    """INV-1."""
    assert chain_breaks(data.draw(st.permutations(chain))) == []


@given(chain=chains().filter(lambda links: len(links) > 2), data=st.data())
def test_a_missing_range_is_reported_as_a_gap(chain: Chain, data: st.DataObject) -> None:
    missing = chain.pop(data.draw(st.integers(min_value=1, max_value=len(chain) - 2)))

    assert chain_breaks(chain) == [f"gap at [{missing[0]}, {missing[1]})"]


@given(chain=chains(), data=st.data())
def test_a_range_committed_twice_is_reported_as_an_overlap(chain: Chain, data: st.DataObject) -> None:
    chain.append(data.draw(st.sampled_from(chain[1:])))

    assert any(said.startswith("overlap") for said in chain_breaks(chain))


@given(chain=chains(), data=st.data(), by=st.integers(min_value=1, max_value=1000), back=st.booleans())
def test_a_shifted_range_is_reported(chain: Chain, data: st.DataObject, by: int, back: bool) -> None:
    which = data.draw(st.integers(min_value=1, max_value=len(chain) - 1))
    start, until = chain[which]
    assert start is not None
    shift = -by if back else by
    chain[which] = (start + shift, until + shift)

    assert chain_breaks(chain) != []


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ([(0, 5)], "0 origins"), ([(None, 0), (None, 3), (0, 5)], "2 origins"),
        ([(None, 0), (0, 0)], "empty or backward"), ([(None, 5), (5, 3)], "empty or backward"),
    ],
    ids=["no origin", "two origins", "empty", "backward"],
)  # fmt: skip
def test_what_is_no_chain_is_reported(chain: Chain, said: str) -> None:
    assert any(said in one for one in chain_breaks(chain))


@given(one=counts(), other=counts(), third=counts())
def test_counts_add_up_the_same_in_any_order_and_digests_within_64_bits(
    one: PartitionCounts, other: PartitionCounts, third: PartitionCounts
) -> None:
    """Parts arrive in any order, and the source digest is free of order too (INV-9)."""
    assert one + other == other + one
    assert (one + other) + third == one + (other + third)
    assert one + NOTHING_SEEN == one
    assert (one + other).digest == (one.digest + other.digest) % 2**64
    assert (one + other).counts == one.counts + other.counts


@given(parts=st.lists(st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), counts()), max_size=6))
def test_parts_add_up_per_partition(parts: list[dict[tuple[str, int], PartitionCounts]]) -> None:
    total = add_up(parts)

    assert set(total) == {key for part in parts for key in part}
    assert sum(one.received for one in total.values()) == sum(one.received for p in parts for one in p.values())


@given(start=st.integers(0, 10**9), length=st.integers(1, 10**6), cut=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_every_record_passed_skipped_or_quarantined_balances(start: int, length: int, cut: tuple[float, float]) -> None:
    """INV-9."""
    one = planned(start, start + length)
    passed = int(length * cut[0])
    skipped = int((length - passed) * cut[1])
    got = seen(one, passed=passed, skipped=skipped, quarantined=length - passed - skipped)

    assert unbalanced([one], {("orders", 0): got}) == []


@given(length=st.integers(2, 1000), data=st.data())
def test_an_offset_without_a_record_is_reported_unless_the_topic_expects_gaps(length: int, data: st.DataObject) -> None:
    """INV-9, S13."""
    one = planned(0, length)
    received = data.draw(st.integers(0, length - 1))
    got = {("orders", 0): seen(one, received=received, passed=received)}

    assert len(unbalanced([one], got)) == 1
    assert unbalanced([one], got, invisible_allowed=frozenset({"orders"})) == []
    assert len(unbalanced([one], got, invisible_allowed=frozenset({"another"}))) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"passed": 9}, "read 10, but passed 9 + skipped 0 + quarantined 0", id="one record unaccounted"),
        pytest.param({"received": 11, "passed": 11}, "11 records read from 10 offsets", id="more records than offsets"),
        pytest.param({"first_offset": 4}, "lie outside the range", id="before the range"),
        pytest.param({"last_offset": 15}, "lie outside the range", id="the exclusive until itself"),
    ],
)
def test_what_does_not_balance_is_named(changes: dict[str, int], said: str) -> None:
    """INV-9: also where gaps are expected."""
    one = planned(5, 15)

    problems = unbalanced([one], {("orders", 0): seen(one, **changes)}, invisible_allowed=frozenset({"orders"}))

    assert len(problems) == 1
    assert said in problems[0]
    assert "orders-0[5, 15)" in problems[0]


def test_a_partition_that_nobody_planned_is_reported() -> None:
    one = planned(0, 3)

    problems = unbalanced([one], {("orders", 0): seen(one), ("orders", 1): seen(one)})

    assert problems == ["orders-1: read, but not planned"]


@given(one=counts(), partition=st.integers(0, 9))
def test_the_message_of_a_part_brings_its_counts_back(one: PartitionCounts, partition: int) -> None:
    """INV-9: as JSON, which is what the ledger stores."""
    seen = {("orders", partition): one}

    assert counts_of(json.loads(json.dumps(message_of(seen)))) == seen


@given(one=counts())
def test_a_part_that_an_older_version_wrote_has_counts_and_no_timestamps(one: PartitionCounts) -> None:
    message = message_of({("orders", 0): one})
    for name in ("oldest_timestamp", "newest_timestamp"):
        del message["seen"][0][name]

    assert counts_of(message) == {("orders", 0): replace(one, oldest_timestamp=None, newest_timestamp=None)}


@given(first=st.integers(0, 1000), origin=st.integers(0, 1000), end=st.integers(0, 1000))
def test_a_head_inside_the_log_is_accepted_and_any_other_is_refused(first: int, origin: int, end: int) -> None:
    """I11: a head at the end of the log is inside, one beyond it is not."""
    start, end = min(first, end), max(first, end)
    inside = start <= origin <= end

    with nullcontext() if inside else pytest.raises(DataLossError, match="Nothing was planned"):
        check_same_log("p", [head(tp(), origin)], [view(tp(), start, end)])


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


MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)
FLINK = FromGroup(group="flink")
Startup = Literal["earliest", "latest"] | FromGroup | FromTimestamp | FromOffsets
MODES: dict[str, Startup] = {
    "earliest": "earliest", "latest": "latest", "group": FLINK, "timestamp": FromTimestamp(timestamp=MOMENT),
    "offsets": FromOffsets(offsets={"orders": {0: 3}}),
}  # fmt: skip


@pytest.mark.parametrize("startup", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("by_pattern", [False, True], ids=["by name", "by pattern"])
def test_a_new_partition_of_a_known_topic_begins_at_offset_0(startup: Startup, by_pattern: bool) -> None:
    """S2: also where its log already starts later; then retention passed it, which the plan reports (I11).

    Given offsets need not name it.
    """
    views = [view(tp(0)), view(tp(1), 3, 8)]

    [origin] = missing_origins([head(tp(0))], views, startup=startup, by_pattern=by_pattern)

    assert (origin.tp, origin.offset, origin.chosen_by) == (tp(1), 0, "new partition")


@pytest.mark.parametrize(
    ("by_pattern", "offset"), [(True, 0), (False, 8)], ids=["matches the pattern later", "was added by name"]
)
def test_a_new_topic_begins_at_0_by_pattern_and_as_declared_by_name(by_pattern: bool, offset: int) -> None:
    """S2, S9."""
    views = [view(tp(0)), view(tp(0, topic="returns"), 3, 8)]

    [origin] = missing_origins([head(tp(0))], views, startup="latest", by_pattern=by_pattern)

    assert origin.offset == offset


FROM_2_TO_12 = view(tp(0), 2, 10, high_watermark=12)  # the last stable offset is 10
EARLIEST, LATEST = FromGroup(group="flink", reset="earliest"), FromGroup(group="flink", reset="latest")


@pytest.mark.parametrize(
    ("startup", "found", "offset", "chosen_by"),
    [
        ("earliest", None, 2, "startup earliest"),
        # The last stable offset, not the high watermark.
        ("latest", None, 10, "startup latest"),
        (FLINK, 6, 6, "startup group flink offset 6"),
        (FLINK, 12, 12, "startup group flink offset 12"),
        (EARLIEST, None, 2, "startup group flink reset earliest: no offset"),
        (LATEST, None, 10, "startup group flink reset latest: no offset"),
        (LATEST, 1, 10, "startup group flink reset latest: offset 1, outside the log"),
        (EARLIEST, 13, 2, "startup group flink reset earliest: offset 13, outside the log"),
        (FromTimestamp(timestamp=MOMENT), 8, 8, "startup timestamp 2026-03-01T12:00:00+00:00"),
        (FromTimestamp(timestamp=MOMENT), None, 10, "startup timestamp 2026-03-01T12:00:00+00:00: no record that late"),
        (FromOffsets(offsets={"orders": {0: 3}}), None, 3, "startup offset"),
        (FromOffsets(offsets={"orders": {0: 12}}), None, 12, "startup offset"),
    ],
    ids=str,
)
def test_a_mode_gives_an_offset_and_the_origin_says_how_it_was_chosen(
    startup: Startup, found: int | None, offset: int, chosen_by: str
) -> None:
    """S9, S10."""
    [origin] = missing_origins([], [FROM_2_TO_12], startup=startup, by_pattern=False, found={tp(0): found})

    assert (origin.offset, origin.chosen_by, origin.leader_epoch) == (offset, chosen_by, 3)


@pytest.mark.parametrize(
    ("startup", "found", "said"),
    [
        (FLINK, None, r"group flink holds no offset, for orders-0, whose log is \[2, 12\].*reset="),
        (FLINK, 1, "group flink holds offset 1, outside the log, for orders-0"),
        (FLINK, 13, "group flink holds offset 13, outside the log, for orders-0"),
        (FromOffsets(offsets={"orders": {0: 1}}), None, r"offset 1 for orders-0, whose log is \[2, 12\]"),
        (FromOffsets(offsets={"orders": {0: 13}}), None, r"offset 13 for orders-0, whose log is \[2, 12\]"),
        (FromOffsets(offsets={"orders": {1: 3}}), None, r"no offset for orders-0, whose log is \[2, 12\]"),
    ],
    ids=["no offset", "below the log", "beyond the log", "given below", "given beyond", "not given"],
)
def test_an_offset_that_is_not_there_is_refused_with_what_is(startup: Startup, found: int | None, said: str) -> None:
    """S9, X28: nothing is guessed."""
    with pytest.raises(SourceError, match=said):
        missing_origins([], [FROM_2_TO_12], startup=startup, by_pattern=False, found={tp(0): found})


def test_the_mode_rules_only_topics_that_are_new_in_the_declaration() -> None:
    """S2, X32."""
    known, new = view(tp(0)), view(tp(0, topic="returns"))

    assert begun_by_startup([], [known, new], by_pattern=True) == [known, new]
    assert begun_by_startup([head(tp(0))], [known, view(tp(1)), new], by_pattern=False) == [new]
    assert begun_by_startup([head(tp(0))], [known, new], by_pattern=True) == []
