"""Drop a pipeline: it never plans another epoch, and its history and targets stay."""

from __future__ import annotations

from epochline.coordinator.discard import sweep
from epochline.declare.names import consumer_group
from epochline.errors import SourceError
from epochline.operations.action import ActionPreview, Afterwards, DirectAction, Parameters, Request, Subject, refused
from epochline.ports import Transaction


class Drop(DirectAction[Parameters, None]):
    """Mark a pipeline dropped and release its targets."""

    name = "drop"
    help = (
        "Drop PIPELINE for good: its targets are released for other pipelines, left-over staging and the mirrored"
        " consumer group are deleted. Its tables and its history stay, and its name is refused from then on."
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
                f"deleted: staging of {left} attempt{'' if left == 1 else 's'}, consumer group"
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
