"""kafka-python's log: each line once, then once a minute with the number of repeats."""

import logging
from collections.abc import Iterator

import pytest

from epochline.errors import SourceAuthenticationError
from epochline.kafka import admin
from epochline.kafka.admin import RepeatsOnceAMinute, detect_refusals, shorten_log
from tests.kafka_log import Said, log_of_kafka


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(admin, "time", clock)
    return clock


@pytest.fixture
def said() -> Iterator[Said]:
    with log_of_kafka() as said:
        yield said


@pytest.fixture
def shortened(said: Said) -> logging.Logger:
    return logging.getLogger("kafka.cluster")


def test_a_repeated_line_is_said_once_a_minute_with_the_number_of_repeats(
    clock: Clock, shortened: logging.Logger, said: Said
) -> None:
    for _ in range(48):
        shortened.warning("No node available for metadata refresh - backoff/retry")
        clock.now += 1.0
    clock.now += 20
    shortened.warning("No node available for metadata refresh - backoff/retry")
    clock.now += 60
    shortened.warning("No node available for metadata refresh - backoff/retry")

    line = "No node available for metadata refresh - backoff/retry"
    assert said.messages == [line, f"{line} (47 times more in the last 68 s)", line]


def test_lines_that_differ_in_a_pause_alone_are_one_and_other_lines_are_all_said(
    clock: Clock, shortened: logging.Logger, said: Said
) -> None:
    for broker, pause in ((1, 0.11), (1, 0.42), (2, 0.42)):
        shortened.warning("Bootstrap connection to %s failed (backoff %s secs)", broker, pause)
    logging.getLogger("kafka.net").error("Bootstrap connection to 1 failed (backoff 0.11 secs)")

    assert [(one.name, one.levelname) for one in said.records] == [
        ("kafka.cluster", "WARNING"), ("kafka.cluster", "WARNING"), ("kafka.net", "ERROR"),
    ]  # fmt: skip
    assert "failed (backoff 0.11 secs)" in said.messages[0]


def test_nothing_below_a_warning_is_said_and_a_second_call_doubles_nothing(
    clock: Clock, shortened: logging.Logger, said: Said
) -> None:
    shorten_log()
    shortened.info("about sockets")
    shortened.warning("once")

    assert said.messages == ["once"]
    assert sum(isinstance(one, RepeatsOnceAMinute) for one in logging.getLogger("kafka").handlers) == 1


def test_a_refused_login_is_found_in_a_line_that_was_left_out(clock: Clock, shortened: logging.Logger) -> None:
    """A second refusal within the minute is reported like the first."""

    def fail() -> None:
        with detect_refusals("here:9092"):
            shortened.error("Connection failed: %s", OSError("certificate unknown"))
            raise TimeoutError("no answer")

    for _ in range(2):
        with pytest.raises(SourceAuthenticationError, match="a certificate was refused"):
            fail()
