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
    """Everything that a pipeline needs to continue after an epoch: the heads of every partition and the state."""

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
