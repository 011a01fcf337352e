"""Topics in memory: the offsets of logs that only this process writes, as planning needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from epochline.declare.inputs import DeclaredSource, one_source
from epochline.declare.source import KafkaSource
from epochline.errors import TopicMissingError
from epochline.ports import OffsetSource
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.offsets import Head, PlannedRange, TopicPartition
from epochline.protocol.planning import LogEnd, PartitionView, SourceView

Key = tuple[str, int]
"""Topic and partition."""

_LONG_AGO = datetime.fromtimestamp(0, UTC)


@dataclass
class TopicsInMemory(OffsetSource):
    """Topics as ends of logs, and consumer groups. Every offset of a log has a record, and nothing is deleted."""

    cluster_id: str = "memory"
    views: dict[Key, PartitionView] = field(default_factory=dict)
    times: dict[Key, list[datetime]] = field(default_factory=dict)
    """When the record at each offset was made."""
    groups: dict[str, dict[Key, MirroredOffset]] = field(default_factory=dict)

    def produce(
        self, topic: str, partition: int, records: int, *, topic_id: str | None = None, at: datetime = _LONG_AGO
    ) -> None:
        """Append records to a partition, made if missing, all with one timestamp."""
        old = self.views.get((topic, partition))
        known = old.tp.topic_id if old else f"id-of-{topic}"
        tp = TopicPartition(topic=topic, partition=partition, topic_id=topic_id or known)
        end = (old.high_watermark if old and old.tp == tp else 0) + records
        start = old.log_start if old and old.tp == tp else 0
        self.times[topic, partition] = [*self.times.get((topic, partition), ())][: end - records] + [at] * records
        epoch = old.leader_epoch if old and old.tp == tp else 0
        self.views[topic, partition] = PartitionView(
            tp=tp, log_start=start, last_stable=end, high_watermark=end, leader_epoch=epoch
        )

    def look(self, source: DeclaredSource) -> SourceView:
        """Every partition of the topics that the source matches."""
        source = one_source(source)
        missing = [topic for topic in source.topics if topic not in {name for name, _ in self.views}]
        if missing:
            raise TopicMissingError(f"Kafka has no topic {', '.join(missing)}", missing, self.cluster_id)
        matching = [view for (topic, _), view in sorted(self.views.items()) if source.reads(topic)]
        return SourceView(cluster_id=self.cluster_id, partitions=matching)

    def counted(self, ranges: Sequence[PlannedRange]) -> Mapping[Key, int]:
        """Nothing: the offsets alone prove a read."""
        return {}

    def readable_ends(self, sources: Sequence[KafkaSource]) -> Mapping[TopicPartition, int]:
        """The end of every log that one of the sources matches."""
        return {end.tp: end.last_stable for end in self.log_ends(sources)}

    def log_ends(self, sources: Sequence[KafkaSource]) -> Sequence[LogEnd]:
        """Begin and end of the same logs."""
        return [
            LogEnd(tp=view.tp, log_start=view.log_start, last_stable=view.last_stable)
            for _, view in sorted(self.views.items())
            if any(one.reads(view.tp.topic) for one in sources)
        ]

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        """Per partition the first offset with a timestamp at or after the moment."""
        first: dict[TopicPartition, int | None] = {}
        for tp in partitions:
            view, times = self.views[tp.topic, tp.partition], self.times[tp.topic, tp.partition]
            readable = range(view.log_start, min(view.last_stable, len(times)))
            first[tp] = next((offset for offset in readable if times[offset] >= moment), None)
        return first

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The ends of the logs: their leader never changes."""
        return {tp: self.views[tp.topic, tp.partition].high_watermark for tp in epochs}

    def mirrored(self, group: str) -> Mapping[Key, MirroredOffset]:
        """The consumer group's offsets."""
        return dict(self.groups.get(group, {}))

    def mirror(
        self, group: str, heads: Sequence[Head], generation: int, epoch_id: int, token: str | None = None,
        number: int | None = None,
    ) -> None:  # fmt: skip
        """Write the heads to the group."""
        self.groups.setdefault(group, {}).update(
            {
                (head.tp.topic, head.tp.partition): MirroredOffset(
                    offset=head.next_offset, generation=generation, epoch_id=epoch_id, token=token, number=number
                )
                for head in heads
            }
        )

    def forget(self, group: str) -> None:
        """Delete the consumer group."""
        self.groups.pop(group, None)
