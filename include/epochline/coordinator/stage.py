"""Stage: one attempt of an epoch, from its beginning to its seal, in the only order that is safe."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from epochline.coordinator.begin import begin, renew
from epochline.coordinator.intent import LEASE
from epochline.coordinator.pacing import check_not_given_up
from epochline.coordinator.reasons import REASON_PATIENCE_SECONDS, keep_error
from epochline.coordinator.seal import seal
from epochline.errors import (
    EpochFencedError,
    EpochInterruptedError,
    EpochlineError,
    LedgerUnavailableError,
    RestartsExhaustedError,
    SinkUnavailableError,
    SourceUnavailableError,
)
from epochline.ports import Ledger, OffsetSource
from epochline.protocol.epoch import Counts, Run
from epochline.protocol.staging import StagingTicket

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 120.0
"""How long the seal waits for Kafka and the sinks: as long as a task waits for its next record."""

_PAUSE_SECONDS = 1.0

RENEW_EVERY_SECONDS = LEASE.total_seconds() / 4


def stage(
    ledger: Ledger,
    source: OffsetSource,
    pipeline: str,
    epoch_id: int,
    run: Run,
    *,
    submit: Callable[[StagingTicket], None],
    stop: Callable[[], None],
) -> Counts | None:
    """Stage an epoch with a job, then seal it. A repeat fences the attempt before it and stages the same range again.

    Airflow's task `pre_commit` and the command line both need this order:

    1. `begin` fences the attempt before, so that at most one job can write.
    2. The lease is kept alive from before the job starts until the seal has ended, so that no other run takes over.
    3. ``submit`` runs the job to its end. What is sealed while a job still writes would be incomplete.
    4. `seal` asks Kafka, after the job has read, whether a log was made again or truncated since the plan. Only then
       does `seal` make the epoch PRE_COMMITTED. While Kafka or a sink does not answer, `seal` is called again: what is
       staged is whole, and a failure would throw it away.

    A failure before the seal's commit leaves the epoch PLANNED. The caller then calls `abort`, or a retry calls this
    function again. After the seal's commit the epoch is PRE_COMMITTED, and the next run commits it. A fenced attempt
    leaves the state that the fencing run or operator set.

    ``submit`` runs the job of an attempt. It returns, or raises an `Exception`, only when the job has ended. ``stop``
    ends the job that ``submit`` started, and does nothing if no job runs. It is called when the attempt is fenced, and
    when a time-out, Ctrl-C or SIGTERM interrupts ``submit`` or the seal.

    Returns:
        How many records were read, passed, skipped and quarantined. None if the epoch was sealed or committed before;
        then ``submit`` was not called.

    Raises:
        EpochlineError: as `begin` and `seal` raise.
        EpochFencedError: the attempt was fenced while the job or the seal ran. It replaces any other error.
    """
    ticket = begin(ledger, pipeline, epoch_id, run, lease=LEASE)
    if ticket is None:
        return None
    try:
        with _lease_kept_alive(ledger, ticket, run, stop):
            submit(ticket)
            return _sealed(ledger, source, ticket, run)
    except Exception as error:
        # The job has ended: `submit` raises an `Exception` only then, and a fence stops the job.
        keep_error(ledger, pipeline, epoch_id, error, unsealed=ticket.attempt, patience=REASON_PATIENCE_SECONDS)
        _give_up(ledger, ticket, error)
        raise
    except BaseException as error:
        # An interrupted job still writes. Stop the job before the error is raised: the caller may abort the epoch.
        with suppress(Exception):
            stop()
        reason = f"{type(error).__name__}{f' ({error})' if str(error) else ''}"
        interrupted = EpochInterruptedError(f"{ticket}: was interrupted by {reason}")
        keep_error(ledger, pipeline, epoch_id, interrupted, unsealed=ticket.attempt)
        raise


def _give_up(ledger: Ledger, ticket: StagingTicket, error: Exception) -> None:
    """End the retries where another attempt would only fail of the same error, as `check_not_given_up`."""
    if isinstance(error, EpochlineError) and not error.retryable:
        return
    with suppress(LedgerUnavailableError), ledger.transaction() as tx:
        epoch = tx.epochs.lock(ticket.pipeline, ticket.epoch_id)
        try:
            check_not_given_up(tx, epoch, tx.history.settings(epoch))
        except RestartsExhaustedError as given_up:
            raise given_up from error


def _sealed(ledger: Ledger, source: OffsetSource, ticket: StagingTicket, run: Run) -> Counts:
    deadline, waits = time.monotonic() + PATIENCE_SECONDS, False
    while True:
        try:
            return seal(ledger, source, ticket, run)
        except (SourceUnavailableError, SinkUnavailableError) as error:
            if time.monotonic() >= deadline:
                raise
            if not waits:
                waits = True
                event = "seal.waits pipeline=%s epoch=%d attempt=%d seconds=%.0f reason=%s"
                log.warning(event, *_names(ticket), PATIENCE_SECONDS, error)
        time.sleep(_PAUSE_SECONDS)


@contextmanager
def _lease_kept_alive(ledger: Ledger, ticket: StagingTicket, run: Run, stop: Callable[[], None]) -> Iterator[None]:
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
