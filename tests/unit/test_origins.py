"""Where a pipeline begins in a partition that it has never seen (S2, S9, S10, X32)."""

from datetime import UTC, datetime
from typing import Literal

import pytest

from epochline import FromGroup, FromOffsets, FromTimestamp
from epochline.errors import SourceError
from epochline.protocol.origins import begun_by_startup, missing_origins
from tests.unit.partitions import head, tp, view

MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)
FLINK = FromGroup(group="flink")
Word = Literal["earliest", "latest"]
Startup = Word | FromGroup | FromTimestamp | FromOffsets


FROM_2_TO_12 = view(tp(0), 2, 10, high_watermark=12)  # the last stable offset is 10
EARLIEST, LATEST = FromGroup(group="flink", reset="earliest"), FromGroup(group="flink", reset="latest")


@pytest.mark.parametrize(
    ("startup", "found", "offset", "chosen_by"),
    [
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

    assert (origin.offset, origin.chosen_by) == (offset, chosen_by)


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
    known, new = view(tp(0)), view(tp(0, topic="returns"))

    assert begun_by_startup([], [known, new], by_pattern=True) == [known, new]
    assert begun_by_startup([head(tp(0))], [known, view(tp(1)), new], by_pattern=False) == [new]
    assert begun_by_startup([head(tp(0))], [known, new], by_pattern=True) == []
