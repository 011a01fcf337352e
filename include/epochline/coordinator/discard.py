"""Discard an attempt: end its sessions, wait until its transactions are closed, drop its staging."""

import logging

from epochline.errors import LockTimeoutError, SinkError
from epochline.ports import Ledger
from epochline.protocol.epoch import Attempt

log = logging.getLogger(__name__)


def discard(ledger: Ledger, attempt: Attempt | None) -> bool:
    """Drop the staging of an attempt, if there is one, that is fenced or whose epoch has ended. Repeatable.

    If a writer holds its tables beyond the lock time-out, or an external sink is down, the staging stays until the next
    sweep, and False is returned. Nothing in it can become visible.
    """
    if attempt is None:
        return True
    names = attempt.pipeline, attempt.epoch_id, attempt.number
    with ledger.transaction() as tx:
        ended = tx.attempts.end_sessions(attempt)
    try:
        _abort_external(ledger, attempt)
    except SinkError as error:
        log.warning("staging.kept pipeline=%s epoch=%d attempt=%d reason=%s", *names, error)
        return False
    try:
        with ledger.transaction() as tx:
            tx.attempts.drop_staging(tx.attempts.lock_attempt(attempt))
    except LockTimeoutError:
        log.warning("staging.kept pipeline=%s epoch=%d attempt=%d reason=a_writer_still_holds_it", *names)
        return False
    log.info("staging.dropped pipeline=%s epoch=%d attempt=%d sessions_ended=%d", *names, ended)
    return True


def _abort_external(ledger: Ledger, attempt: Attempt) -> None:
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(attempt.pipeline, attempt.epoch_id)
        pipeline = tx.epochs.declaration(epoch)
        if not pipeline.external:
            return
        # A sink with a receipt shows a committed attempt's rows, or is due to.
        received = tx.receipts.received(attempt.pipeline, attempt.epoch_id)
        kept = frozenset() if tx.attempts.lock_attempt(attempt).fenced else received
    for declared_sink in pipeline.post_commit_sinks:
        if declared_sink.name not in kept:
            sink = ledger.sink(pipeline, declared_sink.name)
            sink.recover_and_abort(attempt.sink_attempt)


def sweep(ledger: Ledger, pipeline: str) -> int:
    """Discard all staging of the pipeline that is no longer needed. Returns the number of attempts.

    A crash between fencing and dropping leaves some, as does a teardown that never ran.
    """
    with ledger.transaction() as tx:
        attempts = tx.attempts.left_over(pipeline)
    return sum(discard(ledger, attempt) for attempt in attempts)
