"""When a plan or an attempt has to wait, or may not be made: minimum pauses, failures in a row, failure rates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from epochline.effective import recorded_restart
from epochline.epoch import Epoch
from epochline.errors import RestartsExhaustedError
from epochline.ports import Ledger, Transaction
from epochline.restart import FailureRate

log = logging.getLogger(__name__)


def wait_for_pause(
    ledger: Ledger, pipeline: str, pause: timedelta, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when the pipeline's last commit is ``pause`` ago, by the database's clock (K9)."""
    while pause > timedelta(0):
        with ledger.transaction() as tx:
            left = tx.history.pause_left(pipeline, pause)
        if left <= timedelta(0):
            return
        log.info("plan.pauses pipeline=%s seconds=%.1f", pipeline, left.total_seconds())
        sleep(left.total_seconds())


def check_failure_rate(tx: Transaction, epoch: Epoch) -> None:
    """Refuse another attempt where the pipeline failed too often of late (R2).

    Asked before the attempt is made: an attempt that died without a word counts as failed now.

    Raises:
        RestartsExhaustedError: the epoch's strategy is a failure rate, and it is exceeded.
    """
    strategy = recorded_restart(tx.history.settings(epoch))
    if not isinstance(strategy, FailureRate):
        return
    live = tx.attempts.live(epoch)
    silent = live is not None and live.error is None
    failures = tx.history.failed_attempts(epoch.pipeline, strategy.interval) + silent
    if failures > strategy.max_failures:
        raise RestartsExhaustedError(
            f"{epoch}: {failures} attempts failed within {strategy.interval}, and the restart strategy allows"
            f" {strategy.max_failures}. No attempt was made; the epoch is aborted and no offset moves. Look at the"
            " errors in epochline.attempts."
        )
