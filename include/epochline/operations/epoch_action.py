"""Actions that are an epoch of their own: planned here, then staged, sealed and committed like any other."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from epochline.coordinator.checks import check_admitted, check_changes, check_connections
from epochline.coordinator.commit import mirror
from epochline.coordinator.evidence import collect_evidence, refuse_behind
from epochline.coordinator.plan import LEASE, Plan, PlanOutcome
from epochline.coordinator.recover import recover
from epochline.errors import ActionRefusedError, PlanChangedError
from epochline.operations.action import Action, ActionPreview, P, Request, Seen, Subject, known, record
from epochline.ports import PipelineRow, Transaction
from epochline.protocol.epoch import Epoch, EpochState, Run

log = logging.getLogger(__name__)

_GOING_ON = {
    EpochState.PLANNED: PlanOutcome.RESUMED,
    EpochState.PRE_COMMITTED: PlanOutcome.PRE_COMMITTED,
    EpochState.COMMITTED: PlanOutcome.ALREADY_COMMITTED,
}

Targets = Mapping[str, Mapping[str, str]]


class EpochAction(Action[P, Seen]):
    """An action whose effect is an epoch. Its intent and the ledger's row are written in one transaction (INV-3)."""

    repeats: ClassVar[bool] = False
    """Whether one epoch may be a step only, and another run is to go on where it ended."""

    @abstractmethod
    def insert(
        self, tx: Transaction, subject: Subject, parameters: P, seen: Seen, run: Run, row: PipelineRow,
        targets: Targets, lease: timedelta, note: str,
    ) -> Epoch | None:  # fmt: skip
        """Write the PLANNED epoch with all that it will read; None where nothing is left to read."""

    @abstractmethod
    def cannot_reopen(self, tx: Transaction, own: Epoch, seen: Seen) -> str | None:
        """Why the run's own aborted epoch cannot be tried again with what it was to read; None where it can."""

    def plan(
        self, subject: Subject, parameters: P, request: Request, run: Run, *, writers: int | None = None,
        lease: timedelta = LEASE,
    ) -> Plan:  # fmt: skip
        """Give the run its epoch, as `epochline.coordinator.plan` does: its own again, or a new one.

        Raises:
            ActionRefusedError: what is asked for cannot be done; nothing was changed.
            PlanChangedError: another run planned at the same moment; trying again helps.
            EpochBusyError, PipelinePausedError, PipelineDroppedError, TargetError: as a plan.
        """
        declared, source = subject.declaration()
        evidence = collect_evidence(subject.ledger, source, declared)
        refuse_behind(subject.ledger, subject.name, evidence)
        recovered = recover(subject.ledger, subject.name, run, evidence, lease=lease)
        if recovered.notes:
            mirror(subject.ledger, source, subject.name, known=True)
        own, notes = recovered.own, recovered.notes
        if own is not None and own.state in _GOING_ON:
            with subject.ledger.transaction() as tx:
                ranges = tuple(tx.epochs.ranges(own))
            return Plan(outcome=_GOING_ON[own.state], epoch=own, ranges=ranges, notes=notes)
        seen = self.look(subject, parameters)
        with subject.ledger.transaction() as tx:
            known(tx, subject.name)
            row = tx.epochs.lock_pipeline(subject.name)
            check_admitted(tx, subject.name)
            if tx.epochs.unfinished(subject.name) is not None:
                raise PlanChangedError(f"{subject.name}: another run planned meanwhile; trying again helps.")
            targets = tx.targets.inspect(declared)
            tx.targets.claim(declared)
            check_changes(tx, declared)
            check_connections(tx, declared, writers)
            if own is not None:
                own = tx.epochs.lock(own.pipeline, own.epoch_id)
                obstacle = self._obstacle(tx, own, row, seen)
                if obstacle is None:
                    epoch = tx.epochs.reopen(own, declared, targets, lease)
                    ranges = tuple(tx.epochs.ranges(epoch))
                    return Plan(outcome=PlanOutcome.REOPENED, epoch=epoch, ranges=ranges, notes=notes)
                notes = (*notes, f"{own} is not tried again: {obstacle}")
            previewed = self.describe(tx, subject, parameters, seen)
            if previewed.refusal is not None:
                raise ActionRefusedError(f"{previewed.refusal} Nothing was changed.")
            new = self.insert(tx, subject, parameters, seen, run, row, targets, lease, str(request))
            if new is None:
                return Plan(outcome=PlanOutcome.NOTHING_TO_READ, notes=(*notes, *previewed.lines))
            ranges = tuple(tx.epochs.ranges(new))
            record(tx, subject, self.name, _of_epoch(previewed, new), request)
        log.info("epoch.planned pipeline=%s epoch=%d kind=%s run=%s", subject.name, new.epoch_id, new.kind, run.run_id)
        return Plan(outcome=PlanOutcome.PLANNED, epoch=new, ranges=ranges, notes=notes)

    def _obstacle(self, tx: Transaction, own: Epoch, row: PipelineRow, seen: Seen) -> str | None:
        later = tx.epochs.later_than(own.pipeline, own.epoch_id)
        if own.state is not EpochState.ABORTED:
            return f"it is {own.state}"
        if later:
            return f"{later[0]} ({later[0].state}) came after it"
        if own.generation != row.generation:
            return f"generation {row.generation} has begun"
        return self.cannot_reopen(tx, own, seen)


def _of_epoch(previewed: ActionPreview, epoch: Epoch) -> ActionPreview:
    return ActionPreview(lines=previewed.lines, before=previewed.before, after=previewed.after, epoch_id=epoch.epoch_id)
