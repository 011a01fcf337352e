"""Feed a log in the background, slowly enough to be spread over several epochs."""

from __future__ import annotations

import threading
from pathlib import Path

from epochline.kafka.feed import FeedReport, feed


class Feeding:
    """A log that is being fed. The feed stops when this process ends; `FedLogs` then knows which lines were fed."""

    def __init__(self, bootstrap: str, log: Path, topic: str, *, partitions: int, rate: float | None) -> None:
        self._arguments = (bootstrap, log, topic, partitions, rate, self._count)
        self._error: BaseException | None = None
        self._report: FeedReport | None = None
        self.lines = 0
        """Lines handed to the producer so far."""
        self._thread = threading.Thread(target=self._feed, name="epochline-demo-feed", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the feed has ended. Raises the error that ended it early."""
        if self._error is not None:
            raise self._error
        return self._report is not None

    def _count(self, _read: int) -> None:
        self.lines += 1

    def _feed(self) -> None:
        try:
            self._report = feed(*self._arguments)
        except BaseException as error:
            self._error = error
