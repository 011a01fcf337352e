"""The consumer group that mirrors a pipeline's heads: what it shows, and whether Kafka went back in time (INV-8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from epochline.declare.pipeline import Pipeline
from epochline.errors import KafkaBehindError
from epochline.ports import Accepted, OffsetSource
from epochline.protocol.mirror import LastMirror, Mirrored, MirroredOffset
from epochline.protocol.offsets import Head
from epochline.protocol.quantities import duration
from epochline.protocol.sink import ShownEpoch

_SHOWN = 10
"""Most partitions or topics that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """What a pipeline's consumer group holds, next to the newest write to it that the ledger knows Kafka took.

    ``retention`` is how long Kafka keeps the offsets of a group. It is asked only if the group lacks offsets that were
    written to it.
    """

    pipeline: str
    name: str
    offsets: Mirrored
    last: LastMirror | None
    retention: timedelta | None

    @classmethod
    def observe(cls, source: OffsetSource, pipeline: Pipeline, last: LastMirror | None) -> ConsumerGroup:
        """Ask Kafka; nothing is asked if the declaration has ``mirror=False``.

        The ledger gave ``last`` before: a write between the two would make the group look older.
        """
        offsets = source.mirrored(pipeline.consumer_group) if pipeline.source.mirror else {}
        if last is not None:
            last = replace(last, topics=frozenset(filter(pipeline.source.mirrors, last.topics)))
        retention = source.group_retention() if last is not None and last.missing(offsets) else None
        return cls(
            pipeline=pipeline.name, name=pipeline.consumer_group, offsets=offsets, last=last, retention=retention
        )

    @property
    def evidence(self) -> Sequence[Accepted]:
        """The newest epoch that mirrored its heads to the group; nothing if none did."""
        written = [
            ShownEpoch(generation=offset.generation, epoch_id=offset.epoch_id, token=offset.token)
            for offset in self.offsets.values()
            if offset.generation is not None and offset.epoch_id is not None
        ]
        newest = max(written, key=lambda shown: (shown.epoch_id, shown.generation), default=None)
        return () if newest is None else (Accepted(shown_by=self.name, shown=newest),)

    @property
    def older(self) -> dict[tuple[str, int], MirroredOffset]:
        """Offsets of an earlier write than the last one."""
        return {} if self.last is None else self.last.older(self.offsets)

    @property
    def missing(self) -> list[str]:
        """Topics that were written to the group and of which it shows nothing any more."""
        return [] if self.last is None else self.last.missing(self.offsets)

    def refuse_older(self) -> None:
        """Raise `KafkaBehindError` if the group shows an earlier write than the ledger knows it to have taken.

        If other records have taken the offsets, the logs of a Kafka that went back in time would not show it.
        """
        if self.last is None or not self.older:
            return
        shown = "; ".join(
            f"{topic}-{partition}: offset {held.offset} of epoch {held.epoch_id}"
            for (topic, partition), held in sorted(self.older.items())[:_SHOWN]
        )
        raise KafkaBehindError(
            f"{self.pipeline}: consumer group {self.name} shows an older mirror ({shown}) than the one of"
            f" epoch {self.last.epoch_id}, which Kafka took after it. Kafka went back in time, as from a backup, and"
            " other records may have the offsets that were read. Nothing was planned. The command goes on where the"
            f" group stands. --at head goes on at the heads, if `epochline audit {self.pipeline}` finds the log to be"
            " the one that was read.",
            f"adopt-topic {self.pipeline} --cluster --at truncation --reason …",
        )

    def refuse_gone(self) -> str | None:
        """Raise `KafkaBehindError` if the group is gone, unless it may have expired; a note if it may."""
        if self.last is None or not self.missing:
            return None
        gone = f"consumer group {self.name} holds no offset of {', '.join(self.missing[:_SHOWN])} any more"
        if self.last.may_have_expired(self.retention):
            return f"{gone}: Kafka deletes the offsets of a group that nobody writes; the next commit writes them again"
        kept = "an unknown time" if self.retention is None else duration(self.retention.total_seconds())
        raise KafkaBehindError(
            f"{self.pipeline}: {gone}, although the mirror of epoch {self.last.epoch_id} was written"
            f" {duration(self.last.age.total_seconds())} ago and Kafka keeps it for {kept}. Somebody deleted the group,"
            " or Kafka went back in time, as from a backup, and other records may have the offsets that were read."
            " Nothing was planned. The command goes on at the heads, if"
            f" `epochline audit {self.pipeline}` finds the log to be the one that was read; --at earliest reads what"
            " Kafka has now.",
            f"adopt-topic {self.pipeline} --cluster --at head --reason …",
        )

    def moved_by_others(self, heads: Sequence[Head]) -> list[str]:
        """Notes on offsets that epochline did not write. Only the ledger counts (INV-8)."""
        next_offsets = {(head.tp.topic, head.tp.partition): head.next_offset for head in heads}
        return [
            f"{topic}-{partition}: the consumer group was moved to {moved.offset}; the ledger's"
            f" {next_offsets[topic, partition]} counts"
            for (topic, partition), moved in sorted(self.offsets.items())
            if moved.epoch_id is None and next_offsets.get((topic, partition), moved.offset) != moved.offset
        ]
