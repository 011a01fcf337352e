"""Maps a backfill run's interval to offsets of each partition. Pure arithmetic.

``o(t)`` is the first offset with a timestamp at or after ``t``, at most the last stable offset. A run for the interval
``[t0, t1)`` commits ``[head, o(t1))``. It starts at the head, because ranges form a chain (INV-1), so it may begin
before ``o(t0)``. It cannot commit offsets before the origin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochline.protocol.epoch import Interval
from epochline.protocol.offsets import Head, OffsetRange, TopicPartition
from epochline.protocol.planning import PartitionView


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalOffsets:
    """Kafka's offsets of an interval: per partition ``o(t0)`` and ``o(t1)``, None if no record is that late."""

    interval: Interval
    starts: Mapping[TopicPartition, int | None]
    untils: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfInterval:
    """One partition of an interval, ``start`` to ``until``. The three ranges do not overlap; an empty one is None."""

    tp: TopicPartition
    start: int
    until: int
    before_origin: OffsetRange | None
    """Part of the interval before the origin: no run commits it."""
    committed: OffsetRange | None
    """Part of the interval before the head: committed already."""
    early: OffsetRange | None
    """Offsets between the head and the interval, which must be committed first."""


def parts_of(
    heads: Sequence[Head], partitions: Sequence[PartitionView], offsets: IntervalOffsets
) -> list[PartOfInterval]:
    """Split the interval for every partition that has a head and that Kafka shows; sorted by partition."""
    views = {view.tp: view for view in partitions}
    parts = []
    for head in sorted(heads, key=lambda one: one.tp):
        view = views.get(head.tp)
        if view is None:
            continue
        until = _at_most(offsets.untils.get(head.tp), view.last_stable)
        start = min(_at_most(offsets.starts.get(head.tp), view.last_stable), until)
        parts.append(
            PartOfInterval(
                tp=head.tp,
                start=start,
                until=until,
                before_origin=_range(start, min(until, head.origin)),
                committed=_range(max(start, head.origin), min(until, head.next_offset)),
                early=_range(head.next_offset, start),
            )
        )
    return parts


def _at_most(offset: int | None, last_stable: int) -> int:
    return last_stable if offset is None else min(offset, last_stable)


def _range(start: int, until: int) -> OffsetRange | None:
    return OffsetRange(start=start, until=until) if start < until else None
