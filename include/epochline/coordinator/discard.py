"""Fence an attempt for good: end its sessions, wait until none of its transactions is open, drop its staging."""

from __future__ import annotations

import logging

from epochline.epoch import Attempt
from epochline.errors import LockTimeoutError
from epochline.ports import Ledger

log = logging.getLogger(__name__)


def discard(ledger: Ledger, attempt: Attempt) -> bool:
    """Drop the staging of an attempt that is already fenced, or whose epoch is over. Repeatable.

    A writer that does not let go within the lock time-out keeps its tables until the next sweep; nothing that it
    writes can become visible.

    Returns:
        Whether the staging is gone.
    """
    with ledger.transaction() as tx:
        ended = tx.attempts.end_sessions(attempt)
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


def sweep(ledger: Ledger, pipeline: str) -> int:
    """Discard every staging of the pipeline that nobody needs any more; how many are gone.

    A crash between fencing and dropping, or a teardown that never ran (trap 8), leaves some.
    """
    with ledger.transaction() as tx:
        attempts = tx.attempts.left_over(pipeline)
    return sum(discard(ledger, attempt) for attempt in attempts)
