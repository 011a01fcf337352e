"""Ask Kafka what a startup mode needs, if an origin is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epochline.declare.pipeline import Pipeline
from epochline.declare.startup import FromGroup, FromTimestamp
from epochline.ports import OffsetSource
from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.origins import begun_by_startup
from epochline.protocol.planning import SourceView


def observe_startup(
    source: OffsetSource, pipeline: Pipeline, heads: Sequence[Head], view: SourceView
) -> Mapping[TopicPartition, int | None]:
    """Offsets of the group or moment, in the partitions that begin by the startup mode.

    Empty if no origin is missing or the mode needs no offsets. No transaction may be open.
    """
    by_pattern = pipeline.source.pattern is not None
    new = [one.tp for one in begun_by_startup(heads, view.partitions, by_pattern=by_pattern)]
    startup = pipeline.source.startup
    if new and isinstance(startup, FromGroup):
        held = source.mirrored(startup.group)
        return {tp: held[tp.topic, tp.partition].offset for tp in new if (tp.topic, tp.partition) in held}
    if new and isinstance(startup, FromTimestamp):
        return source.offsets_at(new, startup.timestamp)
    return {}
