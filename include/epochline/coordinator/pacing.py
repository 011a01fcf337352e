"""Delay or refuse plans and attempts: minimum pauses, failures in a row, failure rates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from epochline.config.resolve import recorded_restart
from epochline.declare.restart import FailureRate
from epochline.errors import RestartsExhaustedError
from epochline.ports import PAUSE_AFTER_FAILURES, ActionRow, Ledger, Transaction
from epochline.protocol.epoch import Epoch

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


def pause_after_failures(ledger: Ledger, pipeline: str, tolerable: int | None) -> None:
    """Pause the pipeline if more epochs in a row were aborted than it tolerates (K11).

    Called after an abort and again before a plan, so that a crash between the two hides no failure. A resume or a
    commit resets the count.

    Args:
        ledger: where aborts are counted and the pause is kept.
        pipeline: its name.
        tolerable: how many epochs may be aborted in a row; None for any number.
    """
    if tolerable is None:
        return
    with ledger.transaction() as tx:
        tx.epochs.lock_pipeline(pipeline)
        aborts = tx.history.aborts(pipeline)
        if aborts.in_a_row <= tolerable:
            return
        reason = f"{aborts.in_a_row} epochs in a row were aborted, of which {tolerable} are tolerated"
        pause(tx, pipeline, PAUSE_AFTER_FAILURES, reason, aborts=aborts.ever)


def pause(tx: Transaction, pipeline: str, action: str, reason: str, **noted: int) -> None:
    """Pause a pipeline whose row is locked, as epochline itself. A paused or dropped pipeline stays as it is."""
    standing = tx.operators.standing(pipeline)
    if standing.paused is not None or standing.dropped is not None:
        return
    tx.operators.pause(pipeline, "epochline", reason)
    tx.operators.record(
        ActionRow(
            pipeline=pipeline,
            action=action,
            actor="epochline",
            reason=reason,
            before={"paused": False},
            after={"paused": True, **noted},
        )
    )
    log.warning("pipeline.paused pipeline=%s reason=%s", pipeline, reason)


def check_failure_rate(tx: Transaction, epoch: Epoch) -> None:
    """Refuse another attempt if the pipeline failed too often recently (R2).

    Called before the attempt is made: an earlier attempt that died silently counts as failed now.

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
