"""A Kafka in memory, in which everything may happen: logs are compacted, truncated or led by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from epochline.declare.inputs import DeclaredSource
from epochline.declare.source import KafkaSource
from epochline.protocol.balances import LogGaps
from epochline.protocol.offsets import OffsetRange, PlannedRange, TopicPartition, joined
from epochline.protocol.planning import LogEnd, Retention, SourceView
from epochline.sources.memory import Key, TopicsInMemory


@dataclass
class FakeKafka(TopicsInMemory):
    """Topics as ends of logs, in memory; a consumer group per pipeline. Implements `epochline.ports.OffsetSource`."""

    cluster_id: str = "fake"
    leader_epochs: dict[Key, dict[int, int]] = field(default_factory=dict)
    """Where the log of each leader epoch begins, for partitions whose leader changed: {epoch: start offset}."""
    retention: dict[str, Retention] = field(default_factory=dict)
    """By topic; no retention is known of the others."""
    compacted: set[str] = field(default_factory=set)
    without_record: dict[Key, tuple[frozenset[int], frozenset[int]]] = field(default_factory=dict)
    groups_kept: timedelta | None = timedelta(days=7)

    def change(self, topic: str, partition: int, **facts: Any) -> None:
        """Change what Kafka says of a partition: any field of its `PartitionView`."""
        self.views[topic, partition] = replace(self.views[topic, partition], **facts)

    def look(self, source: DeclaredSource) -> SourceView:
        compacted = frozenset(self.compacted)
        return replace(super().look(source), invisible_allowed=compacted, compacted=compacted)

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

    def log_ends(self, sources: Sequence[KafkaSource]) -> Sequence[LogEnd]:
        return [replace(end, retention=self.retention.get(end.tp.topic)) for end in super().log_ends(sources)]

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

    def group_retention(self) -> timedelta | None:
        return self.groups_kept
