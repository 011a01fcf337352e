"""Commit: apply staging to the targets and move the heads, in one transaction (INV-2). Repeatable (INV-5)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochline.coordinator.abort import abort_lost
from epochline.coordinator.bounds import refuse_unapproved
from epochline.coordinator.checks import check_states
from epochline.coordinator.discard import sweep
from epochline.coordinator.epoch_file import leave_file
from epochline.coordinator.evidence import Evidence, check_known, collect_for_commit, pausing_where_behind
from epochline.coordinator.mirror import mirror
from epochline.coordinator.reasons import keep_error
from epochline.coordinator.takeover import shown_before
from epochline.declare.names import QUARANTINE
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import (
    EpochAwaitsApprovalError,
    EpochlineError,
    EpochStateError,
    HeadMovedError,
    LedgerUnavailableError,
    StagingLostError,
    TargetError,
)
from epochline.ports import Applied, Ledger, Manifest, OffsetSource, Transaction
from epochline.protocol.epoch import CommitOutcome, Epoch, EpochKind, EpochState
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.quantities import counted, number
from epochline.protocol.staging import DIGEST, StagedTable, StagingTicket

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The result of a commit; a repeat gives the same epoch."""

    epoch: Epoch
    outcome: CommitOutcome
    shown_before: frozenset[str] = frozenset()
    """Sinks that get nothing of the epoch, because they showed its offsets before the ledger went back in time."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """By table, how many of its rows this commit wrote or deleted; empty if the epoch was committed already."""
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By table, names and types of the columns that this commit filled."""

    def __str__(self) -> str:
        counts = self.epoch.counts
        again = "" if self.outcome is CommitOutcome.COMMITTED else " already"
        return (
            f"{self.epoch} is{again} committed: {counted(counts.read, 'record')} read, {number(counts.passed)} passed,"
            f" {number(counts.skipped)} skipped, {number(counts.quarantined)} quarantined,"
            f" {counted(self.epoch.rows_written or 0, 'row')} written, at"
            f" {self.epoch.committed_at:%Y-%m-%d %H:%M:%S %Z}"
            + (f"; shown before in {', '.join(sorted(self.shown_before))}" if self.shown_before else "")
        )


def commit(ledger: Ledger, source: OffsetSource, pipeline: str, epoch_id: int) -> CommitResult:
    """Make a sealed epoch visible, exactly once, then mirror the heads. Calling again after any crash changes nothing.

    If the answer of the commit is lost, the ledger is asked again, under the epoch's row lock.

    Raises:
        EpochStateError, EpochAwaitsApprovalError: nothing is sealed, or nobody approved it, as `refuse_unapproved`.
        HeadMovedError: a range does not start at its head; nothing was changed.
        StagingLostError: the sealed rows are gone. The epoch was aborted; a later run reads its range again.
        LedgerBehindError, SourceUnavailableError, SinkError: as `evidence.collect_evidence` and `evidence.check_known`.
    """
    try:
        declared, result, settings = _commit_or_abort_lost(ledger, source, pipeline, epoch_id)
    except LedgerUnavailableError:
        log.warning("commit.answer_lost pipeline=%s epoch=%d", pipeline, epoch_id)
        declared, result, settings = _commit_or_abort_lost(ledger, source, pipeline, epoch_id)
    mirror(ledger, source, declared)
    leave_file(ledger, pipeline, settings)
    if result.shown_before:
        sweep(ledger, pipeline)
    return result


def _commit_or_abort_lost(
    ledger: Ledger, source: OffsetSource, pipeline: str, epoch_id: int
) -> tuple[Pipeline, CommitResult, Mapping[str, Any]]:
    asked = False
    try:
        declared, evidence = collect_for_commit(ledger, source, pipeline, epoch_id)
        asked = True
        with pausing_where_behind(ledger, pipeline), ledger.transaction() as tx:
            result = commit_in(tx, tx.epochs.lock(pipeline, epoch_id), evidence)
            settings = tx.history.settings(result.epoch)
    except EpochlineError as error:
        # A ledger that is away before the commit cannot keep the reason. To wait for a person is no failure.
        if (asked or not isinstance(error, LedgerUnavailableError)) and not isinstance(error, EpochAwaitsApprovalError):
            keep_error(ledger, pipeline, epoch_id, error)
        if isinstance(error, StagingLostError):
            abort_lost(ledger, pipeline, epoch_id, error)
        raise
    log.info("epoch.%s pipeline=%s epoch=%d rows=%s", result.outcome, pipeline, epoch_id, result.epoch.rows_written)
    return declared, result, settings


def commit_in(tx: Transaction, epoch: Epoch, evidence: Evidence) -> CommitResult:
    """The commit itself, on an epoch locked in ``tx``: every check, every row and every head, or nothing.

    The caller has collected the evidence before (INV-8).
    """
    if epoch.state is EpochState.COMMITTED:
        return CommitResult(epoch=epoch, outcome=CommitOutcome.ALREADY_COMMITTED)
    _refuse_unsealed(tx, epoch)
    check_known(tx, epoch.pipeline, evidence)
    pipeline, planned_columns = tx.epochs.declaration(epoch), tx.epochs.planned_targets(epoch)
    refuse_unapproved(epoch, pipeline)
    tx.targets.limit_time(pipeline.commit_statement_timeout, pipeline.lock_timeout)
    attempt = tx.attempts.live(epoch)
    if attempt is None or not attempt.sealed:
        raise StagingLostError(f"{epoch}: is pre-committed, but has no sealed attempt.")
    ticket = tx.attempts.ticket(attempt, pipeline, planned_columns)
    manifests = {manifest.sink: manifest for manifest in tx.attempts.manifests(attempt)}
    sealed = {sink: manifest.rows for sink, manifest in manifests.items()}
    _check_staging(tx, epoch, ticket, manifests)
    # A target whose owner or columns changed since the plan must not be written to.
    tx.targets.claim(pipeline)
    _refuse_changed_targets(tx, epoch, pipeline, planned_columns)
    check_states(tx, pipeline)
    ranges = tx.epochs.ranges(epoch)
    if epoch.replays is not None:
        _take_place(tx, pipeline, epoch)
    shown = shown_before(tx, epoch, ranges)
    if epoch.replays is None:
        _move_heads(tx, epoch, ranges)
    unsent = {output.staged_as for output in pipeline.outputs if output.name in shown and not output.shown_at_commit}
    tables = [table for table in pipeline.tables if table.table not in unsent]
    applied = tx.targets.apply(pipeline, [(table, ticket.table(table.table)) for table in tables], epoch)
    for table in tables:
        _refuse_dropped_rows(epoch, table, sealed[table.table], applied[table.table])
    _keep_quarantine(tx, epoch, ticket.table(QUARANTINE))
    tx.states.leave(pipeline, epoch.epoch_id)
    upserted = {name: outcome.upserted for name, outcome in applied.items() if outcome.upserted is not None}
    tx.receipts.write(epoch, attempt, pipeline, upserted, shown)
    tx.targets.account()
    if not shown:  # else a sweep discards the external sinks' files together with the staging
        tx.attempts.drop_staging(attempt)
    tx.attempts.finish(attempt)
    rows = {table: outcome.rows for table, outcome in applied.items()}
    committed = tx.epochs.mark_committed(epoch, sum(rows.values()))
    return CommitResult(
        epoch=committed, outcome=CommitOutcome.COMMITTED, shown_before=shown, rows=rows, columns=planned_columns
    )


def _refuse_unsealed(tx: Transaction, epoch: Epoch) -> None:
    if epoch.state is EpochState.ABORTED:
        raise EpochStateError(
            f"{epoch}: was aborted ({epoch.error or 'no reason given'}) and its staging is discarded; there is"
            " nothing to commit. Clear the run from plan_epoch, so that its range is staged again."
        )
    if epoch.state is EpochState.PLANNED:
        raise EpochStateError(f"{epoch}: is not sealed; there is nothing to commit. Clear the run from pre_commit.")
    for later in tx.epochs.later_than(epoch.pipeline, epoch.epoch_id):
        if later.state is EpochState.COMMITTED:
            raise HeadMovedError(
                f"{epoch}: {later} is already committed; epochs commit in the order of their ids.",
                _abort_command(epoch),
            )


def _abort_command(epoch: Epoch) -> str:
    return f"abort {epoch.pipeline} {epoch.epoch_id} --reason …"


def _check_staging(tx: Transaction, epoch: Epoch, ticket: StagingTicket, manifests: Mapping[str, Manifest]) -> None:
    for staged in ticket.tables:
        manifest, held = manifests.get(staged.sink), tx.targets.held(staged)
        rows, body = (None, {}) if manifest is None else (manifest.rows, manifest.body or {})
        if held is None or held.rows != rows:
            now = "is gone" if held is None else f"holds {held.rows}"
        elif held.digest != body.get(DIGEST, held.digest):
            now = "holds other values: a row was changed, or its bytes rotted"
        else:
            continue
        raise StagingLostError(f"{epoch}: {rows} rows were sealed for {staged.sink}, but its staging table {now}.")


def _move_heads(tx: Transaction, epoch: Epoch, ranges: Sequence[PlannedRange]) -> None:
    back = epoch.kind is EpochKind.EXTEND_BACK
    for planned in ranges:
        moved = tx.chain.extend_back(epoch, planned) if back else tx.chain.advance(epoch, planned)
        if not moved:
            raise HeadMovedError(
                f"{epoch}: {planned} does not {'end at the origin' if back else 'start at the head'} of its partition;"
                " another epoch moved it. Nothing was changed. Abort the epoch, then clear its run from plan_epoch.",
                _abort_command(epoch),
            )


def _refuse_dropped_rows(epoch: Epoch, table: PostgresTable, sealed: int, applied: Applied) -> None:
    if table.mode in ("append", "replace") and applied.accounted != sealed:
        key = f", or another program wrote a key ({', '.join(table.key)}) of this epoch since its seal"
        raise TargetError(
            f"{epoch}: {sealed} rows were sealed for {table}, but {applied.accounted} arrived: a trigger or rule of"
            f" the table drops rows{key if table.key else ''}. Nothing was changed. Remove it and repeat the task, or"
            " abort the epoch.",
            f"run {epoch.pipeline}",
        )


def _take_place(tx: Transaction, pipeline: Pipeline, epoch: Epoch) -> None:
    """Remove the rows of the replayed epoch. The heads stay: that epoch committed the same ranges."""
    undo(tx, pipeline, [epoch.replays or 0])
    if not tx.epochs.supersede(epoch):
        raise HeadMovedError(
            f"{epoch}: epoch {epoch.replays} is undone already, or a record that it quarantined was requeued. Nothing"
            " was changed. Abort the replay.",
            _abort_command(epoch),
        )


def _keep_quarantine(tx: Transaction, epoch: Epoch, staged: StagedTable) -> None:
    if epoch.kind is EpochKind.REQUEUE:
        requeued, kept = tx.quarantine.requeue(staged, epoch)
        # The compare-and-swap of a requeue: each claimed record is still in the quarantine.
        if requeued + kept != epoch.counts.read:
            raise HeadMovedError(
                f"{epoch}: claimed {epoch.counts.read} quarantined records, but only {requeued + kept} are still there"
                " to be requeued. Nothing was changed. Abort the epoch and select again.",
                _abort_command(epoch),
            )
    else:
        kept = tx.targets.keep_quarantine(staged, epoch)
    if kept != epoch.counts.quarantined:
        raise StagingLostError(f"{epoch}: {epoch.counts.quarantined} records were quarantined, {kept} were kept.")


def _refuse_changed_targets(
    tx: Transaction, epoch: Epoch, pipeline: Pipeline, planned: Mapping[str, Mapping[str, str]]
) -> None:
    def refusal(what: str) -> TargetError:
        way_out = "Put the table back, or abort the epoch and clear its run from plan_epoch."
        return TargetError(f"{epoch}: {what} Nothing was changed. {way_out}", f"run {epoch.pipeline}")

    try:
        now = tx.targets.inspect(pipeline)
    except TargetError as error:
        raise refusal(f"a target changed since the epoch was planned: {error.said}") from error
    for sink, columns in planned.items():
        if dict(now[sink]) != dict(columns):
            then, since = (", ".join(map(" ".join, kinds.items())) for kinds in (columns, now[sink]))
            raise refusal(f"the columns of {sink} changed since the epoch was planned: then {then}, now {since}.")


def undo(tx: Transaction, pipeline: Pipeline, epochs: Sequence[int]) -> None:
    """Remove the rows of these epochs from every target, and put back what they replaced.

    Raises:
        TargetError: an append target has more rows of these epochs than they wrote, a row does not go or come back, or
            rows of another table would be deleted or changed with it.
    """
    if not epochs:
        return
    written = tx.savepoints.rows_sealed(pipeline.name, epochs)
    changed_rows = tx.targets.undo(pipeline, epochs)
    for sink in pipeline.targets:
        changed = changed_rows[sink.table]
        if sink.mode == "append" and changed > written.get(sink.table, 0):
            raise TargetError(
                f"{sink} holds {changed} rows with the numbers of epochs {', '.join(map(str, epochs))} of"
                f" {pipeline.name}, which wrote {written.get(sink.table, 0)}: rows of another pipeline, or copies."
                " Nothing was changed. Move those away first.",
                f"plan {pipeline.name}",
            )
