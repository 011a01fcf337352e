"""Refuse an operator's action on a Kafka that went back in time."""

from __future__ import annotations

from epochline.coordinator.evidence import (
    check_kafka_is_not_older,
    last_mirror,
    mirrored_offsets,
    pausing_where_behind,
)
from epochline.declare.pipeline import Pipeline
from epochline.ports import Ledger, OffsetSource


def refuse_older_kafka(ledger: Ledger, source: OffsetSource, pipeline: Pipeline) -> None:
    """Refuse a Kafka that went back in time, and pause the pipeline once.

    Raises:
        KafkaBehindError: as `check_kafka_is_not_older`.
        SourceUnavailableError: Kafka does not answer.
    """
    with ledger.transaction() as tx:
        last = last_mirror(tx, pipeline)
    with pausing_where_behind(ledger, pipeline.name):
        check_kafka_is_not_older(pipeline, last, mirrored_offsets(source, pipeline))
