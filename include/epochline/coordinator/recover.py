"""Recover: settle what earlier executions left, before a run plans its own epoch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from epochline.coordinator.abort import abort_in
from epochline.coordinator.commit import abort_lost, commit_in
from epochline.coordinator.discard import discard, sweep
from epochline.coordinator.evidence import Evidence, pausing_where_behind
from epochline.errors import EpochAwaitsApprovalError, EpochBusyError, StagingLostError
from epochline.ports import Ledger
from epochline.protocol.epoch import CommitOutcome, Epoch, EpochKind, EpochState, Run

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The run's own newest epoch, if any, and notes on what was settled for other runs."""

    own: Epoch | None
    notes: tuple[str, ...]


def recover(
    ledger: Ledger,
    pipeline: str,
    run: Run,
    evidence: Evidence,
    *,
    lease: timedelta,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Recovered:
    """Finish or end another run's unfinished epoch (INV-6), and find the run's own epoch.

    A PRE_COMMITTED epoch is committed. A PLANNED epoch with an expired lease is fenced and aborted, as is a replay in
    either state. A live lease is waited for, at most for two leases.

    Raises:
        EpochBusyError: another run holds the epoch with a live lease; the message names it.
        EpochAwaitsApprovalError: the unfinished epoch waits for an approval.
        LedgerBehindError: the ledger does not know what ``evidence`` shows; the pipeline is paused.
    """
    notes: list[str] = []
    deadline = clock() + 2 * lease.total_seconds()
    sweep(ledger, pipeline)
    while True:
        with ledger.transaction() as tx:
            tx.epochs.lock_pipeline(pipeline)
            own = tx.epochs.newest_of_run(pipeline, run)
            other = tx.epochs.unfinished(pipeline)
        # A run with an epoch of its own resumes it, even while another run works: a cleared run repeats its commit.
        settled = own is not None and own.state is not EpochState.ABORTED
        if other is None or settled:
            return Recovered(own=own, notes=tuple(notes))
        with pausing_where_behind(ledger, pipeline):
            note = _settle(ledger, other, run, evidence)
        if note is not None:
            notes.append(note)
        elif clock() >= deadline:
            raise EpochBusyError(
                f"{other}: is being staged by {other.run} on {other.run.host}, attempt {other.attempt}, and its lease"
                " is alive. Nothing was planned. Wait for that run, or mark it failed; this run tries again by itself."
            )
        else:
            sleep(min(5.0, lease.total_seconds() / 4))


def refuse_awaiting(epoch: Epoch) -> None:
    """Refuse to go past a sealed epoch that waits for an approval.

    Raises:
        EpochAwaitsApprovalError: names the run that sealed it.
    """
    if epoch.state is EpochState.PRE_COMMITTED and epoch.kind is not EpochKind.REPLAY and epoch.approval == "awaited":
        raise EpochAwaitsApprovalError(
            f"{epoch}: is pre-committed by {epoch.run} and awaits approval. Nothing is planned before it is"
            " approved or aborted.",
            f"abort {epoch.pipeline} {epoch.epoch_id} --reason …",
        )


def _settle(ledger: Ledger, seen: Epoch, run: Run, evidence: Evidence) -> str | None:
    """Settle another run's unfinished epoch, read again under its row lock. None if its lease is alive."""
    try:
        with ledger.transaction() as tx:
            if seen.state is EpochState.PLANNED or seen.kind is EpochKind.REPLAY:
                tx.epochs.lock_pipeline(seen.pipeline)  # the abort below may pause the pipeline
            epoch = tx.epochs.lock(seen.pipeline, seen.epoch_id)
            if epoch.state in (EpochState.COMMITTED, EpochState.ABORTED):
                return f"{epoch} was {epoch.state.lower()} meanwhile"
            receipt = None
            # Only a promotion commits a replay.
            if epoch.state is EpochState.PRE_COMMITTED and epoch.kind is not EpochKind.REPLAY:
                refuse_awaiting(epoch)
                receipt = commit_in(tx, epoch, evidence)
                attempt = None
            elif not epoch.lease_expired:
                return None
            else:
                attempt = abort_in(tx, epoch, f"lease expired; recovered by {run}")
    except StagingLostError as error:
        abort_lost(ledger, seen.pipeline, seen.epoch_id, str(error))
        return f"{seen}: {error}"
    if receipt is not None:
        log.info("epoch.recovered pipeline=%s epoch=%d by=%s", epoch.pipeline, epoch.epoch_id, run.run_id)
        verb = "committed" if receipt.outcome is CommitOutcome.COMMITTED else "found committed"
        return f"{verb} {epoch}, which {epoch.run} left pre-committed"
    if attempt is not None:
        discard(ledger, attempt)
    log.info("epoch.fenced pipeline=%s epoch=%d by=%s", epoch.pipeline, epoch.epoch_id, run.run_id)
    return f"aborted {epoch}, which {epoch.run} left {epoch.state.lower()} with an expired lease"
