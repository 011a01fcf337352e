"""What a plan asks Kafka, in one place and never while a transaction is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochline.backfill import IntervalOffsets
from epochline.continuity import check_same_log
from epochline.coordinator.checks import check_same_cluster, check_topics, is_read
from epochline.coordinator.interval import ask_interval
from epochline.coordinator.startup import ask_startup
from epochline.epoch import Interval
from epochline.errors import TopicMissingError
from epochline.offsets import Head, PlannedRange, TopicPartition
from epochline.pipeline import Pipeline
from epochline.planning import SourceView
from epochline.ports import OffsetSource, PipelineRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Kafka's answers.

    ``startup`` is what `ask_startup` found, ``leader_epoch_ends`` where the log of a former leader ends, for heads that
    were read under one; ``backfill`` is where the interval lies, if there is one.
    """

    view: SourceView
    startup: Mapping[TopicPartition, int | None]
    leader_epoch_ends: Mapping[TopicPartition, int | None]
    backfill: IntervalOffsets | None


def ask(
    source: OffsetSource,
    pipeline: Pipeline,
    row: PipelineRow,
    heads: Sequence[Head],
    interval: Interval | None = None,
) -> Asked:
    """Ask Kafka all that a plan needs to know, given what the ledger knows.

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
    check_topics(pipeline, heads, view)
    read = [head for head in heads if is_read(pipeline, head, view)]
    return Asked(
        view=view,
        startup=ask_startup(source, pipeline, heads, view),
        leader_epoch_ends=former_leaders_ends(source, read, view),
        backfill=None if interval is None else ask_interval(source, view, interval),
    )


def former_leaders_ends(
    source: OffsetSource, places: Sequence[Head | PlannedRange], view: SourceView
) -> Mapping[TopicPartition, int | None]:
    """Where the log of a former leader ends, for places that were read or planned under one (trap 11).

    A log that was truncated and has grown past a place again shows it in its leader epochs alone.
    """
    now = {one.tp: one.leader_epoch for one in view.partitions if one.leader_epoch is not None}
    former = {
        place.tp: place.leader_epoch
        for place in places
        if place.leader_epoch is not None and now.get(place.tp, place.leader_epoch) != place.leader_epoch
    }
    return source.leader_epoch_ends(former) if former else {}
