"""Keep an epoch's lease: while Spark works for it, and in the pause before its next attempt."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from epochline.config.resolve import recorded_restart
from epochline.coordinator.begin import renew
from epochline.coordinator.intent import LEASE
from epochline.declare.restart import Endless
from epochline.errors import EpochFencedError, EpochlineError
from epochline.ports import Ledger
from epochline.protocol.epoch import EpochState, Run
from epochline.protocol.failures import GIVEN_UP_AFTER, failed_alike
from epochline.protocol.staging import StagingTicket

log = logging.getLogger(__name__)

RENEW_EVERY_SECONDS = LEASE.total_seconds() / 4


@contextmanager
def keep_lease_alive(ledger: Ledger, ticket: StagingTicket, run: Run, stop: Callable[[], None]) -> Iterator[None]:
    """Renew the lease every 15 s until the block ends.

    ``stop`` is called once when the attempt is fenced. It ends the job, whose rows no longer count.

    Raises:
        EpochFencedError: the attempt was fenced while the block ran, whatever the block itself raised.
    """
    done = threading.Event()
    fenced: list[EpochFencedError] = []

    def keep() -> None:
        while not done.wait(RENEW_EVERY_SECONDS):
            try:
                renew(ledger, ticket, run, lease=LEASE)
            except EpochFencedError as error:
                fenced.append(error)
                log.warning("attempt.fenced pipeline=%s epoch=%d attempt=%d", *_names(ticket))
                stop()
                return
            except EpochlineError as error:
                # The next renewal may succeed. If the lease expires first, another run takes over.
                log.warning("lease.not_renewed pipeline=%s epoch=%d attempt=%d reason=%s", *_names(ticket), error)

    thread = threading.Thread(target=keep, name="epochline-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if fenced:
            raise fenced[0]


def _names(ticket: StagingTicket) -> tuple[str, int, int]:
    return ticket.pipeline, ticket.epoch_id, ticket.attempt


def pause_before_retry(ledger: Ledger, pipeline: str, epoch_id: int) -> tuple[timedelta, str]:
    """How long to wait before the next attempt of an epoch, which stays its run's until then.

    Returns:
        The pause, and what to say of it.
    """
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(pipeline, epoch_id)
        strategy = recorded_restart(tx.history.settings(epoch))
        if isinstance(strategy, Endless):
            alike = failed_alike(tx.history.errors(epoch))
            pause = strategy.pause_after(alike)
        else:
            alike, pause = 0, strategy.delay
        if epoch.state is EpochState.PLANNED:
            tx.epochs.renew_lease(epoch, epoch.attempt, pause + LEASE)
    said = f"{epoch}: no offset moved; attempt {epoch.attempt + 1} begins in {pause.total_seconds():g} s"
    if isinstance(strategy, Endless) and alike >= GIVEN_UP_AFTER:
        said += (
            f". The last {alike} attempts failed of the same error of code. The declared Endless restarts go on, with"
            f" pauses of up to {strategy.longest_pause.total_seconds():g} s. Correct the code, or run `epochline"
            f" pause {pipeline} --reason …` and mark the run failed"
        )
    return pause, said
