"""Give a run its epoch: what a plan, an operator's action and a replay share (INV-3)."""

import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Literal

from epochline.config.resolve import ResolvedSettings
from epochline.coordinator.checks import check_admitted, check_against_ledger
from epochline.declare.pipeline import Pipeline
from epochline.ports import Ledger, NewEpoch, PipelineRow, Transaction
from epochline.protocol.epoch import Epoch, EpochState, Interval, Run
from epochline.protocol.offsets import PlannedRange, TopicPartition

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=60)
"""How long a PLANNED epoch belongs to its run without a sign of life (database clock)."""


class PlanOutcome(enum.StrEnum):
    """What a plan found and did."""

    PLANNED = "planned"
    REOPENED = "reopened"
    RESUMED = "resumed"
    PRE_COMMITTED = "pre_committed"
    ALREADY_COMMITTED = "already_committed"
    NOTHING_TO_READ = "nothing_to_read"
    COVERED = "covered"
    """The interval of a backfill run is committed already. No epoch was written; the notes name those that did it."""
    SINKS_FULL = "sinks_full"
    """A sink has too many unpublished epochs. The backlog waits in Kafka; the notes name the sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The epoch that the run continues with, if any, and notes for people."""

    outcome: PlanOutcome
    epoch: Epoch | None = None
    ranges: tuple[PlannedRange, ...] = ()
    notes: tuple[str, ...] = ()
    covered_by: tuple[int, ...] = ()
    """For a backfill run: ids of the epochs that committed offsets of its interval before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a run asks of its epoch.

    Args:
        record_limit: most offsets; by default the declaration's limit, and no limit for a backfill run.
        note: kept with the epoch.
        writers: how many sessions will write at once, compared with PostgreSQL's free connections; None if unknown.
        lease: how long the epoch belongs to the run without a sign of life.
        interval: of a backfill run, whose ranges end at the end of the interval at the latest. An unfinished or
            aborted epoch of the run keeps its ranges, whatever the interval (INV-3).
        settings: kept with the epoch. A plan uses the declaration's own by default.
        scheduled: whether the schedule started the run, so that its epoch starts an interval after the one before.
    """

    record_limit: int | None = None
    note: str | None = None
    writers: int | None = None
    lease: timedelta = LEASE
    interval: Interval | None = None
    settings: ResolvedSettings | None = None
    scheduled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDraft(NewEpoch):
    """An epoch about to be written.

    ``limit_from`` is the place that decided ``record_limit``; None if the kind of the epoch decides what it reads.
    ``notes`` and ``covered_by`` go into the `Plan`. ``write_more`` is called in the transaction that writes the epoch.
    """

    limit_from: str | None = None
    notes: tuple[str, ...] = ()
    covered_by: tuple[int, ...] = ()
    write_more: Callable[[Transaction, Epoch], object] = lambda tx, epoch: None


def limit_place(pipeline: Pipeline) -> Literal["declaration", "default"]:
    """The place that gives the most records of an epoch, before ``target_duration`` or a run lowers it."""
    return "declaration" if "records_per_epoch" in pipeline.source.model_fields_set else "default"


class Intent(ABC):
    """What an epoch is planned for. `write_epoch` calls the methods in this order, in one transaction."""

    claims_targets: ClassVar[bool] = True
    """Whether the plan marks the targets as written by this pipeline."""

    @abstractmethod
    def check(self, tx: Transaction, row: PipelineRow) -> None:
        """Raise `PlanChangedError` if other runs or Kafka overtook the plan. The pipeline's row is locked."""

    def obstacle(self, tx: Transaction, own: Epoch) -> str | None:
        """Why the run's own aborted epoch cannot be tried again; None if it can."""
        return None

    def left_unread(self, ranges: Sequence[PlannedRange]) -> Collection[TopicPartition]:
        """The partitions that have records beyond the ranges of the epoch; none for an epoch that moves no head."""
        return ()

    @abstractmethod
    def draft(self, tx: Transaction, row: PipelineRow) -> EpochDraft | Plan:
        """The epoch to write, or a plan without one."""


def write_epoch(
    ledger: Ledger, pipeline: Pipeline, run: Run, request: PlanRequest, intent: Intent, own: Epoch | None,
    notes: Sequence[str],
) -> Plan:  # fmt: skip
    """Reopen the run's own aborted epoch ``own``, or write a new one. ``notes`` go into the plan, before the intent's.

    Raises:
        PlanChangedError: another run planned or committed meanwhile; trying again helps.
        PipelinePausedError, PipelineDroppedError, TargetError, DeclarationError, StateError, ConfigurationError:
            nothing was planned.
    """
    with ledger.transaction() as tx:
        row = tx.epochs.lock_pipeline(pipeline.name)
        check_admitted(tx, pipeline.name)
        intent.check(tx, row)
        targets = tx.targets.inspect(pipeline)
        if intent.claims_targets:
            tx.targets.refuse_foreign(pipeline)
            tx.targets.claim(pipeline)
        check_against_ledger(tx, pipeline, request.writers)
        if own is not None:
            own = tx.epochs.lock(own.pipeline, own.epoch_id)
            obstacle = _overtaken(tx, own, row) or intent.obstacle(tx, own)
            if obstacle is None:
                epoch = tx.epochs.reopen(own, pipeline, targets, request.lease)
                _keep_settings(tx, epoch, request, tx.history.settings(epoch).get("record_limit"))
                ranges = tuple(tx.epochs.ranges(epoch))
                _keep_unread(tx, pipeline, epoch, intent.left_unread(ranges))
                log.info("epoch.reopened pipeline=%s epoch=%d", pipeline.name, epoch.epoch_id)
                return Plan(outcome=PlanOutcome.REOPENED, epoch=epoch, ranges=ranges, notes=tuple(notes))
            notes = [*notes, f"{own} is not tried again: {obstacle}"]
        draft = intent.draft(tx, row)
        notes = (*notes, *draft.notes)
        if isinstance(draft, Plan):
            return replace(draft, notes=notes)
        epoch = tx.epochs.insert(pipeline, row, run, draft, targets, lease=request.lease, note=request.note)
        limit = {"value": draft.record_limit, "from": draft.limit_from or f"kind {draft.kind}"}
        _keep_settings(tx, epoch, request, limit)
        _keep_unread(tx, pipeline, epoch, intent.left_unread(draft.ranges))
        draft.write_more(tx, epoch)
    log.info(
        "epoch.planned pipeline=%s epoch=%d kind=%s partitions=%d offsets=%d run=%s",
        pipeline.name, epoch.epoch_id, epoch.kind, len(draft.ranges),
        sum(len(planned.range) for planned in draft.ranges), run.run_id,
    )  # fmt: skip
    return Plan(
        outcome=PlanOutcome.PLANNED, epoch=epoch, ranges=tuple(draft.ranges), notes=notes, covered_by=draft.covered_by
    )


def _overtaken(tx: Transaction, own: Epoch, row: PipelineRow) -> str | None:
    """Why an epoch of any kind cannot be tried again."""
    if own.state is not EpochState.ABORTED:
        return f"it is {own.state}"
    later = tx.epochs.later_than(own.pipeline, own.epoch_id)
    if later:
        return f"{later[0]} ({later[0].state}) came after it"
    if row.generation != own.generation:
        return f"its ranges are of generation {own.generation}, and generation {row.generation} has begun"
    return None


def _keep_unread(tx: Transaction, pipeline: Pipeline, epoch: Epoch, unread: Collection[TopicPartition]) -> None:
    """Keep with the epoch which partitions cannot be idle. Every attempt computes the same watermark from it."""
    if pipeline.windows is not None:
        tx.states.keep_unread(epoch, unread)


def _keep_settings(tx: Transaction, epoch: Epoch, request: PlanRequest, limit: Mapping[str, Any] | None) -> None:
    """Keep the settings with the epoch. The record limit belongs to its ranges: a reopened epoch keeps both."""
    if request.settings is not None:
        tx.history.keep_settings(
            epoch, request.settings.recorded() | ({} if limit is None else {"record_limit": limit})
        )


def closes_windows(tx: Transaction, pipeline: Pipeline) -> bool:
    """Whether windows end because time passed without records. Needs ``idle_after`` in the declaration.

    The caller has made sure that no partition has unread records.
    """
    windows = pipeline.windows
    if windows is None or windows.time.idle_after is None:
        return False
    times = tx.states.event_times(pipeline)
    after = times.after(windows.time, {})
    return after is not None and after != times.watermark and tx.states.closes(pipeline, times.watermark, after)
