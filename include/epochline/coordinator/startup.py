"""Ask Kafka what a startup mode needs, if an origin is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epochline.declare.pipeline import Pipeline
from epochline.declare.source import FromGroup, FromTimestamp
from epochline.ports import OffsetSource
from epochline.protocol.inputs import belongs_to
from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.origins import begun_by_startup
from epochline.protocol.planning import SourceView


def observe_startup(
    source: OffsetSource, pipeline: Pipeline, heads: Sequence[Head], view: SourceView
) -> Mapping[TopicPartition, int | None]:
    """Offsets of the group or moment, in the partitions that begin by the startup mode of their source.

    Empty if no origin is missing or the mode needs no offsets. No transaction may be open.
    """
    found: dict[TopicPartition, int | None] = {}
    for name, one in pipeline.inputs.items():
        startup = one.source.startup
        known = [head for head in heads if belongs_to(name, head.tp.topic)]
        there = [each for each in view.partitions if belongs_to(name, each.tp.topic)]
        new = [each.tp for each in begun_by_startup(known, there, by_pattern=one.source.pattern is not None)]
        if new and isinstance(startup, FromGroup):
            held = source.mirrored(startup.group)
            found |= {tp: held[tp.topic, tp.partition].offset for tp in new if (tp.topic, tp.partition) in held}
        elif new and isinstance(startup, FromTimestamp):
            found |= source.offsets_at(new, startup.timestamp)
    return found
