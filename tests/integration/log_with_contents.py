"""A Kafka in memory whose logs hold values, for histories in which it matters which record is at an offset."""

from collections.abc import Iterator

import pyarrow as pa

from epochline.protocol.offsets import PlannedRange
from tests.in_memory.kafka import FakeKafka
from tests.reading import source_batch


class Log:
    """Produces values, and reads them as the job does: by the topic's name."""

    def __init__(self) -> None:
        self.kafka = FakeKafka()
        self.values: dict[tuple[str, int], list[str]] = {}

    def add(self, topic: str, *values: str, partition: int = 0, topic_id: str | None = None) -> None:
        if topic_id is not None:
            self.values[topic, partition] = []
        self.values.setdefault((topic, partition), []).extend(values)
        self.kafka.produce(topic, partition, len(values), topic_id=topic_id)

    def truncate(self, topic: str, end: int, *values: str, partition: int = 0) -> None:
        """An unclean election; other records follow."""
        self.kafka.change_leader(topic, partition, truncate_to=end)
        del self.values[topic, partition][end:]
        self.add(topic, *values, partition=partition)

    def delete(self, topic: str) -> None:
        for key in [key for key in self.values if key[0] == topic]:
            del self.values[key], self.kafka.views[key]

    def read(self, one: PlannedRange) -> Iterator[pa.RecordBatch]:
        values = self.values[one.tp.topic.rpartition("/")[2], one.tp.partition][one.range.start : one.range.until]
        yield source_batch(one.tp, range(one.range.start, one.range.until), map(str.encode, values))
