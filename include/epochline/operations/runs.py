"""Actions on the runs of a pipeline: pause, resume, drop, abort; and what Airflow alone offers, retry and publish.

`epochline trigger` and `epochline publish` do the work of the last two.
"""

from collections.abc import Mapping, Sequence

from epochline.coordinator.abort import abort_in
from epochline.coordinator.discard import discard, sweep
from epochline.coordinator.publish import publish
from epochline.declare.names import consumer_group
from epochline.errors import SourceError
from epochline.operations.action import ActionPreview, Afterwards, Case, DirectAction, Parameters, Request, refused
from epochline.operations.approve import DecisionParameters, EpochDecision, found, no_longer_awaited
from epochline.ports import Decision
from epochline.protocol.epoch import Approval, EpochState
from epochline.protocol.quantities import counted

_EFFECT = {
    EpochState.PLANNED: "its attempt is fenced, so that its late writes are refused, and its staging is discarded",
    EpochState.PRE_COMMITTED: "its sealed rows, which the next run would commit, are discarded and staged again",
    EpochState.ABORTED: "it is aborted already; what is left of its staging is discarded",
}


class Abort(EpochDecision):
    """Abort EPOCH of PIPELINE, even if it is pre-committed: its staging is discarded, no offset moves, and a later
    run reads its range again. A committed epoch cannot be aborted.
    """

    name = "abort"

    def describe(self, case: Case[DecisionParameters, None]) -> ActionPreview:
        tx, epoch = case.tx, found(case)
        attempt = tx.attempts.live(epoch)
        rows = sum(part.rows for part in tx.attempts.part_sums(attempt)) if attempt is not None else 0
        offsets = sum(len(planned.range) for planned in tx.epochs.ranges(epoch))
        before = {"state": str(epoch.state), "attempt": epoch.attempt}
        if epoch.approval is not None:
            before["approval"] = epoch.approval
        decided = None if case.parameters.awaited is None else no_longer_awaited(epoch, case.parameters.awaited)
        if decided is not None:
            return refused(decided)
        if epoch.state is EpochState.COMMITTED:
            return ActionPreview(
                lines=(), before=before, after=before, epoch_id=epoch.epoch_id,
                refusal=f"{epoch} was committed at {epoch.committed_at:%Y-%m-%d %H:%M:%S} with {epoch.rows_written}"
                " rows; a committed epoch cannot be aborted.",
            )  # fmt: skip
        return ActionPreview(
            lines=aborting(epoch, epoch.state, epoch.run, attempt=epoch.attempt, offsets=offsets, rows=rows),
            before=before,
            after={"state": str(EpochState.ABORTED), "attempt": epoch.attempt},
            epoch_id=epoch.epoch_id,
        )

    def change(self, case: Case[DecisionParameters, None], request: Request) -> Afterwards:
        epoch = case.tx.epochs.lock(case.pipeline, case.parameters.epoch)
        attempt = abort_in(case.tx, epoch, str(request), may_pause=False)

        def discard_staging() -> tuple[str, ...]:
            discard(case.subject.ledger, attempt)
            if epoch.state is EpochState.ABORTED:
                sweep(case.subject.ledger, case.pipeline)
                return (f"{epoch} was aborted before; what was left of its staging is gone",)
            return (f"{epoch} is aborted; no offset moved, a later run reads its range again",)

        return discard_staging


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
    epoch again. Refused while the pipeline is paused, while a run stages an epoch, and while one awaits approval.
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
            return ActionPreview(lines=retrying(pipeline, None), before={}, after={"run": "started"})
        if unfinished.state is EpochState.PLANNED and not unfinished.lease_expired:
            return refused(working_on(unfinished, unfinished.state, unfinished.run))
        if unfinished.approval == Approval.AWAITED:
            return refused(waiting(unfinished))
        lines = retrying(pipeline, (unfinished, unfinished.state))
        return ActionPreview(lines=lines, before={}, after={"run": "started"}, epoch_id=unfinished.epoch_id)

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
            return [str(published) for published in publish(case.subject.ledger, case.declared)] or [
                "another run published meanwhile"
            ]

        return show


def aborting(epoch: object, state: EpochState, run: object, *, attempt: int, offsets: int, rows: int) -> Sequence[str]:
    """What an abort does, for page and terminal."""
    return (
        f"{epoch} is {state}, planned by {run}: {offsets} offsets, attempt {attempt}, {rows} rows staged",
        f"{_EFFECT[state]}; no offset moves",
    )


def pausing(pipeline: str, unfinished: tuple[object, object, object] | None) -> Sequence[str]:
    """What a pause does, for page and terminal, given the unfinished epoch, its state and its run."""
    lines = [f"no epoch of {pipeline} is planned from now on; its runs end as skipped"]
    if unfinished is not None:
        lines.append("{} is {} and may still be committed by {}".format(*unfinished))
    return lines


def retrying(pipeline: str, unfinished: tuple[object, object] | None) -> Sequence[str]:
    """What a retry does, for page and terminal, given the unfinished epoch and its state."""
    if unfinished is None:
        return (f"a new run of {pipeline} goes on at its heads; it reads the range of an aborted epoch again",)
    return ("{} is {}; a new run settles it and then goes on".format(*unfinished),)


def working_on(epoch: object, state: object, run: object) -> str:
    """Why no retry is needed, for page and terminal."""
    return f"{epoch} is {state}; {run} works on it, so let it finish."


def waiting(epoch: object) -> str:
    """Why a retry is of no use, for page and terminal."""
    return f"{epoch} awaits approval; approve or abort it first."


def resuming(pipeline: str, paused: Decision) -> Sequence[str]:
    """What a resume does, for page and terminal."""
    return (f"{pipeline} was paused {paused}; its next run plans again, from where it stopped",)


def showing(due: Mapping[str, int]) -> Sequence[str]:
    """What a publication of so many epochs in each sink does, for page and terminal."""
    return [f"{sink}: {counted(epochs, 'committed epoch')} to show" for sink, epochs in due.items()]


def _was_dropped(pipeline: str, dropped: object) -> ActionPreview:
    return refused(f"{pipeline} was dropped {dropped}; nothing of it runs any more.")
