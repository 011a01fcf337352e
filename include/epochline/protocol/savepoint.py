"""Savepoints: where a pipeline stood after an epoch, kept under a name until somebody deletes it (C12, C13). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from epochline.declare.event_time import PartitionTime
from epochline.declare.state import StateDigest
from epochline.protocol.offsets import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedHead:
    """The head of one partition, and what was known of its event time."""

    tp: TopicPartition
    next_offset: int
    leader_epoch: int | None
    time: PartitionTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """Everything that a pipeline goes on from.

    Args:
        pipeline: under which it is kept.
        name: unique within the pipeline.
        epoch_id: the last epoch whose effects it contains.
        generation: of the heads; that of the epoch, or a later one that no epoch was committed in.
        cluster_id: Kafka's.
        watermark: as that epoch left it.
        heads: of every partition, those without a committed record included.
        states: of each state table, what the copy holds.
        made_by, reason, made_at: who, why, when.
        imported_at: when it came from a file; None where it was made here.
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
