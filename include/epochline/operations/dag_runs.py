"""Actions that Airflow alone offers. `epochline trigger` and `epochline publish` do the same work."""

from __future__ import annotations

from collections.abc import Sequence

from epochline.coordinator.publish import publish
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    DirectAction,
    Parameters,
    Request,
    Subject,
    nothing_else,
    refused,
    was_dropped,
)
from epochline.ports import Transaction
from epochline.protocol.epoch import EpochState


class Retry(DirectAction[Parameters, None]):
    """Record that a run of the pipeline's own DAG is wanted now. The action's DAG then starts the run."""

    name = "retry"
    help = (
        "Start a run of PIPELINE's own DAG now. The run commits what is pre-committed, or reads the range of an aborted"
        " epoch again. Refused while the pipeline is paused, and while a run stages an epoch."
    )
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        standing = tx.operators.standing(subject.name)
        if standing.dropped is not None:
            return was_dropped(subject.name, standing.dropped)
        if standing.paused is not None:
            return refused(f"{subject.name} is paused, {standing.paused}; resume it first.")
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is None:
            lines = [f"a new run of {subject.name} goes on at its heads"]
        elif unfinished.state is EpochState.PLANNED and not unfinished.lease_expired:
            return refused(f"{unfinished} is {unfinished.state}; {unfinished.run} works on it, so let it finish.")
        else:
            lines = [f"{unfinished} is {unfinished.state}; a new run settles it and then goes on"]
        epoch_id = None if unfinished is None else unfinished.epoch_id
        return ActionPreview(lines=lines, before={}, after={"run": "started"}, epoch_id=epoch_id)

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        return nothing_else(f"a run of {subject.name} is started")


class PublishDue(DirectAction[Parameters, None]):
    """Show every committed epoch in every sink that does not show it yet."""

    name = "publish"
    help = (
        "Show every committed epoch of PIPELINE in every topic, folder and other sink that does not show it yet, in"
        " order. Nothing is shown twice. Works while the pipeline is paused."
    )
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        subject.declaration()
        due = tx.receipts.unpublished(subject.name)
        if not due:
            return refused(f"{subject.name}: every sink shows every committed epoch.")
        lines = [f"{sink}: {count} committed epoch{'' if count == 1 else 's'} to show" for sink, count in due.items()]
        return ActionPreview(lines=lines, before={"due": dict(due)}, after={"due": {}})

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        def show() -> Sequence[str]:
            declared, _ = subject.declaration()
            return [str(one) for one in publish(subject.ledger, declared)] or ["another run published meanwhile"]

        return show
