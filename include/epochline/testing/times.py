"""Event time: there is none without Spark."""

from __future__ import annotations

from datetime import datetime

from epochline.declare.event_time import TimeStanding
from epochline.declare.pipeline import Pipeline
from epochline.testing.side import Side


class FakeTimes(Side):
    """Implements `epochline.ports.Times`."""

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        return TimeStanding(watermark=None, partitions={}, now=self._now())

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        return False
