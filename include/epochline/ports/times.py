"""Event time."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from epochline.declare.event_time import TimeStanding
from epochline.declare.pipeline import Pipeline
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import TopicPartition


class Times(Protocol):
    """Event time, as epochs left it."""

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        """The event times that the last committed epoch left, and the present time."""

    def keep_unread(self, epoch: Epoch, partitions: Collection[TopicPartition]) -> None:
        """Keep the partitions that have records beyond the epoch's ranges. An earlier plan's are forgotten."""

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        """Whether an open window ends after the first watermark and not after the second."""
