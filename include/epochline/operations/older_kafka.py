"""Refuse an operator's action on a Kafka that went back in time."""

from __future__ import annotations

from epochline.coordinator.evidence import pausing_where_behind
from epochline.coordinator.group import ConsumerGroup
from epochline.declare.pipeline import Pipeline
from epochline.ports import Ledger, OffsetSource


def refuse_older_kafka(ledger: Ledger, source: OffsetSource, pipeline: Pipeline) -> None:
    """Refuse a Kafka that went back in time, and pause the pipeline once.

    Raises:
        KafkaBehindError: as `ConsumerGroup.refuse_older`.
        SourceUnavailableError: Kafka does not answer.
    """
    with ledger.transaction() as tx:
        last = tx.receipts.last_mirror(pipeline.name)
    with pausing_where_behind(ledger, pipeline.name):
        ConsumerGroup.observe(source, pipeline, last).refuse_older()
