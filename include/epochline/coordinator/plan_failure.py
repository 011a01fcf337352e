"""Why a run has no epoch, kept in the ledger."""

from __future__ import annotations

from contextlib import suppress

from epochline.errors import (
    EpochBusyError,
    EpochlineError,
    PipelineDroppedError,
    PipelinePausedError,
    PlanChangedError,
)
from epochline.ports import Ledger
from epochline.protocol.epoch import Run
from epochline.protocol.failures import RecordedError

_SHOWN_ELSEWHERE = (EpochBusyError, PipelineDroppedError, PipelinePausedError, PlanChangedError)
"""What an operator decided is in the ledger as it is, and so is the epoch of another run."""


def keep_plan_error(ledger: Ledger, pipeline: str, run: Run, error: EpochlineError) -> None:
    """Write why a plan failed, until one succeeds. Best effort: the caller raises the error in any case."""
    if not isinstance(error, _SHOWN_ELSEWHERE):
        with suppress(Exception), ledger.transaction() as tx:
            tx.history.plan_failed(pipeline, run, RecordedError.of(error))
