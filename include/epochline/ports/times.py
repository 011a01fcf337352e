"""Event time."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from epochline.declare.event_time import TimeStanding
from epochline.declare.pipeline import Pipeline


class Times(Protocol):
    """Event time, as epochs left it."""

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        """What the last committed epoch left, and when it is."""

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        """Whether a window that is open ends between two watermarks, the second included."""
