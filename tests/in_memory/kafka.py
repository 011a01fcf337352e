"""A Kafka in memory: topics as ends of logs, and consumer groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from epochline.declare.inputs import DeclaredSource, one_source
from epochline.declare.source import KafkaSource
from epochline.errors import TopicMissingError
from epochline.protocol.balances import LogGaps
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange, TopicPartition, joined
from epochline.protocol.planning import LogEnd, PartitionView, Retention, SourceView

Key = tuple[str, int]
"""Topic and partition."""

_LONG_AGO = datetime.fromtimestamp(0, UTC)


@dataclass
class FakeKafka:
    """Topics as ends of logs, in memory; a consumer group per pipeline. Implements `epochline.ports.OffsetSource`."""

    cluster_id: str = "fake"
    views: dict[Key, PartitionView] = field(default_factory=dict)
    times: dict[Key, list[datetime]] = field(default_factory=dict)
    """When the record at each offset was made."""
    leader_epochs: dict[Key, dict[int, int]] = field(default_factory=dict)
    """Where the log of each leader epoch begins, for partitions whose leader changed: {epoch: start offset}."""
    retention: dict[str, Retention] = field(default_factory=dict)
    """By topic; no retention is known of the others."""
    compacted: set[str] = field(default_factory=set)
    without_record: dict[Key, tuple[frozenset[int], frozenset[int]]] = field(default_factory=dict)
    groups: dict[str, dict[Key, MirroredOffset]] = field(default_factory=dict)
    groups_kept: timedelta | None = timedelta(days=7)

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

    def change(self, topic: str, partition: int, **facts: Any) -> None:
        """Change what Kafka says of a partition: any field of its `PartitionView`."""
        self.views[topic, partition] = replace(self.views[topic, partition], **facts)

    def look(self, source: DeclaredSource) -> SourceView:  # described by the port, here and below
        source = one_source(source)
        missing = [topic for topic in source.topics if topic not in {name for name, _ in self.views}]
        if missing:
            raise TopicMissingError(f"Kafka has no topic {', '.join(missing)}", missing, self.cluster_id)
        found = [v for (topic, _), v in sorted(self.views.items()) if source.pattern or topic in source.topics]
        compacted = frozenset(self.compacted)
        return SourceView(
            cluster_id=self.cluster_id, partitions=found, invisible_allowed=compacted, compacted=compacted
        )

    def counted(self, ranges: Sequence[PlannedRange]) -> Mapping[tuple[str, int], int]:
        return {}

    def leave_out(self, topic: str, partition: int, *, markers: Sequence[int] = (), holes: Sequence[int] = ()) -> None:
        """Let offsets of a partition hold transaction markers or aborted records, or nothing at all."""
        self.without_record[topic, partition] = (frozenset(markers), frozenset(holes))

    def gaps(self, ranges: Sequence[PlannedRange]) -> Mapping[Key, LogGaps]:
        found = {}
        for one in ranges:
            offsets = range(one.range.start, one.range.until)
            markers, holes = self.without_record.get((one.tp.topic, one.tp.partition), (frozenset(), frozenset()))
            found[one.tp.topic, one.tp.partition] = LogGaps(
                invisible=len(markers.intersection(offsets)),
                holes=tuple(joined(OffsetRange(start=at, until=at + 1) for at in holes.intersection(offsets))),
            )
        return found

    def readable_ends(self, sources: Sequence[KafkaSource]) -> Mapping[TopicPartition, int]:
        views = (view for _, view in sorted(self.views.items()))
        return {view.tp: view.last_stable for view in views if any(one.reads(view.tp.topic) for one in sources)}

    def log_ends(self, sources: Sequence[KafkaSource]) -> Sequence[LogEnd]:
        return [
            LogEnd(
                tp=view.tp, log_start=view.log_start, last_stable=view.last_stable,
                retention=self.retention.get(view.tp.topic),
            )
            for _, view in sorted(self.views.items())
            if any(one.reads(view.tp.topic) for one in sources)
        ]  # fmt: skip

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for tp in partitions:
            view, times = self.views[tp.topic, tp.partition], self.times[tp.topic, tp.partition]
            readable = range(view.log_start, min(view.last_stable, len(times)))
            found[tp] = next((offset for offset in readable if times[offset] >= moment), None)
        return found

    def change_leader(self, topic: str, partition: int, *, truncate_to: int | None = None) -> None:
        """Elect another leader; an unclean election loses what lies at or above ``truncate_to``."""
        view = self.views[topic, partition]
        end = view.high_watermark if truncate_to is None else truncate_to
        epoch = (view.leader_epoch or 0) + 1
        starts = {
            old: start
            for old, start in self.leader_epochs.get((topic, partition), {0: 0}).items()
            if start < end or old == 0
        }
        self.leader_epochs[topic, partition] = {**starts, epoch: end}
        self.times[topic, partition] = self.times[topic, partition][:end]
        self.change(topic, partition, leader_epoch=epoch, high_watermark=end, last_stable=min(view.last_stable, end))

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for tp, epoch in epochs.items():
            view = self.views[tp.topic, tp.partition]
            starts = self.leader_epochs.get((tp.topic, tp.partition), {0: 0})
            later = [start for known, start in starts.items() if known > epoch]
            newest = max(starts)
            found[tp] = min(later) if later else view.high_watermark if epoch == newest else None
        return found

    def mirrored(self, group: str) -> Mapping[Key, MirroredOffset]:
        return dict(self.groups.get(group, {}))

    def mirror(
        self, group: str, heads: Sequence[Head], generation: int, epoch_id: int, token: str | None = None,
        number: int | None = None,
    ) -> None:  # fmt: skip
        self.groups.setdefault(group, {}).update(
            {
                (head.tp.topic, head.tp.partition): MirroredOffset(
                    offset=head.next_offset, generation=generation, epoch_id=epoch_id, token=token, number=number
                )
                for head in heads
            }
        )

    def group_retention(self) -> timedelta | None:
        return self.groups_kept

    def forget(self, group: str) -> None:
        self.groups.pop(group, None)
