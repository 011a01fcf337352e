"""The epoch of a task's run: its id from `plan_epoch`, what it reads, and its outcome in XCom."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from epochline.errors import EpochNotFoundError
from epochline.ports import Ledger
from epochline.protocol.offsets import PlannedRange

log = logging.getLogger(__name__)

EPOCH_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan_epoch') or '' }}"
"""The epoch's id, as ``plan_epoch`` returned it. No task reads anything else of another (INV-8)."""

OUTCOME = "outcome"
"""Key in XCom of the outcome's one line. People read it, and no task does."""


def begin_log(ledger: Ledger, pipeline: str, epoch_id: str, doing: str) -> Sequence[PlannedRange]:
    """Let a task's log begin with its epoch, the epoch's ranges, and what the task does.

    Args:
        ledger: where the epoch is.
        pipeline: its pipeline.
        epoch_id: its id.
        doing: what the task does, such as ``commits it``.

    Returns:
        The ranges.

    Raises:
        EpochNotFoundError: the ledger has no such epoch.
    """
    with ledger.transaction() as tx:
        epoch = tx.epochs.find(pipeline, int(epoch_id))
        if epoch is None:
            raise EpochNotFoundError(f"the ledger has no epoch {epoch_id} of a pipeline {pipeline!r}.")
        ranges = tx.epochs.ranges(epoch)
    log.info("%s reads %s: this task %s", epoch, ", ".join(map(str, ranges)) or "no range", doing)
    return ranges


def show_outcome(context: Mapping[str, Any], line: object) -> None:
    """Show an outcome at the task, as XCom ``outcome``. A failure is logged and raises nothing: the outcome stands."""
    try:
        context["ti"].xcom_push(key=OUTCOME, value=str(line))
    except Exception as error:
        log.warning("outcome.not_shown reason=%s: %s", type(error).__name__, error)
