"""Plan: recover, observe Kafka, write origins and the next ranges to the ledger (INV-3)."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from epochline.config.resolve import ResolvedSettings, resolve_settings
from epochline.coordinator.checks import (
    check_admitted,
    check_cluster,
    no_longer_fits,
    open_transactions,
    report_interval,
)
from epochline.coordinator.epoch_file import leave_file
from epochline.coordinator.evidence import pausing_where_behind
from epochline.coordinator.intent import (
    EpochDraft,
    Intent,
    Plan,
    PlanOutcome,
    PlanRequest,
    closes_windows,
    limit_place,
    write_epoch,
)
from epochline.coordinator.mirror import mirror
from epochline.coordinator.observe import ConsumerGroup, SourceObservation, confirmed, observe_source
from epochline.coordinator.pacing import pause_after_failures, wait_for_turn
from epochline.coordinator.publish import full_sinks, left_due, look_at_sinks
from epochline.coordinator.reasons import keep_plan_error
from epochline.coordinator.recover import recover
from epochline.coordinator.takeover import crossed, shown_ahead, shown_until
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError, PlanChangedError
from epochline.ports import Ledger, OffsetSource, PipelineRow, Transaction
from epochline.protocol.data_loss import check_not_truncated, check_same_log, check_shown_is_there
from epochline.protocol.epoch import Epoch, EpochKind, Run
from epochline.protocol.mirror import LastMirror
from epochline.protocol.offsets import Head, Origin, PlannedRange, TopicPartition, belongs_to
from epochline.protocol.origins import missing_origins
from epochline.protocol.planning import (
    SourceView,
    adapted_limit,
    left_unread,
    log_ends_of,
    missed_interval,
    next_boundary,
    next_ranges,
    parts_of,
)

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
    mirror: LastMirror | None = None


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

    The source is asked while no transaction is open. ``sleep`` waits for the minimum pause and the interval.

    Raises:
        EpochBusyError: another run stages an epoch now.
        SourceUnavailableError: Kafka does not answer, or a partition has no leader.
        DataLossError: the log is not the one that the heads belong to.
        TargetError, SinkError: a target is missing, does not fit, or belongs to another pipeline; a sink would refuse.
        ConfigurationError: PostgreSQL has too few free connections.
        BeforeOriginError: the interval lies before the pipeline's origin.
        LedgerBehindError, KafkaBehindError: the ledger or Kafka went back in time; the pipeline is paused.
        PipelinePausedError, PipelineDroppedError: an operator said so, or too many epochs in a row were aborted.
    """
    planning = _Planning(pipeline, run, request, request.settings or resolve_settings(pipeline))
    try:
        return planning.plan(ledger, source, sleep)
    except EpochlineError as error:
        keep_plan_error(ledger, pipeline.name, run, error)
        raise


@dataclass(frozen=True, slots=True)
class _Planning:
    """What one plan is made of and for."""

    pipeline: Pipeline
    run: Run
    request: PlanRequest
    settings: ResolvedSettings

    def plan(self, ledger: Ledger, source: OffsetSource, sleep: Callable[[float], None]) -> Plan:
        name, settings = self.pipeline.name, self.settings
        resumed, aborted, notes = recover(ledger, source, self.pipeline, self.run, self.request.lease)
        if resumed is not None:
            return resumed
        unwritten = leave_file(ledger, name, settings.recorded())
        full = full_sinks(ledger, self.pipeline)
        if full:
            return Plan(outcome=PlanOutcome.SINKS_FULL, notes=(*notes, *full))
        looked = look_at_sinks(ledger, self.pipeline, settings.restart)
        pause_after_failures(ledger, name, settings.tolerable_failures)
        soon = wait_for_turn(ledger, name, settings, scheduled=self.request.scheduled, sleep=sleep)
        began = time.monotonic()
        for _ in range(_TRIES):
            try:
                return self.write(ledger, source, aborted, [*notes, *unwritten, *soon, *looked], began)
            except PlanChangedError as error:
                last = error
        raise last

    def write(
        self, ledger: Ledger, source: OffsetSource, aborted: Epoch | None, notes: Sequence[str], began: float
    ) -> Plan:
        """Look at ledger and Kafka, then write the epoch if the ledger is still as it was seen."""
        seen = self.look_at_ledger(ledger)
        with pausing_where_behind(ledger, self.pipeline.name), confirmed(source, self.pipeline):
            group = ConsumerGroup.observe(source, self.pipeline, seen.mirror)
            group.refuse_older()
            observed = observe_source(source, self.pipeline, seen.row, seen.heads, self.request.interval, seen.shown)
            notes = [*notes, *seen.left, *group.moved_by_others(seen.heads)]
            intent = _NextRanges(self, self.write_origins(ledger, seen, observed), observed, group, began)
            request = replace(self.request, settings=self.settings)
            planned = write_epoch(ledger, self.pipeline, self.run, request, intent, aborted, notes)
        if planned.epoch is None and group.lags(self.pipeline, seen.row.generation, seen.heads):
            mirror(ledger, source, self.pipeline)  # no commit follows that would
        return planned

    def look_at_ledger(self, ledger: Ledger) -> _Seen:
        name = self.pipeline.name
        with ledger.transaction() as tx:
            row = tx.epochs.lock_pipeline(name)
            check_admitted(tx, name)
            heads = tuple(tx.chain.heads(name, row.generation))
            shown = shown_ahead(tx.receipts.accepted(name), heads)
            left = left_due(self.pipeline, tx.receipts.unpublished(name))
            return _Seen(row=row, heads=heads, left=left, shown=shown, mirror=tx.receipts.last_mirror(name))

    def write_origins(self, ledger: Ledger, seen: _Seen, observed: SourceObservation) -> _Seen:
        """Write the missing origins, even if no epoch follows: a startup mode is resolved once."""
        name = self.pipeline.name
        with ledger.transaction() as tx:
            row = tx.epochs.lock_pipeline(name)
            check_admitted(tx, name)
            _still_as_seen(tx, self.pipeline, row, seen)
            check_cluster(tx, self.pipeline, row, seen.heads, observed.view)
            tx.chain.keep_log_ends(name, log_ends_of(observed.view))
            for origin in origins_of(self.pipeline, seen.heads, observed.view, observed.startup):
                tx.chain.write_origin(name, row.generation, origin)
            return replace(seen, heads=tuple(tx.chain.heads(name, row.generation)))


@dataclass(frozen=True, slots=True)
class _NextRanges(Intent):
    """The next offsets of every partition, or those of a backfill run's interval."""

    planning: _Planning
    seen: _Seen
    observed: SourceObservation
    group: ConsumerGroup
    began: float
    """When the plan began, by this process's monotonic clock, after the minimum pause."""

    @property
    def pipeline(self) -> Pipeline:
        return self.planning.pipeline

    @property
    def watched(self) -> list[Head]:
        """Heads of the partitions that the declaration reads."""
        return [head for head in self.seen.heads if self.pipeline.source.keeps(head.tp.topic)]

    def check(self, tx: Transaction, row: PipelineRow) -> None:
        """Refuse a ledger or a log that changed."""
        _still_as_seen(tx, self.pipeline, row, self.seen)
        check_log(self.pipeline.name, self.watched, self.observed)
        self._expired(tx)
        tx.history.plan_succeeded(self.pipeline.name)

    def _expired(self, tx: Transaction) -> list[str]:
        """A note if the consumer group has expired: the next commit makes it, and is evidence from then on."""
        note = self.group.refuse_gone()
        if note is None:
            return []
        tx.receipts.forget_mirrors(self.pipeline.name)
        return [note]

    def obstacle(self, tx: Transaction, own: Epoch) -> str | None:
        """Say which range no longer starts at its head, or which sink shows a part of the epoch."""
        ranges = tuple(tx.epochs.ranges(own))
        return no_longer_fits(ranges, self.watched, self.observed.view) or crossed(
            own, tx.receipts.accepted(own.pipeline), ranges
        )

    def left_unread(self, ranges: Sequence[PlannedRange]) -> Collection[TopicPartition]:
        """The partitions that have records beyond the ranges, as the source just said."""
        return left_unread(self.watched, self.observed.view.partitions, ranges)

    def draft(self, tx: Transaction, row: PipelineRow) -> EpochDraft | Plan:
        """Share the record limit among the partitions."""
        view, backfill, watched = self.observed.view, self.observed.backfill, self.watched
        limit, limit_from, notes = self._paced(tx) if backfill is None else (None, None, [])
        if self.planning.request.record_limit is not None:
            limit, limit_from = self.planning.request.record_limit, "run"
        parts = parts_of(watched, view.partitions, backfill) if backfill else ()
        bounds = {part.tp: part.until for part in parts} if backfill else None
        shown = next_boundary(watched, shown_until(tx, self.pipeline.name))
        if shown is not None:
            bounds = dict(shown) if bounds is None else {tp: min(end, shown.get(tp, 0)) for tp, end in bounds.items()}
            notes.append("reads again what the ledger lost when it went back in time, up to where a sink shows it")
        ranges = tuple(next_ranges(watched, view.partitions, limit=limit, bounds=bounds))
        notes += [*open_transactions(view), *self._expired(tx)]
        covered_by: tuple[int, ...] = ()
        if backfill is not None:
            of_interval, covered_by = report_interval(tx, self.pipeline.name, row, backfill.interval, parts, ranges)
            notes += of_interval
        kind = EpochKind.REGULAR if backfill is None else EpochKind.BACKFILL
        if not ranges and backfill is None and not self.left_unread(ranges) and closes_windows(tx, self.pipeline):
            kind = EpochKind.IDLE
            notes.append("nothing to read; windows close, because the source is idle")
        elif not ranges:
            outcome = PlanOutcome.COVERED if any(part.committed for part in parts) else PlanOutcome.NOTHING_TO_READ
            return Plan(outcome=outcome, notes=tuple(notes), covered_by=covered_by)
        return EpochDraft(
            kind=kind,
            ranges=ranges,
            record_limit=limit,
            limit_from=limit_from,
            interval=None if backfill is None else backfill.interval,
            notes=tuple(notes),
            covered_by=covered_by,
            plan_seconds=time.monotonic() - self.began,
        )

    def _paced(self, tx: Transaction) -> tuple[int, str, list[str]]:
        """The record limit, adapted to the newest epoch's duration where a target is set; its origin; notes on it."""
        settings, most = self.planning.settings, self.pipeline.source.records_per_epoch
        target = settings.target_duration
        interval = settings.interval if isinstance(settings.interval, timedelta) else None
        if target is None and interval is None:
            return most, limit_place(self.pipeline), []
        newest = tx.epochs.newest_committed(self.pipeline.name)
        late = None if interval is None else missed_interval(interval, newest)
        limit = most if target is None else adapted_limit(most, target, newest)
        place = "adapted to target_duration" if limit != most else limit_place(self.pipeline)
        return limit, place, [] if late is None else [late]


def check_log(pipeline: str, watched: Sequence[Head], observed: SourceObservation) -> None:
    """Raise `DataLossError` if a log is not the one of its head, or no longer holds what a sink shows."""
    check_same_log(pipeline, watched, observed.view.partitions)
    check_not_truncated(pipeline, watched, observed.leader_epoch_ends)
    check_shown_is_there(pipeline, watched, observed.cut_off)


def origins_of(
    pipeline: Pipeline, heads: Sequence[Head], view: SourceView, found: Mapping[TopicPartition, int | None]
) -> list[Origin]:
    """The origins that the next plan would write, given what `observe_startup` found."""
    return [
        origin
        for name, input_ in pipeline.inputs.items()
        for origin in missing_origins(
            [head for head in heads if belongs_to(name, head.tp.topic)],
            [partition for partition in view.partitions if belongs_to(name, partition.tp.topic)],
            startup=input_.source.startup,
            by_pattern=input_.source.pattern is not None,
            found=found,
        )
    ]


def _still_as_seen(tx: Transaction, pipeline: Pipeline, row: PipelineRow, seen: _Seen) -> None:
    """Refuse a ledger that changed while Kafka was observed. The pipeline's row is locked."""
    # The unfinished epoch first: a commit does not wait for the pipeline's lock, and one between the two reads would
    # leave no unfinished epoch next to heads from before it. Without one, nobody moves a head while the lock is held.
    unfinished = tx.epochs.unfinished(pipeline.name)
    heads = tuple(tx.chain.heads(pipeline.name, row.generation))
    if heads != seen.heads or unfinished is not None or row.generation != seen.row.generation:
        raise PlanChangedError(
            f"{pipeline.name}: another run planned or committed while this one asked the source; trying again helps."
        )
