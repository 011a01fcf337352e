"""The state of a pipeline as operators decided it, or as its unfinished epoch has it: one word for one state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

KEEPS_ABORTING = 3
"""So many aborts without a commit between them no longer look like a failure that passes by itself."""


class StandingWord(StrEnum):
    """A state as `epochline lag`, `epochline list` and the pages in Airflow name it."""

    DROPPED = "dropped"
    STOPPED = "stopped"
    PAUSED = "paused"
    AWAITING_APPROVAL = "awaiting approval"
    LEFT_PLANNED = "left planned"
    STAGING = "staging"
    PRE_COMMITTED = "pre-committed"
    KEEPS_ABORTING = "keeps aborting"
    FAILING = "failing"

    @property
    def stands(self) -> bool:
        """Whether the pipeline may stay as it is until a person acts."""
        return self not in (StandingWord.STAGING, StandingWord.PRE_COMMITTED, StandingWord.FAILING)


def word_of_pipeline(row: Mapping[str, Any], *, state: str | None) -> StandingWord | None:
    """The most urgent word for a pipeline; None if nobody stopped it and no epoch is unfinished.

    Args:
        row: with ``dropped_at``, ``paused_at``, ``paused_by``, ``approval`` and ``lease_expired``.
        state: of the unfinished epoch, PLANNED or PRE_COMMITTED; None if there is no such epoch.
    """
    if row["dropped_at"]:
        return StandingWord.DROPPED
    if row["paused_at"]:
        return StandingWord.STOPPED if row["paused_by"] == "epochline" else StandingWord.PAUSED
    return None if state is None else word_of_unfinished(row, state=state)


def word_of_unfinished(row: Mapping[str, Any], *, state: str) -> StandingWord:
    """The word for an unfinished epoch. A lease guards a planned epoch only: the next run takes over when it is over.

    Args:
        row: with ``approval`` and ``lease_expired``, by the database's clock.
        state: PLANNED or PRE_COMMITTED.
    """
    if row["approval"] == "awaited":
        return StandingWord.AWAITING_APPROVAL
    if state == "PRE_COMMITTED":
        return StandingWord.PRE_COMMITTED
    return StandingWord.LEFT_PLANNED if row["lease_expired"] else StandingWord.STAGING


def word_of_aborts(aborts: int) -> StandingWord | None:
    """The word for a pipeline whose epochs were aborted so many times since the last commit; None if none was."""
    if aborts >= KEEPS_ABORTING:
        return StandingWord.KEEPS_ABORTING
    return StandingWord.FAILING if aborts else None
