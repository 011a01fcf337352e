"""Fence an attempt for good: end its sessions, wait until none of its transactions is open, drop its staging."""

from __future__ import annotations

import logging

from epochline.errors import LockTimeoutError, SinkError
from epochline.ports import Ledger
from epochline.protocol.epoch import Attempt
from epochline.protocol.sink import SinkAttempt

log = logging.getLogger(__name__)


def discard(ledger: Ledger, attempt: Attempt) -> bool:
    """Drop the staging of an attempt that is already fenced, or whose epoch is over. Repeatable.

    A writer that does not let go within the lock time-out keeps its tables until the next sweep; nothing that it
    writes can become visible.

    A sink beside the database that is down keeps it, too: nothing waits for that sink.

    Returns:
        Whether the staging is gone.
    """
    with ledger.transaction() as tx:
        ended = tx.attempts.end_sessions(attempt)
    if not _aborted_beside(ledger, attempt):
        return False
    try:
        with ledger.transaction() as tx:
            tx.attempts.drop_staging(tx.attempts.lock_attempt(attempt))
    except LockTimeoutError:
        log.warning(
            "staging.kept pipeline=%s epoch=%d attempt=%d reason=a_writer_still_holds_it",
            attempt.pipeline, attempt.epoch_id, attempt.number,
        )  # fmt: skip
        return False
    log.info(
        "staging.dropped pipeline=%s epoch=%d attempt=%d sessions_ended=%d",
        attempt.pipeline, attempt.epoch_id, attempt.number, ended,
    )  # fmt: skip
    return True


def _aborted_beside(ledger: Ledger, attempt: Attempt) -> bool:
    """Discard what a fenced attempt wrote beside the database, if anything; False where a sink is down."""
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(attempt.pipeline, attempt.epoch_id)
        pipeline = tx.epochs.declaration(epoch)
        if not pipeline.external:
            return True
        # What a committed attempt wrote is due, or shown already, where there is a receipt of it.
        received = tx.receipts.received(attempt.pipeline, attempt.epoch_id)
        kept = frozenset() if tx.attempts.lock_attempt(attempt).fenced else received
    try:
        for declared_sink in pipeline.post_commit_sinks:
            if declared_sink.name in kept:
                continue
            sink = ledger.sink(pipeline, declared_sink.name)
            sink.recover_and_abort(of_attempt(attempt))
    except SinkError as error:
        log.warning(
            "staging.kept pipeline=%s epoch=%d attempt=%d reason=%s",
            attempt.pipeline, attempt.epoch_id, attempt.number, error,
        )  # fmt: skip
        return False
    return True


def of_attempt(attempt: Attempt) -> SinkAttempt:
    """The attempt, as sinks know it."""
    return SinkAttempt(
        pipeline=attempt.pipeline,
        generation=attempt.generation,
        epoch_id=attempt.epoch_id,
        attempt=attempt.number,
        token=attempt.token,
    )


def sweep(ledger: Ledger, pipeline: str) -> int:
    """Discard every staging of the pipeline that nobody needs any more; how many are gone.

    A crash between fencing and dropping, or a teardown that never ran (trap 8), leaves some.
    """
    with ledger.transaction() as tx:
        attempts = tx.attempts.left_over(pipeline)
    return sum(discard(ledger, attempt) for attempt in attempts)
