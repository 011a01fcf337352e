"""Plan: recover, observe Kafka, write origins and the next ranges to the ledger (INV-3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from epochline.config.resolve import ResolvedSettings, resolve_settings
from epochline.coordinator.checks import (
    check_admitted,
    check_cluster,
    check_states,
    is_read,
    moved_by_others,
    no_longer_fits,
    open_transactions,
)
from epochline.coordinator.idle import closes_windows
from epochline.coordinator.intent import (
    EpochDraft,
    Intent,
    Plan,
    PlanOutcome,
    PlanRequest,
    resume,
    settle,
    write_epoch,
)
from epochline.coordinator.interval import report_interval
from epochline.coordinator.observe import SourceObservation, observe_source
from epochline.coordinator.pacing import pause_after_failures, wait_for_pause
from epochline.coordinator.publish import full_sinks, left_due, look_at_sinks
from epochline.coordinator.takeover import crossed, shown_ahead, shown_until
from epochline.declare.pipeline import Pipeline
from epochline.errors import PlanChangedError
from epochline.ports import Ledger, OffsetSource, PipelineRow, Transaction
from epochline.protocol.backfill import parts_of
from epochline.protocol.backpressure import adapted_limit, missed_interval
from epochline.protocol.data_loss import check_not_truncated, check_same_log, check_shown_is_there
from epochline.protocol.epoch import Epoch, EpochKind, Run
from epochline.protocol.offsets import Head, Origin, PlannedRange, TopicPartition
from epochline.protocol.origins import missing_origins
from epochline.protocol.planning import SourceView, next_boundary, next_ranges

_TRIES = 5
_DEFAULTS = PlanRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the ledger said before Kafka was observed. The epoch is written only if the ledger still says so."""

    row: PipelineRow
    heads: tuple[Head, ...]
    left: tuple[str, ...] = ()
    """What is still due in sinks that the declaration no longer has."""
    shown: Sequence[tuple[str, Sequence[Head]]] = ()
    """Sinks, each with the places beyond the heads up to which it shows every record."""


def plan(
    ledger: Ledger,
    source: OffsetSource,
    pipeline: Pipeline,
    run: Run,
    request: PlanRequest = _DEFAULTS,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Plan:
    """Give the run its epoch: its own unfinished or aborted one again, or the next range.

    Args:
        ledger: where the epoch is written.
        source: where partitions and offsets are observed, never while a transaction is open.
        pipeline: the declaration.
        run: the epoch's owner.
        request: limits, lease, interval and settings.
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
    settings = request.settings or resolve_settings(pipeline)
    request = replace(request, settings=settings)
    recovered = settle(ledger, source, pipeline, run, request.lease)
    resumed = resume(ledger, recovered)
    if resumed is not None:
        return resumed
    full = full_sinks(ledger, pipeline)
    if full:
        return Plan(outcome=PlanOutcome.SINKS_FULL, notes=(*recovered.notes, *full))
    looked = look_at_sinks(ledger, pipeline, settings.restart)
    pause_after_failures(ledger, pipeline.name, settings.tolerable_failures)
    wait_for_pause(ledger, pipeline.name, settings.minimum_pause, sleep=sleep)
    for _ in range(_TRIES):
        mirrored = source.mirrored(pipeline.consumer_group)
        seen = _look_at_ledger(ledger, pipeline)
        observed = observe_source(source, pipeline, seen.row, seen.heads, request.interval, seen.shown)
        notes = [*recovered.notes, *looked, *seen.left, *moved_by_others(seen.heads, mirrored)]
        try:
            seen = _with_origins(ledger, pipeline, seen, observed)
            intent = _NextRanges(pipeline, seen, observed, request.record_limit, settings)
            return write_epoch(ledger, pipeline, run, request, intent, recovered.own, notes)
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


def _with_origins(ledger: Ledger, pipeline: Pipeline, seen: _Seen, observed: SourceObservation) -> _Seen:
    """Write the missing origins, even if no epoch follows: a startup mode is resolved once."""
    with ledger.transaction() as tx:
        row = tx.epochs.lock_pipeline(pipeline.name)
        check_admitted(tx, pipeline.name)
        _still_as_seen(tx, pipeline, row, seen)
        check_cluster(tx, pipeline, row, seen.heads, observed.view)
        for origin in origins_of(pipeline, seen.heads, observed.view, observed.startup):
            tx.chain.write_origin(pipeline.name, row.generation, origin)
        return replace(seen, heads=tuple(tx.chain.heads(pipeline.name, row.generation)))


@dataclass(frozen=True, slots=True)
class _NextRanges(Intent):
    """The next offsets of every partition, or those of a backfill run's interval."""

    pipeline: Pipeline
    seen: _Seen
    observed: SourceObservation
    record_limit: int | None
    settings: ResolvedSettings

    @property
    def watched(self) -> list[Head]:
        """Heads of the partitions that the declaration reads."""
        return [head for head in self.seen.heads if is_read(self.pipeline, head, self.observed.view)]

    def check(self, tx: Transaction, row: PipelineRow) -> None:
        """Refuse a ledger or a log that changed."""
        _still_as_seen(tx, self.pipeline, row, self.seen)
        _check_log(self.pipeline, self.watched, self.observed)

    def obstacle(self, tx: Transaction, own: Epoch) -> str | None:
        """Say which range no longer starts at its head, or which sink shows a part of the epoch."""
        ranges = tuple(tx.epochs.ranges(own))
        return no_longer_fits(ranges, self.watched, self.observed.view) or crossed(own, tx, ranges)

    def draft(self, tx: Transaction, row: PipelineRow) -> EpochDraft | Plan:
        """Share the record limit among the partitions."""
        view, backfill, watched = self.observed.view, self.observed.backfill, self.watched
        limit, notes = self._paced(tx) if backfill is None else (None, [])
        limit = self.record_limit or limit
        parts = parts_of(watched, view.partitions, backfill) if backfill else ()
        bounds = {part.tp: part.until for part in parts} if backfill else None
        shown = next_boundary(watched, shown_until(tx, self.pipeline.name))
        if shown is not None:
            bounds = dict(shown) if bounds is None else {tp: min(end, shown.get(tp, 0)) for tp, end in bounds.items()}
            notes.append("reads again what the ledger lost when it went back in time, up to where a sink shows it")
        ranges = tuple(next_ranges(watched, view.partitions, limit=limit, bounds=bounds))
        held_back = open_transactions(view)
        notes += held_back
        covered_by: tuple[int, ...] = ()
        if backfill is not None:
            report = report_interval(tx, self.pipeline, row, backfill.interval, parts, ranges)
            notes, covered_by = [*notes, *report.notes], report.covered_by
        kind = EpochKind.REGULAR if backfill is None else EpochKind.BACKFILL
        if not ranges and backfill is None and not held_back and closes_windows(tx, self.pipeline):
            kind = EpochKind.IDLE
            notes.append("nothing to read; windows close, because the source is idle")
        elif not ranges:
            outcome = PlanOutcome.COVERED if any(part.committed for part in parts) else PlanOutcome.NOTHING_TO_READ
            return Plan(outcome=outcome, notes=tuple(notes), covered_by=covered_by)
        return EpochDraft(
            kind=kind,
            ranges=ranges,
            record_limit=limit,
            interval=None if backfill is None else backfill.interval,
            notes=tuple(notes),
            covered_by=covered_by,
        )

    def _paced(self, tx: Transaction) -> tuple[int, list[str]]:
        """The record limit, adapted to the newest epoch's duration where a target is declared, and notes on it."""
        most, target = self.pipeline.source.records_per_epoch, self.settings.target_duration
        interval = self.settings.interval if isinstance(self.settings.interval, timedelta) else None
        if target is None and interval is None:
            return most, []
        newest = tx.epochs.newest_committed(self.pipeline.name)
        late = None if interval is None else missed_interval(interval, newest)
        limit = most if target is None else adapted_limit(most, target, newest)
        return limit, [] if late is None else [late]


def _check_log(pipeline: Pipeline, watched: Sequence[Head], observed: SourceObservation) -> None:
    check_same_log(pipeline.name, watched, observed.view.partitions)
    check_not_truncated(pipeline.name, watched, observed.leader_epoch_ends)
    check_shown_is_there(pipeline.name, watched, observed.cut_off)


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
    _check_log(pipeline, watched, observed)
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


def _still_as_seen(tx: Transaction, pipeline: Pipeline, row: PipelineRow, seen: _Seen) -> None:
    """Refuse a ledger that changed while Kafka was observed. The pipeline's row is locked."""
    # The unfinished epoch first: a commit does not wait for the pipeline's lock, and one between the two reads would
    # leave no unfinished epoch next to heads from before it. Without one, nobody moves a head while the lock is held.
    unfinished = tx.epochs.unfinished(pipeline.name)
    heads = tuple(tx.chain.heads(pipeline.name, row.generation))
    if heads != seen.heads or unfinished is not None or row.generation != seen.row.generation:
        raise PlanChangedError(
            f"{pipeline.name}: another run planned or committed while this one asked Kafka; trying again helps."
        )
