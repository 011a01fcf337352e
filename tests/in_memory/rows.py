"""The tables of a ledger in memory, and what the sides of its transactions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest
from epochline.ports import Accepted, ActionRow, Manifest, PipelineRow, PipelineStatus
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.epoch import Attempt, Epoch
from epochline.protocol.failures import RecordedError
from epochline.protocol.offsets import OffsetRange, PlannedRange, TopicPartition
from epochline.protocol.sink import Committable
from epochline.protocol.staging import StagedTable

if TYPE_CHECKING:
    from tests.in_memory.ledger import FakeTransaction

Key = tuple[str, int]
"""Topic and partition."""


@dataclass
class AttemptRow:
    """An attempt and what its job wrote down."""

    attempt: Attempt
    tables: tuple[StagedTable, ...]
    dropped: bool = False
    manifests: dict[str, Manifest] = field(default_factory=dict)
    parts: list[tuple[Manifest, dict[Key, PartitionCounts]]] = field(default_factory=list)
    fenced_writes: int = 0


@dataclass
class ReceiptRow:
    """What a sink shows, or is due to show, of an epoch."""

    committable: Committable
    shown_at: datetime | None
    tried: bool = False
    announced_by: str | None = None
    acknowledged: bool = False


@dataclass
class MirrorRow:
    """A write of the heads to the consumer group."""

    generation: int
    epoch_id: int
    topics: tuple[str, ...]
    confirmed_at: datetime | None = None
    latest_then: int = 0


@dataclass
class Rows:
    """All tables. Most are keyed by pipeline and epoch id."""

    pipelines: dict[str, PipelineRow] = field(default_factory=dict)
    epochs: dict[tuple[str, int], Epoch] = field(default_factory=dict)
    leases: dict[tuple[str, int], datetime] = field(default_factory=dict)
    ranges: dict[tuple[str, int], tuple[PlannedRange, ...]] = field(default_factory=dict)
    planned_targets: dict[tuple[str, int], dict[str, dict[str, str]]] = field(default_factory=dict)
    declarations: dict[tuple[str, int], Pipeline] = field(default_factory=dict)
    leader_epochs: dict[tuple[str, int, TopicPartition], int | None] = field(default_factory=dict)
    chains: dict[tuple[str, int, TopicPartition], list[tuple[int | None, int, int | None]]] = field(
        default_factory=dict
    )
    cuts: dict[tuple[str, int, TopicPartition], int | None] = field(default_factory=dict)
    """By pipeline, generation and partition: up to where an adopted log is the one that was read before."""
    log_ends: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    planned_ends: dict[tuple[str, int, TopicPartition], int | None] = field(default_factory=dict)
    """By pipeline, epoch and partition of its ranges: where the log ended when the epoch was planned."""
    declared_gaps: dict[tuple[str, TopicPartition], list[OffsetRange]] = field(default_factory=dict)
    attempts: dict[int, AttemptRow] = field(default_factory=dict)
    staging: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    targets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    requeue_claims: dict[tuple[str, int], list[tuple[int, str, int, int]]] = field(default_factory=dict)
    standing: dict[str, PipelineStatus] = field(default_factory=dict)
    actions: list[ActionRow] = field(default_factory=list)
    settings: dict[tuple[str, int], Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    aborts: dict[tuple[str, int], int] = field(default_factory=dict)
    failed_at: dict[int, datetime] = field(default_factory=dict)
    plan_failures: dict[str, RecordedError] = field(default_factory=dict)
    states: dict[tuple[str, str], tuple[int, StateDigest]] = field(default_factory=dict)
    undone: set[tuple[str, int]] = field(default_factory=set)
    receipts: dict[tuple[str, int, str], ReceiptRow] = field(default_factory=dict)
    accepted: dict[str, list[Accepted]] = field(default_factory=dict)
    mirrors: dict[str, dict[int, MirrorRow]] = field(default_factory=dict)
    """By pipeline and number."""


class Side:
    """One side of a `FakeTransaction`: reads and changes the transaction's rows."""

    def __init__(self, tx: FakeTransaction) -> None:
        self._tx = tx

    @property
    def rows(self) -> Rows:
        return self._tx.rows

    def _now(self) -> datetime:
        return self._tx.now()
