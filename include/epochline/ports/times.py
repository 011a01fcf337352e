"""Event time."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from epochline.declare.event_time import TimeStanding
from epochline.declare.pipeline import Pipeline


class Times(Protocol):
    """Event time, as epochs left it."""

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        """The event times that the last committed epoch left, and the present time."""

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        """Whether an open window ends after the first watermark and not after the second."""
