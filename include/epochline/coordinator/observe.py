"""What a plan asks Kafka: its logs, and the consumer group that mirrors the heads. No transaction may be open."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self

from epochline.coordinator.checks import check_same_cluster
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import FromGroup, FromTimestamp
from epochline.errors import DataLossError, KafkaBehindError, TopicMissingError
from epochline.ports import Accepted, OffsetSource, PipelineRow
from epochline.protocol.data_loss import CutOff, LeaderEpochEnds, check_same_log
from epochline.protocol.epoch import Interval
from epochline.protocol.mirror import LastMirror, Mirrored, MirroredOffset
from epochline.protocol.offsets import Head, PlannedRange, TopicPartition, belongs_to
from epochline.protocol.origins import begun_by_startup
from epochline.protocol.planning import IntervalOffsets, SourceView
from epochline.protocol.quantities import duration
from epochline.protocol.sink import ShownEpoch

_SHOWN = 10
"""Most partitions or topics that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceObservation:
    """Kafka's answers.

    ``startup`` is the result of `observe_startup`. ``leader_epoch_ends`` says where the logs of former leaders end, for
    heads that were read under one. ``cut_off`` is what sinks show but the log no longer holds.
    """

    view: SourceView
    startup: Mapping[TopicPartition, int | None]
    leader_epoch_ends: Mapping[TopicPartition, int | None]
    backfill: IntervalOffsets | None
    cut_off: Sequence[CutOff] = ()


@contextmanager
def confirmed(source: OffsetSource, pipeline: Pipeline) -> Iterator[None]:
    """Have the whole cluster asked before it is believed that it lost what the block finds lost.

    Raises `SourceUnavailableError` in place of the block's `DataLossError`, as `OffsetSource.confirm`.
    """
    try:
        yield
    except DataLossError:
        source.confirm(pipeline.consumer_group)
        raise


def observe_source(
    source: OffsetSource,
    pipeline: Pipeline,
    row: PipelineRow,
    heads: Sequence[Head],
    interval: Interval | None = None,
    shown: Sequence[tuple[str, Sequence[Head]]] = (),
) -> SourceObservation:
    """Ask Kafka everything that a plan needs, given what the ledger says.

    ``interval`` is that of a backfill run. ``shown`` has sinks with the places beyond the heads up to which they show
    every record.

    Raises:
        SourceUnavailableError: Kafka does not answer, or a partition has no leader.
        SourceError: a topic that the declaration names does not exist, and was never read.
        DataLossError: another cluster answers, a topic that was read is gone, or was made again.
    """
    try:
        view = source.look(pipeline.source)
    except TopicMissingError as error:
        check_same_cluster(pipeline, row, heads, error.cluster_id)
        check_same_log(pipeline.name, [head for head in heads if head.tp.topic in error.topics], ())
        raise
    check_same_cluster(pipeline, row, heads, view.cluster_id, view.partitions)
    read = [head for head in heads if pipeline.source.keeps(head.tp.topic)]
    # A topic that was made again stops the plan before an origin is written for it.
    ids = {partition.tp.topic: partition.tp.topic_id for partition in view.partitions}
    made_again = [head for head in read if ids.get(head.tp.topic, head.tp.topic_id) != head.tp.topic_id]
    if made_again:
        check_same_log(pipeline.name, made_again, view.partitions)
    return SourceObservation(
        view=view,
        startup=observe_startup(source, pipeline, heads, view),
        leader_epoch_ends=former_leaders_ends(source, read, view),
        backfill=None if interval is None else _observe_interval(source, view, interval),
        cut_off=cut_off(source, shown, view),
    )


def cut_off(source: OffsetSource, shown: Sequence[tuple[str, Sequence[Head]]], view: SourceView) -> Sequence[CutOff]:
    """What sinks show but truncated logs no longer hold.

    Topics that were made again are left out, because their offsets mean other records.
    """
    high_watermarks = {partition.tp: partition.high_watermark for partition in view.partitions}
    cuts = []
    for shown_by, places in shown:
        existing = [place for place in places if place.tp in high_watermarks]
        ends = former_leaders_ends(source, existing, view)
        for place in existing:
            end = ends.get(place.tp, high_watermarks[place.tp])
            if end is None or end < place.next_offset:
                # A log that knows no leader of that time holds none of the shown records.
                cuts.append(CutOff(shown_by=shown_by, tp=place.tp, shown=place.next_offset, end=end or 0))
    return cuts


def former_leaders_ends(
    source: OffsetSource, places: Sequence[Head | PlannedRange], view: SourceView
) -> Mapping[TopicPartition, int | None]:
    """Where the log of a former leader ends, for places that were read or planned under one.

    If a truncated log has grown past a place again, only its leader epochs show the truncation.
    """
    now = {partition.tp: partition.leader_epoch for partition in view.partitions if partition.leader_epoch is not None}
    former = {
        place.tp: place.leader_epoch
        for place in places
        if place.leader_epoch is not None and now.get(place.tp, place.leader_epoch) != place.leader_epoch
    }
    return source.leader_epoch_ends(former) if former else {}


def ends_of_leader_epochs(source: OffsetSource, ranges: Iterable[PlannedRange], view: SourceView) -> LeaderEpochEnds:
    """As `former_leaders_ends`, for ranges that epochs read under several leaders of one partition."""
    by_epoch: dict[int, list[PlannedRange]] = {}
    for planned in ranges:
        if planned.leader_epoch is not None:
            by_epoch.setdefault(planned.leader_epoch, []).append(planned)
    return {
        (tp, epoch): end
        for epoch, read in sorted(by_epoch.items())
        for tp, end in former_leaders_ends(source, read, view).items()
    }


def _observe_interval(source: OffsetSource, view: SourceView, interval: Interval) -> IntervalOffsets:
    partitions = [partition.tp for partition in view.partitions]
    starts = source.offsets_at(partitions, interval.start)
    return IntervalOffsets(interval=interval, starts=starts, untils=source.offsets_at(partitions, interval.until))


def observe_startup(
    source: OffsetSource, pipeline: Pipeline, heads: Sequence[Head], view: SourceView
) -> Mapping[TopicPartition, int | None]:
    """Offsets of the group or moment, in the partitions that begin by the startup mode of their source.

    Empty if no origin is missing or the mode needs no offsets. No transaction may be open.
    """
    offsets: dict[TopicPartition, int | None] = {}
    for name, input_ in pipeline.inputs.items():
        startup = input_.source.startup
        own = [head for head in heads if belongs_to(name, head.tp.topic)]
        there = [partition for partition in view.partitions if belongs_to(name, partition.tp.topic)]
        new = [partition.tp for partition in begun_by_startup(own, there, by_pattern=input_.source.pattern is not None)]
        if new and isinstance(startup, FromGroup):
            held = source.mirrored(startup.group)
            offsets |= {tp: held[tp.topic, tp.partition].offset for tp in new if (tp.topic, tp.partition) in held}
        elif new and isinstance(startup, FromTimestamp):
            offsets |= source.offsets_at(new, startup.timestamp)
    return offsets


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
    def observe(cls, source: OffsetSource, pipeline: Pipeline, last: LastMirror | None) -> Self:
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
            return f"{gone}: Kafka deletes the offsets of a group that nobody writes; they are written again"
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

    def lags(self, pipeline: Pipeline, generation: int, heads: Sequence[Head]) -> bool:
        """Whether the group lacks what an epoch committed: its task died before the mirror, or the group has expired.

        Never if somebody else wrote an offset: the next commit writes over it.
        """
        committed = [head for head in heads if head.epoch_id and pipeline.source.mirrors(head.tp.topic)]
        held = {head: self.offsets.get((head.tp.topic, head.tp.partition)) for head in committed}
        if any(offset.epoch_id is None for offset in held.values() if offset is not None):
            return False
        return any(
            offset is None or (offset.generation or 0, offset.offset) < (generation, head.next_offset)
            for head, offset in held.items()
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
