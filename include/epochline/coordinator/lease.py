"""Keep an epoch's lease alive while Spark works for it, and stop Spark when the attempt is fenced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from epochline.coordinator.begin import renew
from epochline.coordinator.intent import LEASE
from epochline.errors import EpochFencedError, EpochlineError
from epochline.ports import Ledger
from epochline.protocol.epoch import Run
from epochline.protocol.staging import StagingTicket

log = logging.getLogger(__name__)

RENEW_EVERY_SECONDS = LEASE.total_seconds() / 4


@contextmanager
def keep_lease_alive(ledger: Ledger, ticket: StagingTicket, run: Run, stop: Callable[[], None]) -> Iterator[None]:
    """Renew the lease every 15 s until the block ends.

    Args:
        ledger: where the lease is.
        ticket: the attempt that holds the lease.
        run: that the attempt belongs to.
        stop: called once when the attempt is fenced; ends the job, whose rows no longer count.

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
