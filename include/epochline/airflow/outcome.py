"""The epoch of a task's run: its id from `plan_epoch`, what it reads, and what came of it, in one line.

The line goes into XCom, so it holds no text of an error: a message may repeat what a record or a user's code says. The
ledger, the tasks' logs and the pages hold the whole reason.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from epochline.airflow.connections import adapters, epochline_errors, run_of
from epochline.airflow.lineage import Known
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError, EpochNotFoundError, rebuilt
from epochline.ports import Decision, Ledger
from epochline.protocol.epoch import Epoch, EpochState
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.quantities import counted
from epochline.protocol.standing import way_out_of_pause

log = logging.getLogger(__name__)

EPOCH_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan_epoch') or '' }}"
"""The epoch's id, as ``plan_epoch`` returned it; empty if Airflow lost it. No task reads more of another (INV-8)."""

OUTCOME = "outcome"
"""Key in XCom of the outcome's one line. People read it, and no task does."""

_WORD = re.compile(r"[A-Z][a-z]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOutcome:
    """The values of the ledger from which the line is made, named as in the statement ``page_epoch``."""

    pipeline: str
    epoch_id: int
    state: str
    attempt: int
    """Number of the newest attempt; 0 before the first."""
    partitions: int
    offsets: int
    shared_start: int | None
    """Where the range of every partition starts, if all have the same range."""
    shared_until: int | None
    rows_written: int | None
    """None before the commit."""
    records_quarantined: int | None
    records_read: int | None
    """Records that the seal counted."""
    error_class: str | None
    """Class of the error for which the epoch was aborted. The error's message may repeat a record."""
    paused_at: datetime | None
    paused_command: str | None
    """The command that goes on, where it is not ``resume``."""
    approval: str | None
    undone_by: int | None = None
    committed_later: int | None = None
    """The next committed epoch after this one."""

    @classmethod
    def of(cls, epoch: Epoch, planned: Sequence[PlannedRange], paused: Decision | None = None) -> Self:
        """The outcome of an epoch as read from the ledger, with its ranges and the pause of its pipeline."""
        ranges = {planned_range.range for planned_range in planned}
        shared = ranges.pop() if len(ranges) == 1 else None
        return cls(
            pipeline=epoch.pipeline,
            epoch_id=epoch.epoch_id,
            state=epoch.state,
            attempt=epoch.attempt,
            partitions=len(planned),
            offsets=sum(len(planned_range.range) for planned_range in planned),
            shared_start=None if shared is None else shared.start,
            shared_until=None if shared is None else shared.until,
            rows_written=epoch.rows_written,
            records_quarantined=epoch.counts.quarantined,
            records_read=epoch.counts.read,
            error_class=epoch.error_class,
            paused_at=None if paused is None else paused.at,
            paused_command=None if paused is None else paused.command,
            approval=epoch.approval,
        )

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The outcome of an epoch from its row of the statement ``page_epoch``."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})

    @property
    def reading(self) -> str:
        """What the epoch reads: the range that all its partitions have, or how many offsets."""
        if not self.partitions:
            return "no range"
        extent = (
            f"{self.offsets:,} offsets" if self.shared_start is None else f"[{self.shared_start}, {self.shared_until})"
        )
        return f"{extent} of {counted(self.partitions, 'partition')}"

    def __str__(self) -> str:
        counts = [counted(self.rows_written, "row")] if self.rows_written is not None else []
        if bad := self.records_quarantined:
            counts += [f"{bad:,} quarantined" + (f" ({bad / self.records_read:.1%})" if self.records_read else "")]
        return " · ".join([f"epoch {self.epoch_id}", self.reading, *counts, *self._came()])

    def _came(self) -> list[str]:
        """What became of the epoch; unless it is done, also what happens next or what to do."""
        if self.state == EpochState.COMMITTED:
            undone = f", then undone by epoch {self.undone_by}" if self.undone_by is not None else ""
            return [f"committed{self._tries}{undone}"]
        if self.state == EpochState.ABORTED:
            kind = kind_of(self.error_class)
            return [f"aborted{self._tries}{f': {kind}' if kind else ''}", f"no offset moved; {self._next()}"]
        if self.state == EpochState.PRE_COMMITTED:
            return [f"pre-committed{self._tries}", self._next()]
        return [f"planned{f', attempt {self.attempt}' if self.attempt > 1 else ''}"]

    def _next(self) -> str:
        if self.committed_later is not None:
            return f"epoch {self.committed_later} read on from the same place"
        if self.paused_at is not None:
            way_on = way_out_of_pause(self.pipeline, self.paused_command)
            return f"the pipeline is paused; to go on, run `epochline {way_on}`"
        if self.approval == "awaited":
            return "it awaits approval"
        sealed = self.state == EpochState.PRE_COMMITTED
        return "the next run commits it" if sealed else "the next run reads the range again"

    @property
    def _tries(self) -> str:
        return f" after {self.attempt} tries" if self.attempt > 1 else ""


def no_epoch(why: str, then: str = "nothing to do") -> str:
    """The line of a run that planned no epoch. ``why`` holds words of this package alone."""
    return f"no epoch · {why} · {then}"


def not_planned(error: EpochlineError) -> str:
    """The line of a run whose plan failed or was refused."""
    then = "Airflow tries again, or the next run plans" if error.retryable else "the log of plan_epoch says what to do"
    if command := error.command:
        then = f"to go on, run `epochline {command}`"
    return no_epoch(kind_of(type(error).__name__) or "refused", then)


def kind_of(error_class: str | None) -> str | None:
    """The class of an error, and ours in words: ``rows refused`` for ``RowsRefusedError``; None without a class."""
    if error_class is None or rebuilt(error_class, "") is None:
        return error_class
    return " ".join(_WORD.findall(error_class.removesuffix("Error"))).lower()


def epoch_of_run(context: Mapping[str, Any], pipeline: Pipeline, epoch_id: str) -> str:
    """The id that ``plan_epoch`` gave; where Airflow has lost it, the run's newest epoch in the ledger: the same one.

    Raises:
        AirflowFailException: the run has no epoch; somebody marked ``plan_epoch`` as success.
    """
    if epoch_id:
        return epoch_id
    run = run_of(context)
    with epochline_errors():
        with adapters().ledger(pipeline).transaction() as tx:
            epoch = tx.epochs.newest_of_run(pipeline.name, run)
        if epoch is None:
            raise EpochNotFoundError(f"{pipeline.name}: {run} has no epoch. Clear the run from plan_epoch.")
    log.warning("%s: Airflow has lost the XCom of plan_epoch; by the ledger, the run's epoch is this one", epoch)
    return str(epoch.epoch_id)


def begin_log(ledger: Ledger, pipeline: str, epoch_id: str, doing: str) -> Known:
    """Let a task's log begin with its epoch, and what the task does, such as ``commits it``; return both."""
    with ledger.transaction() as tx:
        epoch = tx.epochs.find(pipeline, int(epoch_id))
        if epoch is None:
            raise EpochNotFoundError(f"the ledger has no epoch {epoch_id} of a pipeline {pipeline!r}.")
        ranges = tx.epochs.ranges(epoch)
    log.info("%s reads %s: this task %s", epoch, ", ".join(map(str, ranges)) or "no range", doing)
    return Known(epoch=epoch, ranges=ranges)


def show_outcome(context: Mapping[str, Any], line: object) -> None:
    """Show an outcome at the task, as XCom ``outcome``. A failure is logged and raises nothing: the outcome stands."""
    try:
        context["ti"].xcom_push(key=OUTCOME, value=str(line))
    except Exception as error:
        log.warning("outcome.not_shown reason=%s: %s", type(error).__name__, error)
