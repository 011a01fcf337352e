"""Savepoints: the named position and state of a pipeline after an epoch, kept until deleted. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from epochline.declare.event_time import PartitionTime
from epochline.declare.state import StateDigest
from epochline.protocol.offsets import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedHead:
    """The head of one partition, and its event time."""

    tp: TopicPartition
    next_offset: int
    leader_epoch: int | None
    time: PartitionTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """Everything that a pipeline needs to continue from an epoch.

    Args:
        pipeline: name of the pipeline.
        name: unique within the pipeline.
        epoch_id: the last epoch whose effects it contains.
        generation: generation of the heads: the epoch's, or a later one without a committed epoch.
        cluster_id: id of the Kafka cluster.
        watermark: the epoch's watermark.
        heads: heads of every partition, including those without a committed record.
        states: content of the copy of each state table.
        made_by, reason, made_at: who made it, why and when.
        imported_at: time of its import from a file, or None.
    """

    pipeline: str
    name: str
    epoch_id: int
    generation: int
    cluster_id: str | None
    watermark: datetime | None
    heads: tuple[SavedHead, ...]
    states: Mapping[str, StateDigest]
    made_by: str
    reason: str
    made_at: datetime | None = None
    imported_at: datetime | None = None

    def __str__(self) -> str:
        return f"savepoint {self.name} of {self.pipeline}"
