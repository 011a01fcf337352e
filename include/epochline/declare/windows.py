"""Windows over event time, as a declaration says them, and when each is open, closed and forgotten. Pure.

A window ``[start, end)`` is *closed* once the watermark has reached ``end``: its result is given out. Until the
watermark has passed ``end`` by the allowed lateness it is kept, and a late record gives a second, corrected result.
A record that comes later than that is *too late*: it is counted and, where a table is named for it, kept (X21).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from epochline.declare.base import DeclarationModel
from epochline.declare.restart import Duration

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Windows are aligned to it, as Spark's ``window`` and Flink's are."""


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """``[start, end)``."""

    start: datetime
    end: datetime

    def __str__(self) -> str:
        return f"[{self.start.isoformat()}, {self.end.isoformat()})"


class Tumbling(DeclarationModel):
    """Windows of one size, one after the other."""

    kind: Literal["tumbling"] = "tumbling"
    size: Duration

    def of(self, moment: datetime) -> Sequence[Window]:
        """The one window that a moment lies in."""
        start = moment - (moment - EPOCH) % self.size
        return (Window(start, start + self.size),)


class Sliding(DeclarationModel):
    """Windows of one size that begin every ``slide``; a record is in several."""

    kind: Literal["sliding"] = "sliding"
    size: Duration
    slide: Duration

    @model_validator(mode="after")
    def _slides_over_every_record(self) -> Self:
        if self.slide > self.size:
            raise ValueError("slide: longer than size; records between two windows would be in none")
        return self

    def of(self, moment: datetime) -> Sequence[Window]:
        """The windows that a moment lies in, the earliest first."""
        start = moment - (moment - EPOCH) % self.slide
        found = []
        while start > moment - self.size:
            found.append(Window(start, start + self.size))
            start -= self.slide
        return tuple(reversed(found))


class Session(DeclarationModel):
    """Windows that grow with their records: one ends when ``gap`` passes without a record of its key."""

    kind: Literal["session"] = "session"
    gap: Duration

    def of(self, moment: datetime) -> Sequence[Window]:
        """The session that a moment would make alone; sessions that overlap are one."""
        return (Window(moment, moment + self.gap),)


Windows = Annotated[Tumbling | Sliding | Session, Field(discriminator="kind")]


def closed(window: Window, watermark: datetime | None) -> bool:
    """Whether its result is given out."""
    return watermark is not None and window.end <= watermark


def forgotten(window: Window, watermark: datetime | None, lateness: timedelta) -> bool:
    """Whether a record of it is too late, and nothing of it is kept."""
    return watermark is not None and window.end + lateness <= watermark
