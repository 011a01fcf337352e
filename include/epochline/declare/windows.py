"""Windows over event time: their declaration, and when each is open, closed and forgotten. Pure.

A window ``[start, end)`` is *closed* once the watermark reaches ``end``: its result is written. The window is kept
until the watermark has passed ``end`` by the allowed lateness; until then a late record corrects the result. A record
that comes later is *too late*: it is counted and, if a sink is declared for it, kept.
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
"""Windows are aligned to this moment, as in Spark and Flink."""


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The time ``[start, end)``."""

    start: datetime
    end: datetime

    def __str__(self) -> str:
        return f"[{self.start.isoformat()}, {self.end.isoformat()})"


class Tumbling(DeclarationModel):
    """Adjacent windows of one size.

    Args:
        size: length of a window.
    """

    kind: Literal["tumbling"] = "tumbling"
    size: Duration

    def of(self, moment: datetime) -> Sequence[Window]:
        """The window that contains a moment."""
        start = moment - (moment - EPOCH) % self.size
        return (Window(start, start + self.size),)


class Sliding(DeclarationModel):
    """Overlapping windows of one size, one beginning every ``slide``; a record may be in several.

    Args:
        size: length of a window.
        slide: time from the beginning of one window to the next, at most ``size``.
    """

    kind: Literal["sliding"] = "sliding"
    size: Duration
    slide: Duration

    @model_validator(mode="after")
    def _slides_over_every_record(self) -> Self:
        if self.slide > self.size:
            raise ValueError("slide: longer than size, so that records between two windows would belong to none")
        return self

    def of(self, moment: datetime) -> Sequence[Window]:
        """The windows that contain a moment, the earliest first."""
        start = moment - (moment - EPOCH) % self.slide
        windows = []
        while start > moment - self.size:
            windows.append(Window(start, start + self.size))
            start -= self.slide
        return tuple(reversed(windows))


class Session(DeclarationModel):
    """Windows that grow with their records: one ends when ``gap`` passes without a record of its key.

    Args:
        gap: the time without a record that ends a window.
    """

    kind: Literal["session"] = "session"
    gap: Duration

    def of(self, moment: datetime) -> Sequence[Window]:
        """The session of a single record at a moment; overlapping sessions are merged."""
        return (Window(moment, moment + self.gap),)


Windows = Annotated[Tumbling | Sliding | Session, Field(discriminator="kind")]


def closed(window: Window, watermark: datetime | None) -> bool:
    """Whether a window's result is written."""
    return watermark is not None and window.end <= watermark


def forgotten(window: Window, watermark: datetime | None, lateness: timedelta) -> bool:
    """Whether a window is dropped, so that a record of it is too late."""
    return watermark is not None and window.end + lateness <= watermark
