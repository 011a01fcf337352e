"""Event time: there is none without Spark."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from epochline.declare.event_time import TimeStanding
from epochline.declare.pipeline import Pipeline
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import TopicPartition
from epochline.testing.side import Side


class FakeTimes(Side):
    """Implements `epochline.ports.Times`."""

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        return TimeStanding(watermark=None, partitions={}, now=self._now())

    def keep_unread(self, epoch: Epoch, partitions: Collection[TopicPartition]) -> None:
        pass

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        return False
