"""Positions of a source of the user's own, as planning needs them."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from epochline.config.connections import Connection
from epochline.declare.inputs import DeclaredSource
from epochline.declare.source import KafkaSource
from epochline.declare.specs import CustomSourceSpec
from epochline.errors import SourceError
from epochline.ports import OffsetSource
from epochline.protocol.offsets import PlannedRange, TopicPartition
from epochline.protocol.planning import LogEnd, PartitionView, SourceView
from epochline.sources.reading import explaining, open_source


class SourcePositions(OffsetSource):
    """A source of the user's own, which each question constructs again. It has no consumer group and no leaders."""

    def __init__(self, declared: CustomSourceSpec, connection: Connection | None = None) -> None:
        self._declared = declared
        self._connection = connection

    def look(self, source: DeclaredSource) -> SourceView:
        asked = open_source(self._declared, self._connection)
        with explaining(self._declared, "does not say what it has"):
            partitions = sorted(asked.partitions(), key=lambda partition: partition.partition)
        numbers = [partition.partition for partition in partitions]
        if len(set(numbers)) != len(numbers):
            raise SourceError(f"source {self._declared.name} names a partition twice: {numbers}. Nothing was planned.")
        name = self._declared.name
        return SourceView(
            cluster_id=None,
            partitions=tuple(
                PartitionView(
                    tp=TopicPartition(topic=name, partition=partition.partition, topic_id=partition.identity),
                    log_start=partition.start,
                    last_stable=partition.end,
                    high_watermark=max(partition.end, partition.newest or 0),
                    waits_for=partition.waits_for,
                )
                for partition in partitions
            ),
            invisible_allowed=frozenset() if self._declared.dense else frozenset({name}),
        )

    def counted(self, ranges: Sequence[PlannedRange]) -> Mapping[tuple[str, int], int]:
        if self._declared.dense:
            return {}
        source = open_source(self._declared, self._connection)
        with explaining(self._declared, "does not count"):
            return {
                (planned.tp.topic, planned.tp.partition): source.count(
                    planned.tp.partition, planned.range.start, planned.range.until
                )
                for planned in ranges
            }

    def readable_ends(self, sources: Sequence[KafkaSource]) -> Mapping[TopicPartition, int]:
        raise SourceError(f"source {self._declared.name}: only records in Kafka start runs.")

    def log_ends(self, sources: Sequence[KafkaSource]) -> Sequence[LogEnd]:
        raise SourceError(f"source {self._declared.name}: only Kafka is asked for the ends of its logs.")

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        raise SourceError(
            f"source {self._declared.name} knows no positions by time, so no interval can be read. Nothing was"
            " planned. Run the pipeline without an interval."
        )
