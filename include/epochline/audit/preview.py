"""Reads records that no epoch has read yet, and parses them in this process. Nothing is written anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from epochline.arrow.cast.source import record_batch
from epochline.arrow.stage.preview import ParsedRecords, RecordParser
from epochline.declare.pipeline import Pipeline
from epochline.kafka.topic_logs import TopicLogs
from epochline.protocol.offsets import PlannedRange
from epochline.sources.reading import SourceReader

__all__ = ["ParsedRecords", "preview_ranges"]


def preview_ranges(
    pipeline: Pipeline, source: TopicLogs | SourceReader, ranges: Sequence[PlannedRange]
) -> ParsedRecords:
    """Read ranges, in Kafka as a ``read_committed`` consumer without a group, and parse records as an epoch would.

    Args:
        pipeline: the declaration.
        source: its source, as `epochline.sinks.adapters.Adapters.records` gives it.
        ranges: what to read.

    Raises:
        DeclarationError: a function that the declaration names cannot be imported.
        EpochlineError: the parse broke its contract, or the source does not answer, refuses, or lost offsets of a
            range.
    """
    parser = RecordParser(pipeline)
    with source.session() as session:
        for one in ranges:
            for columns in session.read(one.tp.topic, one.tp.partition, one.range):
                parser.add(record_batch(one.tp.topic, one.tp.partition, columns))
    return parser.result
