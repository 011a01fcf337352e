"""Why an attempt or a plan failed, kept in the ledger. Best effort: the caller raises the error in any case."""

import time
from contextlib import suppress

from epochline.errors import (
    EpochBusyError,
    EpochlineError,
    LedgerUnavailableError,
    PipelineDroppedError,
    PipelinePausedError,
    PlanChangedError,
)
from epochline.ports import Ledger
from epochline.protocol.epoch import EpochState, Run
from epochline.protocol.failures import RecordedError

REASON_PATIENCE_SECONDS = 30.0
"""The time for which a reason waits for a ledger that is away."""

_SHOWN_ELSEWHERE = (EpochBusyError, PipelineDroppedError, PipelinePausedError, PlanChangedError)
"""What an operator decided is in the ledger as it is, and so is the epoch of another run."""


def keep_error(
    ledger: Ledger,
    pipeline: str,
    epoch_id: int,
    error: Exception,
    *,
    unsealed: int | None = None,
    patience: float = 0.0,
) -> None:
    """Write why an attempt failed, before an abort or a successor adds a reason of its own.

    ``unsealed`` is the number of an attempt that failed before its seal; None for the sealed one, whose commit failed.
    ``patience`` is how many seconds to wait for a ledger that is away: its restart may be what ended the job.
    """
    deadline = time.monotonic() + patience
    with suppress(Exception):
        while True:
            try:
                _write(ledger, pipeline, epoch_id, RecordedError.of(error), unsealed)
            except LedgerUnavailableError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1)
            else:
                return


def _write(ledger: Ledger, pipeline: str, epoch_id: int, error: RecordedError, unsealed: int | None) -> None:
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(pipeline, epoch_id)
        attempt = tx.attempts.live(epoch)
        if attempt is None:
            return
        if unsealed is None:
            failed = epoch.state is EpochState.PRE_COMMITTED
        else:  # The job knows more than its caller.
            failed = attempt.number == unsealed and not attempt.sealed and attempt.error is None
        if failed:
            tx.attempts.note_error(attempt, error)


def keep_plan_error(ledger: Ledger, pipeline: str, run: Run, error: EpochlineError) -> None:
    """Write why a plan failed. The next plan that succeeds takes it back."""
    if not isinstance(error, _SHOWN_ELSEWHERE):
        with suppress(Exception), ledger.transaction() as tx:
            tx.history.plan_failed(pipeline, run, RecordedError.of(error))
