"""The rules of the pages in Airflow: states and advice, numbers, times and bars (issue 19)."""

import itertools
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from epochline.airflow.pages import charts
from epochline.airflow.pages.charts import rates, time_to_loss
from epochline.airflow.pages.rendering import ago, duration, number, size
from epochline.protocol.offsets import TopicPartition, places
from epochline.protocol.quantities import counted, runs

NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (number, None, "\u2013"), (number, 0, "0"), (number, 999, "999"), (number, 1234567, "1,234,567"),
        (number, 0.5, "0.50"), (number, 1234.56, "1,235"),
        (duration, None, "\u2013"), (duration, 0, "0_s"), (duration, 59.94, "59.9_s"), (duration, 59.96, "1_min"),
        (duration, 61, "1_min_1_s"), (duration, 3600, "1_h"), (duration, 3601, "1_h"), (duration, 90_061, "1_d_1_h"),
        (duration, 86_400 * 3 + 23, "3_d"), (duration, 4.24, "4.2_s"), (duration, -75, "-1_min_15_s"),
        (size, None, "\u2013"), (size, 0, "0_B"), (size, 1023, "1,023_B"), (size, 1024, "1_KiB"),
        (size, 5 * 2**50, "5,120_TiB"),
    ],
)  # fmt: skip
def test_figures_have_commas_between_thousands_and_their_unit(
    shown: Callable[[float | None], str], value: float | None, text: str
) -> None:
    """A duration has its largest unit and the next."""
    assert shown(value) == text.replace("_", "\u202f")


def test_a_moment_is_told_by_its_distance_and_exactly_on_hover() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    assert 'title="2026-01-02 03:04:05 UTC"' in ago(moment)
    assert ">2\u202fmin ago<" in ago(datetime.now(UTC) - timedelta(minutes=2))
    assert ">in 1\u202fh<" in ago(datetime.now(UTC) + timedelta(hours=1, seconds=1))


UNREAD: dict[str, Any] = {
    "lag": 5, "seconds_to_loss": None, "retention_unknown": False, "by_age": False, "by_size": False, "compacted": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text", "tone", "note"),
    [
        ({"lag": None}, "unknown", "quiet", "Kafka was not asked yet"),
        ({"lag": 0}, "nothing is unread", "quiet", ""),
        (
            {"by_age": True, "seconds_to_loss": 90_000.0},
            "at least",
            "quiet",
            "sooner if producers write old timestamps",
        ),
        ({"by_age": True, "by_size": True, "seconds_to_loss": 60.0}, "at least", "warning", "limit of size"),
        ({"by_age": True, "seconds_to_loss": -1.0}, "any moment", "bad", "past their retention"),
        ({"by_age": True}, "unknown", "quiet", "a first epoch"),
        ({"retention_unknown": True}, "unknown", "quiet", "epochline_log_ends"),
        ({"by_size": True}, "not by age", "quiet", "limit of size"),
        ({"compacted": True}, "never", "quiet", "compacted"),
        ({}, "never", "quiet", "no limit"),
    ],
)
def test_the_time_to_loss_is_a_least_time_or_says_why_there_is_none(
    changes: dict[str, Any], text: str, tone: str, note: str
) -> None:
    loss = time_to_loss({**UNREAD, **changes})

    assert (loss.text, loss.tone) == (text, tone)
    assert note in loss.note


def test_rates_need_two_epochs_and_say_whether_a_pipeline_keeps_up() -> None:
    first = {"written": None, "seconds_between": None, "records_read": 100, "seconds": 10.0}
    assert rates([]).text == rates([first]).text == "Two committed epochs are needed to compare them."

    found = rates([first, {"written": 50, "seconds_between": 100.0, "records_read": 60, "seconds": 6.0}])

    assert (found.input, found.process) == (0.5, 10.0)
    assert found.text == "Epochs read faster than records come."


def test_a_line_goes_through_its_values_at_their_times_and_leaves_unknown_ones_out() -> None:
    at = [NOW + timedelta(minutes=minutes) for minutes in (0, 3, 4)]

    assert charts.line([0, 5, 10], at, 10, width=100, height=20) == "0,19 75,10 100,1"
    assert charts.line([0, None, 5], at, 10, width=100, height=20) == "0,19 100,10"
    assert charts.line([0, 0], [NOW, NOW], 0) == "0,19 0,19"
    assert charts.line([], [], 0) == ""


def test_the_seven_phases_have_seven_colours_in_either_theme() -> None:
    """Far enough apart to be told from each other, and from the ground."""
    style = (Path(charts.__file__).parent / "static" / "pages.css").read_text()
    pairs = {name: re.findall(rf"--{name}: light-dark\(#(\w+), #(\w+)\)", style) for name in charts.PHASES}
    assert all(f".p-{name}" in style for name in charts.PHASES)
    for theme, ground in ((0, "ffffff"), (1, "171d2d")):
        colours = [bytes.fromhex(one) for one in (ground, *(pairs[name][0][theme] for name in charts.PHASES))]
        near = min(math.dist(one, other) for one, other in itertools.combinations(colours, 2))
        assert (len(colours), near > 60) == (8, True), (theme, near)


def test_rows_of_a_sink_are_drawn_by_fate_or_as_added() -> None:
    by_fate = {"rows": 3, "inserted": 1, "updated": 2, "deleted": 0, "superseded": 0, "unchanged": 0}

    assert [(bar.kind, bar.value) for bar in charts.fates(by_fate)] == [("inserted", 1), ("updated", 2)]
    assert [(bar.kind, bar.value) for bar in charts.fates({"rows": 3, "inserted": None})] == [("inserted", 3)]


def test_the_parts_of_a_whole_fill_it_and_a_small_one_is_seen() -> None:
    bars = charts.lying([("passed", 999_998), ("skipped", 0), ("quarantined", 2), ("unknown", None)])

    assert [bar.kind for bar in bars] == ["passed", "quarantined"]
    assert sum(bar.length for bar in bars) == pytest.approx(100, abs=0.01)
    assert bars[1].length > 1.5
    assert bars[1].at == pytest.approx(bars[0].length)
    assert charts.lying([("passed", 0), ("skipped", None)]) == []


def test_the_strip_of_a_day_has_a_column_per_hour_with_failures_on_top() -> None:
    rows = [
        {"hour": 3, "state": "ABORTED", "epochs": 1},
        {"hour": 3, "state": "COMMITTED", "epochs": 3},
        {"hour": 24, "state": "COMMITTED", "epochs": 2},
    ]

    hours = charts.by_hour(rows)

    bars = charts.day(hours, 4, height=20)

    assert [(bar.kind, bar.column, bar.length) for bar in bars] == [
        ("COMMITTED", 3, 15.0), ("ABORTED", 3, 5.0), ("COMMITTED", 23, 10.0),
    ]  # fmt: skip
    assert [bar.at for bar in bars] == [5.0, 0.0, 10.0]
    assert charts.day(charts.by_hour([]), 1) == []


def test_partitions_are_named_by_topic_with_ranges_and_things_are_counted() -> None:
    found = [TopicPartition(topic=topic, partition=number, topic_id="") for topic, number in
             [("b", 7), *(("a", number) for number in (2, 0, 1, 5))]]  # fmt: skip

    assert places(found) == "partitions 0-2, 5 of a, b-7"
    assert runs([3]) == "3"
    assert [counted(one, "record") for one in (0, 1, 2_000)] == ["0 records", "1 record", "2,000 records"]
