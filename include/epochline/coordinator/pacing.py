"""Delay or refuse plans and attempts: minimum pauses, pauses before a retry, failures in a row, failure rates."""

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from epochline.config.resolve import ResolvedSettings, recorded_restart, recorded_value
from epochline.declare.settings import Endless, FailureRate, FixedDelay
from epochline.errors import Failure, RestartsExhaustedError
from epochline.ports import PAUSE_AFTER_FAILURES, PAUSE_DOWN, ActionRow, Ledger, Transaction
from epochline.protocol.epoch import Attempt, Epoch
from epochline.protocol.failures import GIVEN_UP_AFTER, failed_alike, failure_of, may_be_repeated
from epochline.protocol.quantities import duration

log = logging.getLogger(__name__)

LONGEST_WAIT = timedelta(minutes=1)
"""How long a plan of the schedule waits for its interval at most."""


def wait_for_turn(
    ledger: Ledger, pipeline: str, settings: ResolvedSettings, *, scheduled: bool, sleep: Callable[[float], None]
) -> tuple[str, ...]:
    """Return when the minimum pause has passed since the last commit, by the database's clock.

    A plan of the schedule also waits until the last plan is an interval ago: Airflow starts a run at each tick, so a
    late run is followed too soon by the next one. It waits for at most `LONGEST_WAIT`, because a wait holds a worker
    slot.

    Returns:
        A note if the plan does not wait for its interval, because more than that is left.
    """
    pause, interval = settings.minimum_pause, settings.interval
    while pause > timedelta(0):
        with ledger.transaction() as tx:
            left = tx.history.pause_left(pipeline, pause)
        if left <= timedelta(0):
            break
        log.info("plan.pauses pipeline=%s seconds=%.1f", pipeline, left.total_seconds())
        sleep(left.total_seconds())
    while scheduled and isinstance(interval, timedelta):
        with ledger.transaction() as tx:
            left = tx.history.interval_left(pipeline, interval)
        if left <= timedelta(0):
            break
        if left > LONGEST_WAIT:
            since, whole = (duration(span.total_seconds()) for span in (interval - left, interval))
            note = f"this epoch starts {since} after the one before, and the interval is {whole}: the rest is longer"
            return (f"{note} than a plan waits",)
        log.info("plan.waits_for_interval pipeline=%s seconds=%.1f", pipeline, left.total_seconds())
        sleep(left.total_seconds())
    return ()


def pause_after_failures(ledger: Ledger, pipeline: str, tolerable: int | None) -> None:
    """Pause the pipeline if more epochs in a row were aborted than it tolerates.

    Called after an abort and again before a plan, so that a crash between the two hides no failure. A resume or a
    commit resets the count.
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


def pause(
    tx: Transaction, pipeline: str, action: str, reason: str, *, command: str | None = None, **noted: int
) -> None:
    """Pause a pipeline whose row is locked, as epochline itself. A paused or dropped pipeline stays as it is.

    ``command`` goes on, where it is not ``resume``.
    """
    standing = tx.operators.standing(pipeline)
    if standing.paused is not None or standing.dropped is not None:
        return
    tx.operators.pause(pipeline, "epochline", reason, command)
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


def pause_where_down(tx: Transaction, epoch: Epoch, attempt: Attempt) -> None:
    """Pause the pipeline of an epoch that is about to be aborted, if its next run would only fail again.

    The pipeline stays down after rows that a target refuses every time, and after code that raises once the restart
    strategy is used up. A pipeline that only people start is not paused for its code: they see the failure, and clear
    the run once the code is right.

    ``tx`` holds the locks of the pipeline and of the epoch. ``attempt`` is the epoch's newest, with the error.
    """
    failure = failure_of(attempt.error_class, attempt.error)
    if failure is Failure.INCURABLE or (failure is Failure.CODE and not may_be_repeated(attempt.error_class)):
        why = "a restart would fail again"
    elif failure is Failure.CODE and _restarts_are_used_up(tx, epoch):
        why = "its restart strategy is used up"
    else:
        return
    if failure is Failure.CODE and not _starts_by_itself(tx, epoch):
        return
    # The abort that follows is among those that a resume forgives.
    aborts = tx.history.aborts(epoch.pipeline).ever + 1
    pause(tx, epoch.pipeline, PAUSE_DOWN, f"epoch {epoch.epoch_id} failed, and {why}: {attempt.error}", aborts=aborts)


def _restarts_are_used_up(tx: Transaction, epoch: Epoch) -> bool:
    settings = tx.history.settings(epoch)
    strategy = recorded_restart(settings)
    if isinstance(strategy, Endless):
        return _given_up(tx, epoch, settings) is not None
    if isinstance(strategy, FixedDelay):
        return epoch.attempt - epoch.attempts_before > strategy.attempts
    if isinstance(strategy, FailureRate):
        return tx.history.failed_attempts(epoch.pipeline, strategy.interval) > strategy.max_failures
    return True


def _given_up(tx: Transaction, epoch: Epoch, settings: Mapping[str, Any]) -> str | None:
    """The error of which an epoch fails again and again, if nobody declared its restart strategy (ADR 0049)."""
    errors = tx.history.errors(epoch) if settings.get("restart", {}).get("from") == "default" else ()
    return errors[0][1] if failed_alike(errors) >= GIVEN_UP_AFTER else None


def check_not_given_up(tx: Transaction, epoch: Epoch, settings: Mapping[str, Any]) -> None:
    """Raise `RestartsExhaustedError` if an epoch failed of the same error three times in a row.

    The abort that follows pauses the pipeline.
    """
    error = _given_up(tx, epoch, settings)
    if error is not None:
        raise RestartsExhaustedError(
            f"{epoch}: its last {GIVEN_UP_AFTER} attempts failed of the same error: {error}. Another would fail of it,"
            " too, so the epoch is aborted, no offset moves, and the pipeline is paused. Correct the code. Declare"
            " restart=Endless(), and such an epoch is tried for ever.",
            f"resume {epoch.pipeline} --reason …" if _starts_by_itself(tx, epoch) else f"run {epoch.pipeline}",
        )


def _starts_by_itself(tx: Transaction, epoch: Epoch) -> bool:
    interval = recorded_value(tx.history.settings(epoch), "interval")
    return interval is not None or tx.epochs.declaration(epoch).wake_on_data is not None


def check_failure_rate(tx: Transaction, epoch: Epoch, settings: Mapping[str, Any]) -> None:
    """Raise `RestartsExhaustedError` if the epoch's strategy is a failure rate, and it is exceeded.

    Called before the attempt is made: an earlier attempt that died silently counts as failed now.
    """
    strategy = recorded_restart(settings)
    if not isinstance(strategy, FailureRate):
        return
    live = tx.attempts.live(epoch)
    silent = live is not None and live.error is None
    failures = tx.history.failed_attempts(epoch.pipeline, strategy.interval) + silent
    if failures > strategy.max_failures:
        failure = Failure.PASSING if live is None else failure_of(live.error_class, live.error)
        stays_down = failure is Failure.INCURABLE or (failure is Failure.CODE and _starts_by_itself(tx, epoch))
        raise RestartsExhaustedError(
            f"{epoch}: {failures} attempts failed within {duration(strategy.interval.total_seconds())}, and the restart"
            f" strategy allows {strategy.max_failures}. No attempt was made; the epoch is aborted and no offset moves."
            f" `epochline ledger {epoch.pipeline} --epoch {epoch.epoch_id}` shows why the attempts failed.",
            f"resume {epoch.pipeline} --reason …" if stays_down else f"run {epoch.pipeline}",
        )
