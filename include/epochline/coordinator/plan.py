"""Plan: recover, ask Kafka, write origins and the next range to the ledger (INV-3)."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from epochline.config.resolve import ResolvedSettings, resolve_settings
from epochline.coordinator.checks import (
    cannot_reopen,
    check_admitted,
    check_changes,
    check_cluster,
    check_connections,
    check_states,
    is_read,
    moved_by_others,
    open_transactions,
)
from epochline.coordinator.commit import mirror
from epochline.coordinator.evidence import collect_evidence, refuse_behind
from epochline.coordinator.idle import closes_windows
from epochline.coordinator.interval import report_interval
from epochline.coordinator.observe import SourceObservation, observe_source
from epochline.coordinator.pacing import pause_after_failures, wait_for_pause
from epochline.coordinator.publish import full_sinks, left_due, look_at_sinks
from epochline.coordinator.recover import recover
from epochline.coordinator.takeover import crossed, shown_ahead, shown_until
from epochline.declare.pipeline import Pipeline
from epochline.errors import PlanChangedError
from epochline.ports import Ledger, OffsetSource, PipelineRow, Transaction
from epochline.protocol.backfill import parts_of
from epochline.protocol.data_loss import check_not_truncated, check_same_log, check_shown_is_there
from epochline.protocol.epoch import Epoch, EpochKind, EpochState, Interval, Run
from epochline.protocol.offsets import Head, Origin, PlannedRange, TopicPartition
from epochline.protocol.origins import missing_origins
from epochline.protocol.planning import SourceView, next_boundary, next_ranges

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=60)
"""How long a PLANNED epoch is its run's own without a sign of life (database clock)."""

_TRIES = 5


class PlanOutcome(enum.StrEnum):
    """What a plan found and did."""

    PLANNED = "planned"
    REOPENED = "reopened"
    RESUMED = "resumed"
    PRE_COMMITTED = "pre_committed"
    ALREADY_COMMITTED = "already_committed"
    NOTHING_TO_READ = "nothing_to_read"
    COVERED = "covered"
    """Of a backfill run: its interval is committed already; no epoch was written, the notes name those that did."""
    SINKS_FULL = "sinks_full"
    """A sink has too many epochs still to show: what comes next waits in Kafka. The notes name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The epoch that the run goes on with, if any, and what happened on the way to it."""

    outcome: PlanOutcome
    epoch: Epoch | None = None
    ranges: tuple[PlannedRange, ...] = ()
    notes: tuple[str, ...] = ()
    covered_by: tuple[int, ...] = ()
    """Of a backfill run: ids of the epochs that committed offsets of its interval before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was known when Kafka was asked; step 3 goes on only if it is still so."""

    row: PipelineRow
    heads: tuple[Head, ...]
    left: tuple[str, ...] = ()
    """What is still due in sinks that are declared no more."""
    shown: Sequence[tuple[str, Sequence[Head]]] = ()
    """Sinks with the places beyond the heads up to which they show every record."""


def plan(
    ledger: Ledger,
    source: OffsetSource,
    pipeline: Pipeline,
    run: Run,
    *,
    record_limit: int | None = None,
    note: str | None = None,
    writers: int | None = None,
    lease: timedelta = LEASE,
    interval: Interval | None = None,
    settings: ResolvedSettings | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Plan:
    """Give the run its epoch: its own unfinished or aborted one again, or the next range.

    Args:
        ledger: where the epoch is written.
        source: where partitions and offsets are asked for; never while a transaction is open.
        pipeline: the declaration.
        run: who asks.
        record_limit: most offsets in this epoch; the declaration's by default, none for a backfill run.
        note: kept with the epoch.
        writers: how many sessions will write at once, checked against what PostgreSQL can take; None if unknown.
        lease: how long the epoch is this run's own without a sign of life.
        interval: of a backfill run: the range ends where the interval ends, at most. An own epoch that is unfinished
            or aborted keeps its ranges, whatever the interval (INV-3).
        settings: what is in force; the declaration's own by default.
        sleep: how the minimum pause is waited for.

    Raises:
        EpochBusyError: another run stages an epoch now.
        SourceUnavailableError: Kafka does not answer, or a partition has no leader.
        DataLossError: the log is not the one that the heads belong to.
        TargetError: a target is missing, does not fit, or belongs to another pipeline.
        ConfigurationError: PostgreSQL has too few free connections.
        BeforeOriginError: the interval lies before the pipeline's origin.
        LedgerBehindError: Kafka or a sink shows an epoch that the ledger does not know; the pipeline is paused.
        SinkError: a sink would refuse what is to come.
        PipelinePausedError, PipelineDroppedError: an operator said so, or too many epochs in a row were aborted.
    """
    settings = settings or resolve_settings(pipeline)
    evidence = collect_evidence(ledger, source, pipeline)
    refuse_behind(ledger, pipeline.name, evidence)
    recovered = recover(ledger, pipeline.name, run, evidence, lease=lease)
    if recovered.notes:
        mirror(ledger, source, pipeline.name, known=True)
    own = recovered.own
    going_on = {
        EpochState.PLANNED: PlanOutcome.RESUMED,
        EpochState.PRE_COMMITTED: PlanOutcome.PRE_COMMITTED,
        EpochState.COMMITTED: PlanOutcome.ALREADY_COMMITTED,
    }
    if own is not None and own.state in going_on:
        with ledger.transaction() as tx:
            ranges = tuple(tx.epochs.ranges(own))
        return Plan(outcome=going_on[own.state], epoch=own, ranges=ranges, notes=recovered.notes)
    full = full_sinks(ledger, pipeline)
    if full:
        return Plan(outcome=PlanOutcome.SINKS_FULL, notes=(*recovered.notes, *full))
    looked = look_at_sinks(ledger, pipeline, settings.restart)
    pause_after_failures(ledger, pipeline.name, settings.tolerable_failures)
    wait_for_pause(ledger, pipeline.name, settings.minimum_pause, sleep=sleep)
    for _ in range(_TRIES):
        mirrored = source.mirrored(pipeline.consumer_group)
        seen = _look_at_ledger(ledger, pipeline)
        observed = observe_source(source, pipeline, seen.row, seen.heads, interval, seen.shown)
        notes = [*recovered.notes, *looked, *seen.left, *moved_by_others(seen.heads, mirrored)]
        try:
            return _write_plan(
                ledger, pipeline, run, seen, observed, own, notes,
                record_limit=record_limit, note=note, writers=writers, lease=lease,
                settings=settings,
            )  # fmt: skip
        except PlanChangedError as error:
            last = error
    raise last


def _look_at_ledger(ledger: Ledger, pipeline: Pipeline) -> _Seen:
    with ledger.transaction() as tx:
        row = tx.epochs.lock_pipeline(pipeline.name)
        check_admitted(tx, pipeline.name)
        heads = tuple(tx.chain.heads(pipeline.name, row.generation))
        shown = shown_ahead(tx.receipts.accepted(pipeline.name), heads)
        left = left_due(pipeline, tx.receipts.unpublished(pipeline.name))
        return _Seen(row=row, heads=heads, left=left, shown=shown)


def _write_plan(
    ledger: Ledger,
    pipeline: Pipeline,
    run: Run,
    seen: _Seen,
    observed: SourceObservation,
    own: Epoch | None,
    notes: list[str],
    *,
    record_limit: int | None,
    note: str | None,
    writers: int | None,
    lease: timedelta,
    settings: ResolvedSettings,
) -> Plan:
    view, backfill = observed.view, observed.backfill
    limit = record_limit or (None if backfill else pipeline.source.records_per_epoch)
    # Origins are committed whatever becomes of the plan: a startup mode is resolved once.
    with ledger.transaction() as tx:
        row = _still_as_seen(tx, pipeline, seen)
        check_cluster(tx, pipeline, row, seen.heads, view)
        for origin in origins_of(pipeline, seen.heads, view, observed.startup):
            tx.chain.write_origin(pipeline.name, row.generation, origin)
        heads = tuple(tx.chain.heads(pipeline.name, row.generation))
    with ledger.transaction() as tx:
        row = _still_as_seen(tx, pipeline, _Seen(row=seen.row, heads=heads))
        watched = [head for head in heads if is_read(pipeline, head, view)]
        check_same_log(pipeline.name, watched, view.partitions)
        check_not_truncated(pipeline.name, watched, observed.leader_epoch_ends)
        check_shown_is_there(pipeline.name, watched, observed.cut_off)
        targets = tx.targets.inspect(pipeline)
        tx.targets.claim(pipeline)
        check_changes(tx, pipeline)
        check_states(tx, pipeline)
        check_connections(tx, pipeline, writers)
        if own is not None:
            own = tx.epochs.lock(own.pipeline, own.epoch_id)
            ranges = tuple(tx.epochs.ranges(own))
            obstacle = cannot_reopen(tx, own, ranges, watched, view) or crossed(own, tx, ranges)
            if obstacle is None:
                epoch = tx.epochs.reopen(own, pipeline, targets, lease)
                tx.history.keep_settings(epoch, settings.recorded())
                log.info("epoch.reopened pipeline=%s epoch=%d", pipeline.name, epoch.epoch_id)
                return Plan(outcome=PlanOutcome.REOPENED, epoch=epoch, ranges=ranges, notes=tuple(notes))
            notes = [*notes, f"{own} is not tried again: {obstacle}"]
        parts = parts_of(watched, view.partitions, backfill) if backfill else ()
        bounds = {part.tp: part.until for part in parts} if backfill else None
        shown = next_boundary(watched, shown_until(tx, pipeline.name))
        if shown is not None:
            bounds = dict(shown) if bounds is None else {tp: min(end, shown.get(tp, 0)) for tp, end in bounds.items()}
            notes = [*notes, "reads again what the ledger lost when it went back in time, up to where a sink shows it"]
        ranges = tuple(next_ranges(watched, view.partitions, limit=limit, bounds=bounds))
        held_back = open_transactions(view)
        notes = [*notes, *held_back]
        covered_by: tuple[int, ...] = ()
        if backfill is not None:
            judged = report_interval(tx, pipeline, row, backfill.interval, parts, ranges)
            notes, covered_by = [*notes, *judged.notes], judged.covered_by
        kind = EpochKind.REGULAR if backfill is None else EpochKind.BACKFILL
        if not ranges and backfill is None and not held_back and closes_windows(tx, pipeline):
            kind = EpochKind.IDLE
            notes = [*notes, "nothing to read; windows close, because the source is idle"]
        elif not ranges:
            outcome = PlanOutcome.COVERED if any(part.committed for part in parts) else PlanOutcome.NOTHING_TO_READ
            return Plan(outcome=outcome, notes=tuple(notes), covered_by=covered_by)
        epoch = tx.epochs.insert(
            pipeline, row, run, ranges, targets,
            kind=kind, lease=lease, record_limit=limit, note=note,
            interval=None if backfill is None else backfill.interval,
        )  # fmt: skip
        tx.history.keep_settings(epoch, settings.recorded())
    log.info(
        "epoch.planned pipeline=%s epoch=%d partitions=%d offsets=%d run=%s",
        pipeline.name, epoch.epoch_id, len(ranges), sum(len(r.range) for r in ranges), run.run_id,
    )  # fmt: skip
    return Plan(outcome=PlanOutcome.PLANNED, epoch=epoch, ranges=ranges, notes=tuple(notes), covered_by=covered_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """What the next epoch would read. Nothing was changed to find out."""

    unfinished: Epoch | None
    origins: tuple[Origin, ...]
    heads: tuple[Head, ...]
    ranges: tuple[PlannedRange, ...]
    backlog: Mapping[TopicPartition, int]
    idle: bool
    """Whether an epoch that reads nothing would close windows."""
    notes: tuple[str, ...]


def preview(
    ledger: Ledger, source: OffsetSource, pipeline: Pipeline, *, record_limit: int | None = None
) -> PlanPreview:
    """Say what the next epoch would read, with the same checks as `plan`, and change nothing.

    Raises:
        DataLossError, SourceError, StateError, TargetError: as `plan` would.
    """
    with ledger.transaction() as tx:
        known = tx.epochs.pipeline(pipeline.name)
        check_admitted(tx, pipeline.name)
        row = known or PipelineRow(generation=1, last_epoch_id=0, cluster_id=None)
        heads = tuple(tx.chain.heads(pipeline.name, row.generation))
        unfinished = tx.epochs.unfinished(pipeline.name)
        shown = shown_ahead(tx.receipts.accepted(pipeline.name), heads)
        tx.targets.inspect(pipeline)
        check_states(tx, pipeline)
        idle = closes_windows(tx, pipeline)
    full = full_sinks(ledger, pipeline)
    observed = observe_source(source, pipeline, row, heads, shown=shown)
    view = observed.view
    origins = tuple(origins_of(pipeline, heads, view, observed.startup))
    begun = [Head(tp=o.tp, origin=o.offset, next_offset=o.offset, leader_epoch=o.leader_epoch) for o in origins]
    watched = [head for head in (*heads, *begun) if is_read(pipeline, head, view)]
    check_same_log(pipeline.name, watched, view.partitions)
    check_not_truncated(pipeline.name, watched, observed.leader_epoch_ends)
    check_shown_is_there(pipeline.name, watched, observed.cut_off)
    ends = {one.tp: one.last_stable for one in view.partitions}
    ranges = tuple(next_ranges(watched, view.partitions, limit=record_limit or pipeline.source.records_per_epoch))
    held_back = tuple(open_transactions(view))
    return PlanPreview(
        unfinished=unfinished,
        origins=origins,
        heads=tuple(watched),
        ranges=ranges,
        idle=idle and not ranges and not held_back,
        backlog={head.tp: max(0, ends[head.tp] - head.next_offset) for head in watched},
        notes=(*held_back, *full),
    )


def origins_of(
    pipeline: Pipeline, heads: Sequence[Head], view: SourceView, found: Mapping[TopicPartition, int | None]
) -> list[Origin]:
    """The origins that the next plan would write, given what `observe_startup` found."""
    return missing_origins(
        heads,
        view.partitions,
        startup=pipeline.source.startup,
        by_pattern=pipeline.source.pattern is not None,
        found=found,
    )


def _still_as_seen(tx: Transaction, pipeline: Pipeline, seen: _Seen) -> PipelineRow:
    row = tx.epochs.lock_pipeline(pipeline.name)
    check_admitted(tx, pipeline.name)
    # The unfinished epoch first: a commit does not wait for the pipeline's lock, and one between the two reads would
    # leave no unfinished epoch beside heads from before it. Without one, nobody can move a head while the lock is held.
    unfinished = tx.epochs.unfinished(pipeline.name)
    heads = tuple(tx.chain.heads(pipeline.name, row.generation))
    if heads != seen.heads or unfinished is not None or row.generation != seen.row.generation:
        raise PlanChangedError(
            f"{pipeline.name}: another run planned or committed while this one asked Kafka; trying again helps."
        )
    return row
