"""Event time: how a watermark comes of the records' own times. Pure.

A watermark says that no record older than it is expected. Each epoch has two: records are judged late by the one that
the epoch *before* left, and windows close by the one that the epoch leaves itself, so that a record and its window
never depend on which of an epoch's records happened to be read first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from pydantic import field_validator

from epochline.declare.base import DeclarationModel
from epochline.declare.restart import Duration, Pause

K = TypeVar("K")


class EventTime(DeclarationModel):
    """Where a record's time is found, and how much out of order records come (E5, E11).

    Args:
        column: a ``timestamptz`` column of the parsed record; a record without a time is a bad record.
        out_of_orderness: a record is at most this much older than the newest record of its partition before it.
        idle_after: a partition without a record for so long holds the watermark back no longer; by default each does
            for ever. While every partition is idle the watermark follows the clock of the database, and windows close
            in epochs that read nothing.
    """

    column: str
    out_of_orderness: Pause = timedelta(0)
    idle_after: Duration | None = None

    @field_validator("column")
    @classmethod
    def _column_is_named(cls, column: str) -> str:
        if not column:
            raise ValueError("name the column that holds a record's time")
        return column


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTime:
    """What is known of the event time in one partition.

    Args:
        newest: the newest time of any record read, None before the first.
        read_at: when the database's clock stood at the commit of the last epoch that had a record of it; None before.
    """

    newest: datetime | None = None
    read_at: datetime | None = None

    def and_then(self, newest: datetime | None, now: datetime) -> PartitionTime:
        """The same after an epoch whose newest record of this partition was of ``newest``; None where it had none."""
        if newest is None:
            return self
        return PartitionTime(newest=newest if self.newest is None else max(self.newest, newest), read_at=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStanding:
    """What is known of event time when an epoch is planned.

    Args:
        watermark: what the last committed epoch left; None where none did.
        partitions: of every partition that the pipeline reads, by topic and number.
        now: the database's clock, when the epoch was planned.
    """

    watermark: datetime | None
    partitions: Mapping[tuple[str, int], PartitionTime]
    now: datetime

    def after(self, declared: EventTime, newest: Mapping[tuple[str, int], datetime | None]) -> datetime | None:
        """The watermark that the epoch leaves, whose newest record of each partition was of ``newest``."""
        read = {place: time.and_then(newest.get(place), self.now) for place, time in self.partitions.items()}
        return watermark(declared, read, self.watermark, self.now)


def watermark(
    declared: EventTime, partitions: Mapping[K, PartitionTime], before: datetime | None, now: datetime
) -> datetime | None:
    """The watermark that an epoch leaves: the least of its partitions', and never less than the one before.

    Args:
        declared: of the pipeline.
        partitions: of every partition that the pipeline reads, this epoch's records included.
        before: what the epoch before left, None where nothing is known yet.
        now: the database's clock.

    Returns:
        None as long as a partition that is not idle has had no record.
    """
    awake = [one for one in partitions.values() if not _idle(declared, one, now)]
    if not awake:
        asleep = [one for one in partitions.values() if one.newest is not None and one.read_at is not None]
        # The clock goes on where the newest record left off: time passes in an idle source, too.
        new = max(
            (
                one.newest + (now - one.read_at) - declared.out_of_orderness
                for one in asleep
                if one.newest and one.read_at
            ),
            default=None,
        )
    elif any(one.newest is None for one in awake):
        new = None
    else:
        new = min(one.newest for one in awake if one.newest is not None) - declared.out_of_orderness
    known = [one for one in (before, new) if one is not None]
    return max(known, default=None)


def _idle(declared: EventTime, one: PartitionTime, now: datetime) -> bool:
    if declared.idle_after is None:
        return False
    # A partition that never had a record is idle from the beginning: there is no moment to count from.
    return one.read_at is None or now - one.read_at >= declared.idle_after
