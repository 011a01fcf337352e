"""Actions on the runs of a pipeline: pause, resume and drop it; and what Airflow alone offers, retry and publish.

`epochline trigger` and `epochline publish` do the work of the last two.
"""

from collections.abc import Mapping, Sequence

from epochline.coordinator.discard import sweep
from epochline.coordinator.publish import publish
from epochline.declare.names import consumer_group
from epochline.errors import SourceError
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    DirectAction,
    Parameters,
    Request,
    Subject,
    nothing_else,
    refused,
)
from epochline.ports import Decision, Transaction
from epochline.protocol.epoch import EpochState
from epochline.protocol.quantities import counted


class Pause(DirectAction[Parameters, None]):
    """Stop planning epochs until `Resume`."""

    name = "pause"
    help = (
        "Plan no epoch of PIPELINE until it is resumed; its runs end as skipped. A planned epoch continues, and a"
        " pre-committed epoch may still be committed."
    )
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        standing = tx.operators.standing(subject.name)
        if standing.dropped is not None:
            return _was_dropped(subject.name, standing.dropped)
        if standing.paused is not None:
            return refused(f"{subject.name} is paused already, {standing.paused}.")
        unfinished = tx.epochs.unfinished(subject.name)
        left = None if unfinished is None else (unfinished, unfinished.state, unfinished.run)
        return ActionPreview(lines=pausing(subject.name, left), before={"paused": False}, after={"paused": True})

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        tx.operators.pause(subject.name, request.actor, request.reason)
        return nothing_else(f"{subject.name} is paused. To go on, run `epochline resume {subject.name} --reason …`")


class Resume(DirectAction[Parameters, None]):
    """Undo `Pause`."""

    name = "resume"
    help = "Plan epochs of PIPELINE again."
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        paused = tx.operators.standing(subject.name).paused
        if paused is None:
            return refused(f"{subject.name} is not paused.")
        return ActionPreview(
            lines=resuming(subject.name, paused),
            before={"paused": True, "paused_by": paused.by, "paused_reason": paused.reason},
            after={"paused": False},
        )

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        tx.operators.resume(subject.name)
        return nothing_else(f"{subject.name} goes on with its next run")


class Drop(DirectAction[Parameters, None]):
    """Mark a pipeline dropped and release its targets."""

    name = "drop"
    help = (
        "Drop PIPELINE for good: release its targets for other pipelines, and delete its staging and its consumer"
        " group. Its tables and its history stay. Its name cannot be used again."
    )
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        dropped = tx.operators.standing(subject.name).dropped
        if dropped is not None:
            return refused(f"{subject.name} was dropped before, {dropped}.")
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is not None:
            return refused(
                f"{unfinished} is {unfinished.state}; let {unfinished.run} finish it, or abort it first. A pipeline"
                " with an unfinished epoch is not dropped."
            )
        targets = list(tx.targets.claimed(subject.name))
        left = len(tx.attempts.left_over(subject.name))
        return ActionPreview(
            lines=(
                f"{subject.name} is dropped for good: a plan under this name is refused from then on",
                f"released for other pipelines, and left as they are: {', '.join(targets) or 'no table'}",
                f"deleted: staging of {counted(left, 'attempt')}, consumer group"
                f" {consumer_group(subject.name)}; kept: its history in the ledger, its quarantine",
            ),
            before={"dropped": False, "targets": targets},
            after={"dropped": True, "targets": []},
        )

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        tx.operators.drop(subject.name, request.actor, request.reason)

        def clean_up() -> tuple[str, ...]:
            sweep(subject.ledger, subject.name)
            return f"{subject.name} is dropped; its history stays", _forget_group(subject)

        return clean_up


def _forget_group(subject: Subject) -> str:
    group = consumer_group(subject.name)
    if subject.source is None:
        return f"consumer group {group} was left in Kafka: no DAG file declares the pipeline, so it is not known where"
    try:
        subject.source.forget(group)
    except SourceError as error:
        return f"consumer group {group} was left in Kafka ({error}); delete it there"
    return f"consumer group {group} is gone"


class Retry(DirectAction[Parameters, None]):
    """Record that a run of the pipeline's own DAG is wanted now. The action's DAG then starts the run."""

    name = "retry"
    help = (
        "Start a run of PIPELINE's DAG now. The run commits a pre-committed epoch, or reads the range of an aborted"
        " epoch again. Refused while the pipeline is paused, and while a run stages an epoch."
    )
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        standing = tx.operators.standing(subject.name)
        if standing.dropped is not None:
            return _was_dropped(subject.name, standing.dropped)
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
        return ActionPreview(lines=showing(due), before={"due": dict(due)}, after={"due": {}})

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        def show() -> Sequence[str]:
            declared, _ = subject.declaration()
            return [str(one) for one in publish(subject.ledger, declared)] or ["another run published meanwhile"]

        return show


def pausing(pipeline: str, unfinished: tuple[object, object, object] | None) -> Sequence[str]:
    """What a pause does, for page and terminal, given the unfinished epoch, its state and its run."""
    lines = [f"no epoch of {pipeline} is planned from now on; its runs end as skipped"]
    if unfinished is not None:
        lines.append("{} is {} and may still be committed by {}".format(*unfinished))
    return lines


def resuming(pipeline: str, paused: Decision) -> Sequence[str]:
    """What a resume does, for page and terminal."""
    return (f"{pipeline} was paused {paused}; its next run plans again, from where it stopped",)


def showing(due: Mapping[str, int]) -> Sequence[str]:
    """What a publication of so many epochs in each sink does, for page and terminal."""
    return [f"{sink}: {counted(epochs, 'committed epoch')} to show" for sink, epochs in due.items()]


def _was_dropped(pipeline: str, dropped: object) -> ActionPreview:
    return refused(f"{pipeline} was dropped {dropped}; nothing of it runs any more.")
