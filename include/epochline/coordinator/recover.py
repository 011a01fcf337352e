"""Recover: settle what earlier executions left, before a run plans its own epoch."""

import logging
import time
from datetime import timedelta

from epochline.coordinator.abort import abort_in, abort_lost
from epochline.coordinator.commit import commit_in
from epochline.coordinator.discard import discard, sweep
from epochline.coordinator.evidence import (
    Evidence,
    check_sealed,
    collect_evidence,
    guarded_by_sinks_alone,
    pausing_where_behind,
    refuse_behind,
)
from epochline.coordinator.intent import Plan, PlanOutcome
from epochline.coordinator.mirror import mirror
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochBusyError, StagingLostError
from epochline.ports import Ledger, OffsetSource
from epochline.protocol.epoch import CommitOutcome, Epoch, EpochKind, EpochState, Run

log = logging.getLogger(__name__)

_RESUMED = {
    EpochState.PLANNED: PlanOutcome.RESUMED,
    EpochState.PRE_COMMITTED: PlanOutcome.PRE_COMMITTED,
    EpochState.COMMITTED: PlanOutcome.ALREADY_COMMITTED,
}


# Two facts in the ledger decide: the newest epoch of the run (own), and the pipeline's unfinished epoch (other).
#
#   ask group and sinks which epoch they show; the ledger does not know it: pause the pipeline, fail
#   drop the staging that nothing needs
#   repeat:
#     own was undone by a restore:                 forget it
#     own is COMMITTED, PRE_COMMITTED or PLANNED:  go on with it
#     there is no other:                           the run plans; an ABORTED own epoch is tried again
#     other is PRE_COMMITTED and awaits approval:  fail, naming who decides
#     other is PRE_COMMITTED:                      commit it; its staging is gone: abort it
#     other is PLANNED, its lease is alive:        wait; after two leases: fail, naming its run
#     other is PLANNED, its lease has expired:     fence and abort it
#   (A replay is committed by its promotion alone: a sealed one is treated as a PLANNED one.)
#   mirror the heads if anything was settled
def recover(
    ledger: Ledger,
    source: OffsetSource,
    pipeline: Pipeline,
    run: Run,
    lease: timedelta,
) -> tuple[Plan | None, Epoch | None, tuple[str, ...]]:
    """Finish or end another run's unfinished epoch (INV-6), and find the run's own epoch. A repeat changes nothing.

    Returns:
        The plan with the run's own epoch, if it has one; else its own aborted epoch, which it may try again, if there
        is one; and notes on what was settled for other runs.

    Raises:
        EpochBusyError: another run holds the epoch with a live lease; the message names it.
        EpochAwaitsApprovalError: the unfinished epoch waits for an approval.
        LedgerBehindError, SourceUnavailableError, SinkError: as `refuse_behind`, `check_sealed` and `collect_evidence`.
    """
    name = pipeline.name
    notes: list[str] = []
    evidence = collect_evidence(ledger, source, pipeline)
    refuse_behind(ledger, name, evidence)
    deadline = time.monotonic() + 2 * lease.total_seconds()
    sweep(ledger, name)
    while True:
        with ledger.transaction() as tx:
            row = tx.epochs.lock_pipeline(name)
            own = tx.epochs.newest_of_run(name, run)
            if own is not None and tx.epochs.is_undone(own) and own.generation != row.generation:
                own = None
            other = tx.epochs.unfinished(name)
        # A run with an epoch of its own resumes it, even while another run works: a cleared run repeats its commit.
        if other is None or (own is not None and own.state in _RESUMED):
            break
        # Only a promotion commits a replay.
        if other.state is EpochState.PRE_COMMITTED and other.kind is not EpochKind.REPLAY:
            check_sealed(ledger, name, other.epoch_id)
        with pausing_where_behind(ledger, name):
            note = _settle(ledger, other, run, evidence)
        if note is not None:
            notes.append(note)
        elif time.monotonic() >= deadline:
            raise EpochBusyError(
                f"{other}: is being staged by {other.run} on {other.run.host}, attempt {other.attempt}, and its lease"
                " is alive. Nothing was planned. Wait for that run, or mark it failed; this run tries again by itself."
            )
        else:
            time.sleep(min(5.0, lease.total_seconds() / 4))
    if notes:
        mirror(ledger, source, pipeline)
    noted = (*notes, *guarded_by_sinks_alone(pipeline))
    if own is None or own.state not in _RESUMED:
        return None, own, noted
    with ledger.transaction() as tx:
        ranges = tuple(tx.epochs.ranges(own))
    return Plan(outcome=_RESUMED[own.state], epoch=own, ranges=ranges, notes=noted), None, noted


def _settle(ledger: Ledger, seen: Epoch, run: Run, evidence: Evidence) -> str | None:
    """Settle another run's unfinished epoch, read again under its row lock. None if its lease is alive."""
    try:
        with ledger.transaction() as tx:
            if seen.state is EpochState.PLANNED or seen.kind is EpochKind.REPLAY:
                tx.epochs.lock_pipeline(seen.pipeline)  # the abort below may pause the pipeline
            epoch = tx.epochs.lock(seen.pipeline, seen.epoch_id)
            if epoch.state in (EpochState.COMMITTED, EpochState.ABORTED):
                return f"{epoch} was {epoch.state.lower()} meanwhile"
            result = None
            if epoch.state is EpochState.PRE_COMMITTED and epoch.kind is not EpochKind.REPLAY:
                result = commit_in(tx, epoch, evidence)
                attempt = None
            elif not epoch.lease_expired:
                return None
            else:
                attempt = abort_in(tx, epoch, f"lease expired; recovered by {run}", may_pause=True)
    except StagingLostError as error:
        abort_lost(ledger, seen.pipeline, seen.epoch_id, error)
        return f"{seen}: {error}"
    if result is not None:
        log.info("epoch.recovered pipeline=%s epoch=%d by=%s", epoch.pipeline, epoch.epoch_id, run.run_id)
        verb = "committed" if result.outcome is CommitOutcome.COMMITTED else "found committed"
        return f"{verb} {epoch}, which {epoch.run} left pre-committed"
    discard(ledger, attempt)
    log.info("epoch.fenced pipeline=%s epoch=%d by=%s", epoch.pipeline, epoch.epoch_id, run.run_id)
    return f"aborted {epoch}, which {epoch.run} left {epoch.state.lower()} with an expired lease"
