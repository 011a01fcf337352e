"""Abort: discard staging, move no offset (INV-7)."""

import logging

from epochline.config.resolve import recorded_value
from epochline.coordinator.discard import discard, sweep
from epochline.coordinator.pacing import pause_after_failures, pause_where_down
from epochline.errors import EpochStateError, StagingLostError
from epochline.ports import Ledger, Transaction
from epochline.protocol.epoch import AbortOutcome, Attempt, Epoch, EpochState, Run

log = logging.getLogger(__name__)


def abort(
    ledger: Ledger, pipeline: str, epoch_id: int, run: Run, *, reason: str, by_operator: bool = False
) -> AbortOutcome:
    """Discard what an epoch staged and mark it ABORTED. Aborting twice is aborting once.

    A committed epoch stays as it is. A pre-committed epoch is left for recovery, because sealed rows are kept (INV-6),
    unless an operator aborts it or the setting is ``on_cancel="delete"``. The pipeline is paused if more epochs in a
    row were aborted than the settings tolerate, and, unless an operator aborts, if its next run would only fail again.

    Raises:
        EpochStateError: the epoch belongs to another run, and ``by_operator`` is False.
        EpochNotFoundError: there is no such epoch.
    """
    with ledger.transaction() as tx:
        # First, as in every other transaction with both locks: the abort may pause the pipeline.
        tx.epochs.lock_pipeline(pipeline)
        epoch = tx.epochs.lock(pipeline, epoch_id)
        if not by_operator and not epoch.belongs_to(run):
            raise EpochStateError(f"{epoch}: belongs to {epoch.run}; {run} may not abort it. Nothing was changed.")
        if epoch.state is EpochState.COMMITTED:
            return AbortOutcome.ALREADY_COMMITTED
        settings = tx.history.settings(epoch)
        deletes = by_operator or recorded_value(settings, "on_cancel") == "delete"
        if epoch.state is EpochState.PRE_COMMITTED and not deletes:
            return AbortOutcome.LEFT_FOR_RECOVERY
        attempt = abort_in(tx, epoch, reason, may_pause=not by_operator)
    if epoch.state is EpochState.ABORTED:
        sweep(ledger, pipeline)
        return AbortOutcome.ALREADY_ABORTED
    discard(ledger, attempt)
    pause_after_failures(ledger, pipeline, recorded_value(settings, "tolerable_failures"))
    log.info("epoch.aborted pipeline=%s epoch=%d reason=%s", pipeline, epoch_id, reason)
    return AbortOutcome.ABORTED


def abort_lost(ledger: Ledger, pipeline: str, epoch_id: int, error: StagingLostError) -> None:
    """Abort an epoch whose staging is gone: the only automatic way from PRE_COMMITTED to ABORTED."""
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(pipeline, epoch_id)
        if epoch.state is not EpochState.PRE_COMMITTED:
            return
        attempt = abort_in(tx, epoch, str(error), may_pause=False)
    discard(ledger, attempt)


def abort_in(tx: Transaction, epoch: Epoch, reason: str, *, may_pause: bool) -> Attempt | None:
    """Fence the live attempt of an epoch, locked in ``tx`` with its pipeline, and mark the epoch ABORTED if it is not.

    The epoch keeps why its attempt failed, followed by the reason of the abort. With ``may_pause`` the pipeline is
    paused if its next run would only fail again.

    Returns:
        The attempt whose staging the caller discards after the transaction, if there is one.
    """
    attempt = tx.attempts.live(epoch)
    if epoch.state is not EpochState.ABORTED:
        failed = None if attempt is None else attempt.error
        if attempt is not None:
            if may_pause:
                pause_where_down(tx, epoch, attempt)
            tx.attempts.fence(attempt, reason)
        tx.epochs.mark_aborted(epoch, "; ".join(dict.fromkeys(filter(None, (failed, reason)))))
    return attempt
