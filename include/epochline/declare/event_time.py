"""Event time: watermarks, computed from the times of records, and the windows that they close. Pure.

A watermark is a time below which no further record is expected. The watermark of the *previous* epoch decides which
records are late, the epoch's own which windows close. So no result depends on the order in which records are read.

A window ``[start, end)`` is *closed*, and its result written, once the watermark reaches ``end``. Until the watermark
has passed ``end`` by the allowed lateness, a late record corrects the result; a later one is *too late*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import not_
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from epochline.declare.base import DeclarationModel, Duration, Pause
from epochline.declare.specs import EventTimeSpec

K = TypeVar("K")


class EventTime(DeclarationModel):
    """The column of a record's time, and how far out of order records may come.

    Args:
        column: a ``timestamptz`` column of the parsed record; a record without a time is a bad record.
        out_of_orderness: how much older a record may be than the newest earlier record of its partition.
        idle_after: after this time without a record a partition stops holding the watermark back; None: it never does
            (docs/state-and-time.md).
        punctuation: a ``timestamptz`` or ``boolean`` column of the parsed record by which a record carries the
            watermark of its partition (docs/state-and-time.md).
    """

    column: str
    out_of_orderness: Pause = timedelta(0)
    idle_after: Duration | None = None
    punctuation: str | None = Field(default=None, exclude_if=not_)

    @field_validator("column")
    @classmethod
    def _column_is_named(cls, column: str) -> str:
        if not column:
            raise ValueError("name the column that holds a record's time")
        return column

    @property
    def spec(self) -> EventTimeSpec:
        return self._as(EventTimeSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTime:
    """Event time of one partition.

    Args:
        newest: the newest event time of any record read; None before the first record. A watermark that a record
            carried counts as the time of a record that is newer by ``out_of_orderness``.
        read_at: database time at the plan of the last committed epoch that read a record of the partition, or None.
        unread: whether the plan saw records of the partition that the epoch does not read.
    """

    newest: datetime | None = None
    read_at: datetime | None = None
    unread: bool = False

    def and_then(self, newest: datetime | None, now: datetime) -> PartitionTime:
        """Event time after an epoch whose newest record of this partition is ``newest``; None: the epoch read none."""
        if newest is None:
            return self
        return replace(self, newest=newest if self.newest is None else max(self.newest, newest), read_at=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStanding:
    """Event time of a pipeline when an epoch is planned."""

    watermark: datetime | None
    partitions: Mapping[tuple[str, int], PartitionTime]
    """By topic and partition, for every partition that the pipeline reads."""
    now: datetime

    def after(self, declared: EventTime, newest: Mapping[tuple[str, int], datetime | None]) -> datetime | None:
        """Compute the epoch's watermark from its newest event time per partition."""
        read = {place: time.and_then(newest.get(place), self.now) for place, time in self.partitions.items()}
        return watermark(declared, read, self.watermark, self.now)


def watermark(
    declared: EventTime, partitions: Mapping[K, PartitionTime], before: datetime | None, now: datetime
) -> datetime | None:
    """Compute an epoch's watermark: the lowest of its partitions', but at least ``before``, the previous epoch's."""
    awake = [time for time in partitions.values() if not _idle(declared, time, now)]
    if awake:
        newest = [time.newest for time in awake]
        new = None if None in newest else min(filter(None, newest)) - declared.out_of_orderness
    else:
        # Time passes in an idle source too: the clock continues from the newest record.
        times = [(time.newest, time.read_at) for time in partitions.values()]
        clocks = [newest + (now - read_at) for newest, read_at in times if newest is not None and read_at is not None]
        new = max(clocks) - declared.out_of_orderness if clocks else None
    return max(filter(None, (before, new)), default=None)


def _idle(declared: EventTime, time: PartitionTime, now: datetime) -> bool:
    if declared.idle_after is None or time.unread:
        return False
    # A partition that never had a record is idle from the beginning: nothing says when its idle time began.
    return time.read_at is None or now - time.read_at >= declared.idle_after


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
