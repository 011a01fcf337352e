"""A source that counts: one number per tick of the clock. An example, and a generator of load."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from epochline.protocol.source import SourcePartition, SourceRecord


class Counter:
    """The numbers 1, 2, 3, … as text: one per ``seconds`` since ``began``, at most ``numbers``, in each partition."""

    def __init__(self, began: str, seconds: float = 1, numbers: int | None = None, partitions: int = 1) -> None:
        self._began = datetime.fromisoformat(began)
        if self._began.tzinfo is None or seconds <= 0 or partitions < 1:
            raise ValueError("began needs a time zone; seconds and partitions must be greater than zero")
        self._tick = timedelta(seconds=seconds)
        self._numbers = numbers
        self._partitions = partitions

    def partitions(self) -> Sequence[SourcePartition]:
        """Every partition, up to the last tick."""
        end = max(0, (datetime.now(UTC) - self._began) // self._tick)
        end = end if self._numbers is None else min(end, self._numbers)
        identity = f"{self._began.isoformat()}/{self._tick.total_seconds()}"
        numbers = range(self._partitions)
        return [SourcePartition(partition=number, identity=identity, start=0, end=end) for number in numbers]

    def read(self, partition: int, start: int, until: int) -> Iterator[SourceRecord]:
        """The numbers start + 1 to until."""
        for position in range(start, until):
            moment = self._began + (position + 1) * self._tick
            yield SourceRecord(position=position, value=str(position + 1).encode(), timestamp=moment)

    def count(self, partition: int, start: int, until: int) -> int:
        """Every position has a number."""
        return until - start
