"""Begin an attempt with its own token and staging, and renew the epoch's lease while the attempt works."""

import logging
from datetime import timedelta

from epochline.coordinator.discard import discard
from epochline.coordinator.pacing import check_failure_rate, check_not_given_up
from epochline.errors import EpochFencedError, EpochStateError
from epochline.ports import Ledger
from epochline.protocol.epoch import EpochState, Run
from epochline.protocol.staging import StagingTicket

log = logging.getLogger(__name__)


def begin(ledger: Ledger, pipeline: str, epoch_id: int, run: Run, *, lease: timedelta) -> StagingTicket | None:
    """Start the epoch's next attempt. A live earlier attempt is fenced first (INV-4).

    Returns:
        The ticket for the attempt's writers; None if the epoch is sealed or committed.

    Raises:
        EpochStateError: the epoch is aborted, or belongs to another run.
        RestartsExhaustedError: its restart strategy allows no further attempt.
        SinkUnavailableError: an external sink is down.
    """
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(pipeline, epoch_id)
        if not epoch.belongs_to(run):
            raise EpochStateError(f"{epoch}: belongs to {epoch.run}; {run} may not stage it. Nothing was changed.")
        if epoch.state in (EpochState.PRE_COMMITTED, EpochState.COMMITTED):
            log.info("attempt.not_needed pipeline=%s epoch=%d state=%s", pipeline, epoch_id, epoch.state)
            return None
        if epoch.state is EpochState.ABORTED:
            raise EpochStateError(
                f"{epoch}: was aborted ({epoch.error or 'no reason given'}). Clear the run from plan_epoch, so that its"
                " range is planned again."
            )
        settings = tx.history.settings(epoch)
        check_failure_rate(tx, epoch, settings)
        check_not_given_up(tx, epoch, settings)
        previous = tx.attempts.live(epoch)
        if previous is not None:
            silent = "" if previous.error else "its process was lost, or could not reach the ledger; "
            tx.attempts.fence(previous, f"{silent}attempt {epoch.attempt + 1} took its place")
        declared = tx.epochs.declaration(epoch)
        ticket = tx.attempts.begin(epoch, run, declared, tx.epochs.planned_targets(epoch))
        tx.epochs.renew_lease(epoch, ticket.attempt, lease)
    discard(ledger, previous)
    for declared_sink in declared.post_commit_sinks:
        sink = ledger.sink(declared, declared_sink.name)
        sink.begin(ticket.sink_attempt)
    log.info("attempt.begun pipeline=%s epoch=%d attempt=%d", pipeline, epoch_id, ticket.attempt)
    return ticket


def renew(ledger: Ledger, ticket: StagingTicket, run: Run, *, lease: timedelta) -> None:
    """Extend the lease of the live attempt; `EpochFencedError` if another one or another run took its place."""
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(ticket.pipeline, ticket.epoch_id)
        if epoch.state is not EpochState.PLANNED and epoch.attempt == ticket.attempt and epoch.belongs_to(run):
            if epoch.state is not EpochState.ABORTED:
                return  # Sealed meanwhile: the lease guards PLANNED only.
            raise EpochFencedError(f"{ticket}: the epoch was aborted ({epoch.error}). Nothing it wrote counts.")
        if not epoch.belongs_to(run) or not tx.epochs.renew_lease(epoch, ticket.attempt, lease):
            raise EpochFencedError(
                f"{ticket}: was fenced; the epoch is {epoch.state}, its newest attempt is {epoch.attempt}."
                " Nothing it wrote counts."
            )
