"""Epochs and the pipelines they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from epochline.declare.pipeline import Pipeline
from epochline.protocol.epoch import Counts, Epoch, EpochKind, Interval, Run
from epochline.protocol.offsets import PartitionCounts, PlannedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A pipeline as the ledger knows it."""

    generation: int
    last_epoch_id: int
    cluster_id: str | None


class EpochRows(Protocol):
    """Epochs and the pipelines they belong to."""

    def lock_pipeline(self, pipeline: str) -> PipelineRow:
        """Lock the pipeline's row until the transaction ends. A missing row is inserted."""

    def pipeline(self, pipeline: str) -> PipelineRow | None:
        """The pipeline's row, unlocked; None if the ledger does not know the pipeline."""

    def skip_ids(self, pipeline: str, epoch_id: int) -> None:
        """Never give this id or a lower one to a new epoch."""

    def remember_cluster(self, pipeline: str, cluster_id: str) -> None:
        """Record the Kafka cluster, or the cluster of each source, that the pipeline's offsets belong to."""

    def unfinished(self, pipeline: str) -> Epoch | None:
        """The epoch that is PLANNED or PRE_COMMITTED; a pipeline has one at most."""

    def newest_of_run(self, pipeline: str, run: Run) -> Epoch | None:
        """The run's own epoch with the highest id."""

    def newest_committed(self, pipeline: str) -> Epoch | None:
        """The committed epoch of kind ``regular`` with the highest id."""

    def lock(self, pipeline: str, epoch_id: int) -> Epoch:
        """Lock an epoch's row and read it.

        Raises:
            EpochNotFoundError: the pipeline has no such epoch.
        """

    def find(self, pipeline: str, epoch_id: int) -> Epoch | None:
        """An epoch by its id, without a lock; None if the ledger does not have it."""

    def later_than(self, pipeline: str, epoch_id: int) -> Sequence[Epoch]:
        """Epochs with a higher id that are COMMITTED, PRE_COMMITTED or PLANNED."""

    def insert(
        self,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        ranges: Sequence[PlannedRange],
        targets: Mapping[str, Mapping[str, str]],
        *,
        kind: EpochKind,
        lease: timedelta,
        record_limit: int | None,
        note: str | None,
        interval: Interval | None = None,
        replays: int | None = None,
        plan_seconds: float | None = None,
    ) -> Epoch:
        """Write a PLANNED epoch with its ranges, its targets' columns and the declaration (INV-3)."""

    def reopen(
        self, epoch: Epoch, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]], lease: timedelta
    ) -> Epoch:
        """Make an ABORTED epoch PLANNED again, with the same ranges and today's declaration."""

    def pipelines(self) -> Sequence[str]:
        """Every pipeline that the ledger knows, sorted."""

    def stale(self, after: timedelta) -> Sequence[Epoch]:
        """PLANNED epochs of all pipelines whose lease expired longer ago than ``after``."""

    def ranges(self, epoch: Epoch) -> Sequence[PlannedRange]:
        """The ranges that the epoch reads, sorted by topic and partition."""

    def planned_targets(self, epoch: Epoch) -> Mapping[str, Mapping[str, str]]:
        """Per sink, the target's columns as the plan saw them."""

    def declaration(self, epoch: Epoch) -> Pipeline:
        """The declaration that the epoch was planned with."""

    def last_declaration(self, pipeline: str) -> Pipeline | None:
        """The declaration of the pipeline's newest committed epoch."""

    def declarations(self, pipeline: str) -> Iterator[Pipeline]:
        """Declarations that epochs of the pipeline were committed with, most recently used first, loaded one by one."""

    def renew_lease(self, epoch: Epoch, attempt: int, lease: timedelta) -> bool:
        """Extend the lease of a PLANNED epoch for its live attempt. Returns False for any other attempt."""

    def mark_pre_committed(self, epoch: Epoch, counts: Counts, seen: Mapping[tuple[str, int], PartitionCounts]) -> None:
        """PLANNED → PRE_COMMITTED, with the counts of the epoch and of each range."""

    def mark_committed(self, epoch: Epoch, rows_written: int) -> Epoch:
        """PRE_COMMITTED → COMMITTED."""

    def is_undone(self, epoch: Epoch) -> bool:
        """Whether a restore or a replay undid what the epoch committed."""

    def supersede(self, epoch: Epoch) -> bool:
        """Mark the epoch that a replay read as undone, and delete its quarantined records.

        Returns False if it is undone already, or one of its quarantined records was requeued.
        """

    def mark_aborted(self, epoch: Epoch, reason: str) -> Epoch:
        """PLANNED or PRE_COMMITTED → ABORTED."""
