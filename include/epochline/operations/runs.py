"""Actions on the runs of a pipeline: pause, resume and drop it; and what Airflow alone offers, retry and publish.

`epochline trigger` and `epochline publish` do the work of the last two.
"""

from collections.abc import Mapping, Sequence

from epochline.coordinator.discard import sweep
from epochline.coordinator.publish import publish
from epochline.declare.names import consumer_group
from epochline.errors import SourceError
from epochline.operations.action import ActionPreview, Afterwards, Case, DirectAction, Parameters, Request, refused
from epochline.ports import Decision
from epochline.protocol.epoch import EpochState
from epochline.protocol.quantities import counted


class Pause(DirectAction[Parameters, None]):
    """Plan no epoch of PIPELINE until it is resumed; its runs end as skipped. A planned epoch continues, and a
    pre-committed epoch may still be committed.
    """

    name = "pause"
    parameters = Parameters

    def describe(self, case: Case[Parameters, None]) -> ActionPreview:
        pipeline, unfinished = case.pipeline, case.unfinished
        standing = case.tx.operators.standing(pipeline)
        if standing.dropped is not None:
            return _was_dropped(pipeline, standing.dropped)
        if standing.paused is not None:
            return refused(f"{pipeline} is paused already, {standing.paused}.")
        left = None if unfinished is None else (unfinished, unfinished.state, unfinished.run)
        return ActionPreview(lines=pausing(pipeline, left), before={"paused": False}, after={"paused": True})

    def change(self, case: Case[Parameters, None], request: Request) -> Afterwards:
        case.tx.operators.pause(case.pipeline, request.actor, request.reason)
        return lambda: [f"{case.pipeline} is paused. To go on, run `epochline resume {case.pipeline} --reason …`"]


class Resume(DirectAction[Parameters, None]):
    """Plan epochs of PIPELINE again."""

    name = "resume"
    parameters = Parameters

    def describe(self, case: Case[Parameters, None]) -> ActionPreview:
        paused = case.tx.operators.standing(case.pipeline).paused
        if paused is None:
            return refused(f"{case.pipeline} is not paused.")
        return ActionPreview(
            lines=resuming(case.pipeline, paused),
            before={"paused": True, "paused_by": paused.by, "paused_reason": paused.reason},
            after={"paused": False},
        )

    def change(self, case: Case[Parameters, None], request: Request) -> Afterwards:
        case.tx.operators.resume(case.pipeline)
        return lambda: [f"{case.pipeline} goes on with its next run"]


class Drop(DirectAction[Parameters, None]):
    """Drop PIPELINE for good: release its targets for other pipelines, and delete its staging and its consumer
    group. Its tables and its history stay. Its name cannot be used again.
    """

    name = "drop"
    parameters = Parameters

    def describe(self, case: Case[Parameters, None]) -> ActionPreview:
        tx, pipeline, unfinished = case.tx, case.pipeline, case.unfinished
        dropped = tx.operators.standing(pipeline).dropped
        if dropped is not None:
            return refused(f"{pipeline} was dropped before, {dropped}.")
        if unfinished is not None:
            return refused(
                f"{unfinished} is {unfinished.state}; let {unfinished.run} finish it, or abort it first. A pipeline"
                " with an unfinished epoch is not dropped."
            )
        targets = list(tx.targets.claimed(pipeline))
        left = len(tx.attempts.left_over(pipeline))
        return ActionPreview(
            lines=(
                f"{pipeline} is dropped for good: a plan under this name is refused from then on",
                f"released for other pipelines, and left as they are: {', '.join(targets) or 'no table'}",
                f"deleted: staging of {counted(left, 'attempt')}, consumer group {consumer_group(pipeline)}; kept: its"
                " history in the ledger, its quarantine",
            ),
            before={"dropped": False, "targets": targets},
            after={"dropped": True, "targets": []},
        )

    def change(self, case: Case[Parameters, None], request: Request) -> Afterwards:
        case.tx.operators.drop(case.pipeline, request.actor, request.reason)

        def clean_up() -> tuple[str, ...]:
            sweep(case.subject.ledger, case.pipeline)
            return f"{case.pipeline} is dropped; its history stays", _forget_group(case)

        return clean_up


def _forget_group(case: Case[Parameters, None]) -> str:
    group, source = consumer_group(case.pipeline), case.subject.source
    if source is None:
        return f"consumer group {group} was left in Kafka: no DAG file declares the pipeline, so it is not known where"
    try:
        source.forget(group)
    except SourceError as error:
        return f"consumer group {group} was left in Kafka ({error}); delete it there"
    return f"consumer group {group} is gone"


class Retry(DirectAction[Parameters, None]):
    """Start a run of PIPELINE's DAG now. The run commits a pre-committed epoch, or reads the range of an aborted
    epoch again. Refused while the pipeline is paused, and while a run stages an epoch.
    """

    name = "retry"
    parameters = Parameters

    def describe(self, case: Case[Parameters, None]) -> ActionPreview:
        pipeline, unfinished = case.pipeline, case.unfinished
        standing = case.tx.operators.standing(pipeline)
        if standing.dropped is not None:
            return _was_dropped(pipeline, standing.dropped)
        if standing.paused is not None:
            return refused(f"{pipeline} is paused, {standing.paused}; resume it first.")
        if unfinished is None:
            lines = [f"a new run of {pipeline} goes on at its heads"]
        elif unfinished.state is EpochState.PLANNED and not unfinished.lease_expired:
            return refused(f"{unfinished} is {unfinished.state}; {unfinished.run} works on it, so let it finish.")
        else:
            lines = [f"{unfinished} is {unfinished.state}; a new run settles it and then goes on"]
        epoch_id = None if unfinished is None else unfinished.epoch_id
        return ActionPreview(lines=lines, before={}, after={"run": "started"}, epoch_id=epoch_id)

    def change(self, case: Case[Parameters, None], request: Request) -> Afterwards:
        return lambda: [f"a run of {case.pipeline} is started"]


class PublishDue(DirectAction[Parameters, None]):
    """Show every committed epoch of PIPELINE in every topic, folder and other sink that does not show it yet, in
    order. Nothing is shown twice. Works while the pipeline is paused.
    """

    name = "publish"
    parameters = Parameters

    def describe(self, case: Case[Parameters, None]) -> ActionPreview:
        case.subject.declaration()
        due = case.tx.receipts.unpublished(case.pipeline)
        if not due:
            return refused(f"{case.pipeline}: every sink shows every committed epoch.")
        return ActionPreview(lines=showing(due), before={"due": dict(due)}, after={"due": {}})

    def change(self, case: Case[Parameters, None], request: Request) -> Afterwards:
        def show() -> Sequence[str]:
            return [str(one) for one in publish(case.subject.ledger, case.declared)] or [
                "another run published meanwhile"
            ]

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
