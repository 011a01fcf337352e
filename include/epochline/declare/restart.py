"""Restart strategies: what becomes of a run whose task failed for a reason that trying again may cure. Pure.

An error that no retry can cure (a bad record under the policy ``fail``, a wrong declaration, lost data) ends the run
at once, whatever the strategy says; the class of the error decides (`epochline.errors`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from epochline.declare.base import DeclarationModel

WITHOUT_END = 1_000_000
"""Restarts that Airflow is told where the strategy knows no end: at ten seconds each, more than a hundred days."""

DELAY = timedelta(seconds=10)


def _not_negative(value: timedelta) -> timedelta:
    if value < timedelta(0):
        raise ValueError(f"must not be negative, got {value}")
    return value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError(f"must be longer than nothing, got {value}")
    return value


Pause = Annotated[timedelta, AfterValidator(_not_negative)]
"""A duration that may be nothing: seconds, or ISO 8601 (``PT10S``)."""

Duration = Annotated[timedelta, AfterValidator(_positive)]
"""A duration longer than nothing: seconds, or ISO 8601 (``PT10S``)."""


class FixedDelay(DeclarationModel):
    """Try again ``attempts`` times, ``delay`` apart; then the run fails and its epoch is aborted (R1)."""

    kind: Literal["fixed_delay"] = "fixed_delay"
    attempts: int = Field(ge=0)
    delay: Pause = DELAY

    @property
    def retries(self) -> int:
        """How often Airflow tries again."""
        return self.attempts


class FailureRate(DeclarationModel):
    """Try again while the ledger counts at most ``max_failures`` failed attempts within ``interval`` (R2).

    Attempts of all the pipeline's epochs are counted, by the database's clock.
    """

    kind: Literal["failure_rate"] = "failure_rate"
    max_failures: int = Field(ge=1)
    interval: Duration
    delay: Pause = DELAY

    @property
    def retries(self) -> int:
        """How often Airflow tries again, where the ledger does not say no."""
        return WITHOUT_END


class Endless(DeclarationModel):
    """Try again until it works: what a pipeline with an interval does without a strategy of its own (R4)."""

    kind: Literal["endless"] = "endless"
    delay: Pause = DELAY

    @property
    def retries(self) -> int:
        """How often Airflow tries again."""
        return WITHOUT_END


class NoRestart(DeclarationModel):
    """One attempt (R3); also what a pipeline without an interval does without a strategy of its own (R4, K22)."""

    kind: Literal["none"] = "none"

    @property
    def retries(self) -> int:
        """How often Airflow tries again."""
        return 0

    @property
    def delay(self) -> timedelta:
        """How long Airflow would wait."""
        return timedelta(0)


RestartStrategy = Annotated[FixedDelay | FailureRate | Endless | NoRestart, Field(discriminator="kind")]
