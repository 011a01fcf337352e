"""Actions that are an epoch of their own: planned here, then staged, sealed and committed like any other."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from epochline.coordinator.intent import LEASE, EpochDraft, Intent, Plan, PlanRequest, write_epoch
from epochline.coordinator.recover import recover
from epochline.errors import ActionRefusedError, PlanChangedError
from epochline.operations.action import (
    Action,
    ActionPreview,
    Case,
    P,
    Request,
    Seen,
    Subject,
    record,
    refuse_older_kafka,
    refuse_other_effect,
)
from epochline.ports import PipelineRow, Transaction
from epochline.protocol.epoch import Epoch, Run


class EpochAction(Action[P, Seen]):
    """An action whose effect is an epoch. Its intent and the ledger's row are written in one transaction (INV-3)."""

    repeats: ClassVar[bool] = False
    """Whether one epoch may be a step only, and another run continues where it ended."""

    @abstractmethod
    def draft(self, case: Case[P, Seen], row: PipelineRow) -> EpochDraft:
        """The epoch to write."""

    @abstractmethod
    def cannot_reopen(self, tx: Transaction, own: Epoch, seen: Seen) -> str | None:
        """Why the run's own aborted epoch cannot be tried again with what it was to read; None if it can."""

    def plan(
        self, subject: Subject, parameters: P, request: Request, run: Run, *, writers: int | None = None,
        confirmed: ActionPreview | None = None,
    ) -> Plan:  # fmt: skip
        """Give the run its epoch, as `epochline.coordinator.plan` does: its own again, or a new one.

        ``confirmed`` is the preview that somebody agreed to; None if nobody was asked.

        Raises:
            StalePreviewError: a new epoch would do something else than was agreed to; nothing was changed.
            ActionRefusedError: what is asked for cannot be done; nothing was changed.
            PlanChangedError: another run planned at the same moment; trying again helps.
            EpochBusyError, PipelinePausedError, PipelineDroppedError, TargetError: as a plan.
        """
        declared, source = subject.declaration()
        resumed, aborted, notes = recover(subject.ledger, source, declared, run, LEASE)
        if resumed is not None:
            return resumed
        refuse_older_kafka(subject.ledger, source, declared)
        intent = _ActionIntent(self, subject, parameters, self.look(subject, parameters), request, confirmed)
        asked = PlanRequest(writers=writers, note=str(request))
        return write_epoch(subject.ledger, declared, run, asked, intent, aborted, notes)


def refuse_unfinished(tx: Transaction, pipeline: str) -> None:
    """Raise `PlanChangedError` if another run planned since recovery."""
    if tx.epochs.unfinished(pipeline) is not None:
        raise PlanChangedError(f"{pipeline}: another run planned meanwhile; trying again helps.")


@dataclass(frozen=True, slots=True)
class _ActionIntent(Intent):
    """An action as an intent: the ledger's row says what was previewed in the same transaction."""

    action: EpochAction[Any, Any]
    subject: Subject
    parameters: Any
    seen: Any
    request: Request
    confirmed: ActionPreview | None

    def check(self, tx: Transaction, row: PipelineRow) -> None:
        refuse_unfinished(tx, self.subject.name)

    def obstacle(self, tx: Transaction, own: Epoch) -> str | None:
        return self.action.cannot_reopen(tx, own, self.seen)

    def draft(self, tx: Transaction, row: PipelineRow) -> EpochDraft:
        case = Case(tx=tx, subject=self.subject, parameters=self.parameters, seen=self.seen)
        previewed = self.action.describe(case)
        if previewed.refusal is not None:
            raise ActionRefusedError(f"{previewed.refusal} Nothing was changed.")
        refuse_other_effect(self.action.name, self.subject.name, previewed, self.confirmed)
        draft = self.action.draft(case, row)

        def write_more(tx: Transaction, epoch: Epoch) -> None:
            draft.write_more(tx, epoch)
            record(tx, self.subject.name, self.action.name, replace(previewed, epoch_id=epoch.epoch_id), self.request)

        return replace(draft, write_more=write_more)
