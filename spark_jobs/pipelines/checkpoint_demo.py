"""A source that says "hello flink" once a second."""

from collections.abc import Iterator
from dataclasses import replace

from epochline.protocol.source import SourceRecord
from epochline.sources.counter import Counter


class Hello(Counter):
    """A counter whose every record is the same text."""

    def read(self, partition: int, start: int, until: int) -> Iterator[SourceRecord]:
        """One text for each tick."""
        for record in super().read(partition, start, until):
            yield replace(record, value=b"hello flink")
