"""Restart strategies: how often and how soon a task that failed with a retryable error is tried again. Pure.

An error that no retry can cure (a bad record under the policy ``fail``, an invalid declaration, lost data) ends the
run at once under every strategy; the class of the error decides (`epochline.errors`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from epochline.declare.base import DeclarationModel

WITHOUT_END = 1_000_000
"""Airflow's retries for a strategy without a limit: more than a hundred days at ten seconds each."""

DELAY = timedelta(seconds=10)


def _not_negative(value: timedelta) -> timedelta:
    if value < timedelta(0):
        raise ValueError(f"must not be negative, got {value}")
    return value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError(f"must be longer than zero, got {value}")
    return value


Pause = Annotated[timedelta, AfterValidator(_not_negative)]
"""A duration of zero or more: seconds, or ISO 8601 (``PT10S``)."""

Duration = Annotated[timedelta, AfterValidator(_positive)]
"""A duration longer than zero: seconds, or ISO 8601 (``PT10S``)."""


class FixedDelay(DeclarationModel):
    """Try again ``attempts`` times, ``delay`` apart; then the run fails and its epoch is aborted.

    Args:
        attempts: how often a failed task is tried again.
        delay: least time between two attempts.
    """

    kind: Literal["fixed_delay"] = "fixed_delay"
    attempts: int = Field(ge=0)
    delay: Pause = DELAY

    @property
    def retries(self) -> int:
        """How often Airflow tries again."""
        return self.attempts


class FailureRate(DeclarationModel):
    """Try again while the ledger counts at most ``max_failures`` failed attempts within ``interval``.

    The attempts of all the pipeline's epochs count, by the database's clock.

    Args:
        max_failures: most failed attempts within ``interval``.
        interval: the time over which failed attempts are counted.
        delay: least time between two attempts.
    """

    kind: Literal["failure_rate"] = "failure_rate"
    max_failures: int = Field(ge=1)
    interval: Duration
    delay: Pause = DELAY

    retries: ClassVar[int] = WITHOUT_END
    """The ledger ends Airflow's retries earlier."""


class Endless(DeclarationModel):
    """Try again without a limit. Declared, it goes on whatever fails.

    It is the default of a pipeline with an interval: then an error of code that comes back the same ends the
    retries after three attempts (ADR 0049). Declared, the pause before each further attempt of such an error is twice
    as long as the one before.

    Args:
        delay: least time between two attempts.
        max_delay: longest pause before an attempt; a shorter one than ``delay`` has no effect.
    """

    kind: Literal["endless"] = "endless"
    delay: Pause = DELAY
    max_delay: Pause = timedelta(minutes=5)
    retries: ClassVar[int] = WITHOUT_END

    def pause_after(self, alike: int) -> timedelta:
        """The pause after so many attempts in a row that failed of the same error of code; 0 for a passing failure."""
        doublings = min(max(alike - 1, 0), 20)  # more of them exceed every pause that is of use
        return min(self.delay * (1 << doublings), self.longest_pause)

    @property
    def longest_pause(self) -> timedelta:
        """What no pause exceeds."""
        return max(self.delay, self.max_delay)


class NoRestart(DeclarationModel):
    """Never try again: the default of a pipeline without an interval."""

    kind: Literal["none"] = "none"
    retries: ClassVar[int] = 0
    delay: ClassVar[timedelta] = timedelta(0)


RestartStrategy = Annotated[FixedDelay | FailureRate | Endless | NoRestart, Field(discriminator="kind")]
