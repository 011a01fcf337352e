"""Epochs and pipelines, the attempts that stage them, and the chain of committed ranges."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from epochline.declare.pipeline import Pipeline
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.bounds import Verdict
from epochline.protocol.epoch import Attempt, Counts, Epoch, EpochKind, Interval, Run
from epochline.protocol.failures import RecordedError
from epochline.protocol.offsets import Head, OffsetRange, Origin, PlannedRange, TopicPartition
from epochline.protocol.planning import LogEnd
from epochline.protocol.refused import RefusedRow
from epochline.protocol.sink import WrittenPart
from epochline.protocol.staging import StagingTicket


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A pipeline as the ledger knows it."""

    generation: int
    last_epoch_id: int
    cluster_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpoch:
    """What a plan decided about an epoch that is about to be written."""

    kind: EpochKind
    ranges: Sequence[PlannedRange] = ()
    record_limit: int | None = None
    interval: Interval | None = None
    replays: int | None = None
    plan_seconds: float | None = None
    """How long the ledger and Kafka were asked."""


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
        """Lock an epoch's row and read it. Raises `EpochNotFoundError` if the pipeline has no such epoch."""

    def find(self, pipeline: str, epoch_id: int) -> Epoch | None:
        """An epoch by its id, without a lock; None if the ledger does not have it."""

    def later_than(self, pipeline: str, epoch_id: int) -> Sequence[Epoch]:
        """Epochs with a higher id that are COMMITTED, PRE_COMMITTED or PLANNED."""

    def insert(
        self,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        draft: NewEpoch,
        targets: Mapping[str, Mapping[str, str]],
        *,
        lease: timedelta,
        note: str | None,
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

    def mark_pre_committed(
        self,
        epoch: Epoch,
        counts: Counts,
        seen: Mapping[tuple[str, int], PartitionCounts],
        verdict: Verdict | None = None,
    ) -> None:
        """PLANNED → PRE_COMMITTED, with the counts of the epoch and of each range, and the verdict on its attempt."""

    def approve(self, epoch: Epoch, attempt: int, by: str, reason: str) -> bool:
        """Approve a sealed epoch, if it awaits approval for this attempt. Returns whether it did."""

    def mark_committed(self, epoch: Epoch, rows_written: int) -> Epoch:
        """PRE_COMMITTED → COMMITTED."""

    def is_undone(self, epoch: Epoch) -> bool:
        """Whether a restore or a replay undid what the epoch committed."""

    def supersede(self, epoch: Epoch) -> bool:
        """Mark the epoch that a replay read as undone, and delete its quarantined records.

        Returns False if it is undone already or one of its quarantined records was requeued.
        """

    def mark_aborted(self, epoch: Epoch, reason: str) -> Epoch:
        """PLANNED or PRE_COMMITTED → ABORTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """How many parts and rows an attempt staged for one sink under one write id."""

    sink: str
    write_id: str
    parts: int
    rows: int
    body: Mapping[str, Any] | None = None
    """What the seal left for the commit: of rows in staging their ``digest``, and what the sink itself needs."""


class Attempts(Protocol):
    """Attempts, what they wrote, and their fencing (INV-4)."""

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        """Insert the epoch's next attempt and make its staging tables."""

    def live(self, epoch: Epoch) -> Attempt | None:
        """The epoch's attempt that is not fenced; None if every attempt is fenced or none was made."""

    def committed_token(self, pipeline: str, epoch_id: int) -> str | None:
        """Token of the attempt that committed an epoch; None if the epoch is not committed."""

    def lock_attempt(self, attempt: Attempt) -> Attempt:
        """Wait for writers of the attempt that are in flight; block new ones until the transaction ends."""

    def ticket(self, attempt: Attempt, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]) -> StagingTicket:
        """The ticket that `begin` gave out."""

    def fence(self, attempt: Attempt, reason: str) -> None:
        """Reject everything that the attempt writes from now on. The reason is added to the attempt's error."""

    def note_error(self, attempt: Attempt, error: RecordedError) -> None:
        """Add to the errors of an attempt that is not fenced, unless it has this one. The attempt has failed."""

    def seal(self, attempt: Attempt, rows_staged: int) -> None:
        """Close the attempt's staging: later parts are rejected."""

    def keep_refused(self, attempt: Attempt, rows: Sequence[RefusedRow]) -> None:
        """Record the rows that targets refused, so that later attempts skip their records."""

    def finish(self, attempt: Attempt) -> None:
        """Record that the attempt's rows were committed and its staging tables dropped."""

    def manifests(self, attempt: Attempt) -> Sequence[Manifest]:
        """What the Spark driver recorded, one per sink."""

    def part_sums(self, attempt: Attempt) -> Sequence[Manifest]:
        """The same counted by the parts, per sink and write id."""

    def seen(self, attempt: Attempt) -> Mapping[tuple[str, int], PartitionCounts]:
        """Counts of the records that the parts received, per topic and partition."""

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        """The parts of one sink, in the order of their numbers."""

    def end_sessions(self, attempt: Attempt) -> int:
        """End the sessions of the attempt's writers, and record each as a fenced write. Returns their number."""

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        """Attempts whose staging is no longer needed: fenced, or of an epoch that is COMMITTED or ABORTED."""

    def unexplained(self) -> Sequence[str]:
        """Names of staging tables that belong to no attempt of any pipeline, sorted."""

    def drop_staging(self, attempt: Attempt) -> None:
        """Drop the attempt's staging tables."""


class Chain(Protocol):
    """The committed ranges (INV-1)."""

    def heads(self, pipeline: str, generation: int) -> Sequence[Head]:
        """Every partition's head, sorted. A partition with nothing committed has its origin as head."""

    def reached(self, pipeline: str, generation: int, epoch_id: int) -> Sequence[Head]:
        """Every partition's head as it was right after an epoch's commit."""

    def write_origin(self, pipeline: str, generation: int, origin: Origin) -> None:
        """Write where a partition begins. Does nothing if the partition has an origin."""

    def keep_log_ends(self, pipeline: str, ends: Sequence[LogEnd]) -> None:
        """Store begin, end and retention of logs, for people; nothing for a pipeline that has never planned."""

    def carry_over(
        self, pipeline: str, generation: int, head: Head, chosen_by: str, same_log_until: int | None = None
    ) -> None:
        """Begin a new generation's partition with what earlier ones committed: its origin and one link to its head.

        Without the link if nothing was committed. ``same_log_until`` is as in `epochline.protocol.offsets.Origin`.
        """

    def epochs_within(self, pipeline: str, generation: int, tp: TopicPartition, offsets: OffsetRange) -> Sequence[int]:
        """Ids of the epochs that committed any of these offsets, in order."""

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        """Compare-and-swap: append the range if it starts at the head. Returns whether it did."""

    def extend_back(self, epoch: Epoch, planned: PlannedRange) -> bool:
        """Compare-and-swap: move the origin back over the range if it ends there. Returns whether it did."""

    def superseded(self, pipeline: str, generation: int, tp: TopicPartition) -> Sequence[OffsetRange] | None:
        """What earlier generations committed of today's log before its origin in this one; sorted, and joined.

        Without ranges that a restore undid and offsets that the log lost since. None if it is unknown where the log was
        cut off, because an older version adopted it.
        """

    def cut_since(self, pipeline: str, generation: int, tp: TopicPartition) -> int | None:
        """Where the log was cut off, as later generations recorded it: what lies beyond is of another log. Or None."""

    def step_over(self, pipeline: str, generation: int, committed: PlannedRange) -> bool:
        """`extend_back` over a range of `superseded`, as a carried link."""

    def declare_lost(self, pipeline: str, generation: int, lost: PlannedRange) -> bool:
        """Move the head over a range that no epoch will read (INV-9), if it starts there. Returns whether it did."""

    def declare_gap(self, pipeline: str, tp: TopicPartition, hole: OffsetRange) -> None:
        """Record a hole in a log as lost: an epoch that reads past it balances (INV-9)."""

    def declared_gaps(self, pipeline: str, tp: TopicPartition) -> Sequence[OffsetRange]:
        """The holes that were declared lost."""
