"""The epoch of a task's run: its id from `plan_epoch`, what it reads, and what came of it, in one line.

The line goes into XCom, so it holds no text of an error: a message may repeat what a record or a user's code says. The
ledger, the tasks' logs and the pages hold the whole reason (SEC-5).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochline.errors import EpochlineError, EpochNotFoundError, rebuilt
from epochline.ports import Decision, Ledger
from epochline.protocol.epoch import Epoch, EpochState
from epochline.protocol.offsets import OffsetRange, PlannedRange
from epochline.protocol.quantities import counted
from epochline.protocol.standing import way_out_of_pause

log = logging.getLogger(__name__)

EPOCH_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan_epoch') or '' }}"
"""The epoch's id, as ``plan_epoch`` returned it. No task reads anything else of another (INV-8)."""

OUTCOME = "outcome"
"""Key in XCom of the outcome's one line. People read it, and no task does."""

_WORD = re.compile(r"[A-Z][a-z]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an epoch reads: how many partitions, how many offsets, and the range if all partitions have the same."""

    partitions: int
    offsets: int
    shared: OffsetRange | None = None

    @classmethod
    def of(cls, ranges: Iterable[OffsetRange]) -> Reading:
        """Sum up one range per partition."""
        every = tuple(ranges)
        shared = every[0] if len(set(every)) == 1 else None
        return cls(partitions=len(every), offsets=sum(map(len, every)), shared=shared)

    def __str__(self) -> str:
        if not self.partitions:
            return "no range"
        what = f"{self.offsets:,} offsets" if self.shared is None else str(self.shared)
        return f"{what} of {counted(self.partitions, 'partition')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOutcome:
    """The values of the ledger from which the line is made."""

    pipeline: str
    epoch_id: int
    state: EpochState
    attempts: int
    """Number of the newest attempt; 0 before the first."""
    reading: Reading
    rows: int | None = None
    """Rows written; None before the commit."""
    quarantined: int = 0
    read: int = 0
    """Records that the seal counted."""
    error_class: str | None = None
    """Of the error for which it was aborted. Its message may repeat a record."""
    way_on: str | None = None
    """The command that lets a paused pipeline go on; None if it is not paused."""
    awaits_approval: bool = False
    undone_by: int | None = None
    committed_later: int | None = None
    """The next committed epoch after this one."""

    @classmethod
    def of(cls, epoch: Epoch, ranges: Iterable[PlannedRange], paused: Decision | None = None) -> EpochOutcome:
        """The outcome of an epoch as read from the ledger, with its ranges and the pause of its pipeline."""
        return cls(
            pipeline=epoch.pipeline,
            epoch_id=epoch.epoch_id,
            state=epoch.state,
            attempts=epoch.attempt,
            reading=Reading.of(one.range for one in ranges),
            rows=epoch.rows_written,
            quarantined=epoch.counts.quarantined,
            read=epoch.counts.read,
            error_class=epoch.error_class,
            way_on=None if paused is None else way_out_of_pause(epoch.pipeline, paused.command),
            awaits_approval=epoch.approval == "awaited",
        )

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> EpochOutcome:
        """The outcome of an epoch from its row of the statement ``page_epoch``."""
        start, until = row["shared_start"], row["shared_until"]
        shared = None if start is None else OffsetRange(start=start, until=until)
        return cls(
            pipeline=row["pipeline"],
            epoch_id=row["epoch_id"],
            state=EpochState(row["state"]),
            attempts=row["attempt"],
            reading=Reading(partitions=row["partitions"], offsets=row["offsets"], shared=shared),
            rows=row["rows_written"],
            quarantined=row["records_quarantined"] or 0,
            read=row["records_read"] or 0,
            error_class=row["error_class"],
            way_on=way_out_of_pause(row["pipeline"], row["paused_command"]) if row["paused_at"] else None,
            awaits_approval=row["approval"] == "awaited",
            undone_by=row["undone_by"],
            committed_later=row["committed_later"],
        )

    def __str__(self) -> str:
        counts = [counted(self.rows, "row")] if self.rows is not None else []
        share = f" ({self.quarantined / self.read:.1%})" if self.read else ""
        counts += [f"{self.quarantined:,} quarantined{share}"] if self.quarantined else []
        return " · ".join([f"epoch {self.epoch_id}", str(self.reading), *counts, *self._came()])

    def _came(self) -> list[str]:
        """What became of the epoch; unless it is done, also what happens next or what to do."""
        if self.state is EpochState.COMMITTED:
            undone = f", then undone by epoch {self.undone_by}" if self.undone_by is not None else ""
            return [f"committed{self._tries}{undone}"]
        if self.state is EpochState.ABORTED:
            kind = kind_of(self.error_class)
            return [f"aborted{self._tries}{f': {kind}' if kind else ''}", f"no offset moved; {self._next()}"]
        if self.state is EpochState.PRE_COMMITTED:
            return [f"pre-committed{self._tries}", self._next()]
        return [f"planned{f', attempt {self.attempts}' if self.attempts > 1 else ''}"]

    def _next(self) -> str:
        if self.committed_later is not None:
            return f"epoch {self.committed_later} read on from the same place"
        if self.way_on is not None:
            return f"the pipeline is paused; to go on, run `epochline {self.way_on}`"
        if self.awaits_approval:
            return "it waits for an approval in Airflow"
        sealed = self.state is EpochState.PRE_COMMITTED
        return "the next run commits it" if sealed else "the next run reads the range again"

    @property
    def _tries(self) -> str:
        return f" after {self.attempts} tries" if self.attempts > 1 else ""


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


def begin_log(ledger: Ledger, pipeline: str, epoch_id: str, doing: str) -> Sequence[PlannedRange]:
    """Let a task's log begin with its epoch, and what the task does, such as ``commits it``; return its ranges."""
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
