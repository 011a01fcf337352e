"""One form for numbers, durations and partitions, on every screen."""

import pytest

from epochline.protocol.offsets import TopicPartition, places
from epochline.protocol.quantities import counted, duration, number, runs


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (4.24, "4.2 s"), (30, "30 s"), (59.96, "1 min"), (200, "3 min 20 s"), (3_600, "1 h"),
        (3_661, "1 h 1 min"), (86_401, "1 d"), (90_000, "1 d 1 h"), (-75, "-1 min 15 s"),
    ],
)  # fmt: skip
def test_a_duration_has_its_largest_unit_and_the_next_smaller_one(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_have_commas_between_thousands() -> None:
    assert [number(one) for one in (0, 999, 1_234_567, 0.25, 1_234.5)] == ["0", "999", "1,234,567", "0.25", "1,234"]
    assert [counted(one, "record") for one in (0, 1, 2_000)] == ["0 records", "1 record", "2,000 records"]


def test_partitions_are_named_by_topic_with_ranges() -> None:
    found = [TopicPartition(topic=topic, partition=number, topic_id="") for topic, number in
             [("b", 7), *(("a", number) for number in (2, 0, 1, 5))]]  # fmt: skip

    assert places(found) == "partitions 0-2, 5 of a, b-7"
    assert runs([3]) == "3"
