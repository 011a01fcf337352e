"""The verdict at the seal: what the bounds of a declaration say of the epoch that is about to be sealed (ADR 0064)."""

import logging
from collections.abc import Sequence

from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochAwaitsApprovalError, EpochStateError, MeasureError, OutsideBoundsError
from epochline.ports import Manifest, Transaction
from epochline.protocol.bounds import Found, Measured, Verdict, judge, misfit
from epochline.protocol.epoch import Approval, Attempt, Counts, Epoch, EpochKind, EpochState
from epochline.protocol.staging import StagingTicket

log = logging.getLogger(__name__)


def is_judged(pipeline: Pipeline, epoch: Epoch) -> bool:
    """Whether the epoch needs a verdict. A replay needs none: only its promotion commits it, which a person decides."""
    return pipeline.bounds is not None and epoch.kind is not EpochKind.REPLAY


def verdict_of(
    tx: Transaction, pipeline: Pipeline, epoch: Epoch, attempt: Attempt, ticket: StagingTicket,
    manifests: Sequence[Manifest], counts: Counts,
) -> Verdict | None:  # fmt: skip
    """Judge staging that is whole, in the transaction of its seal. None if the declaration has no bounds.

    Raises:
        OutsideBoundsError: the epoch is outside, and the declaration aborts such an epoch.
        MeasureError: a query failed, or gave no value that limits are about.
    """
    bounds = pipeline.bounds
    if bounds is None or not is_judged(pipeline, epoch):
        return None
    measured = Measured()
    if bounds.measures or bounds.most_overwritten is not None:
        tables = [(table, ticket.table(table.table)) for table in pipeline.targets]
        measured = tx.targets.measure(pipeline, tables, epoch)
    for measure in bounds.measures:
        problem = misfit(measure, measured.values[measure.name])
        if problem is not None:
            raise MeasureError(f"{attempt}: {problem}. Nothing was sealed.")
    sinks = {output.staged_as for output in pipeline.outputs}
    found = Found(
        kind=epoch.kind,
        counts=counts,
        rows=sum(manifest.rows for manifest in manifests if manifest.sink in sinks),
        measured=measured,
        earlier={
            measure.name: tx.history.measured(epoch.pipeline, measure.key, measure.epochs)
            for measure in bounds.measures
            if measure.change is not None
        },
    )
    verdict = judge(bounds, found)
    if verdict.outside and bounds.outside == "abort":
        raise OutsideBoundsError(
            f"{attempt}: is outside its bounds, and the declaration aborts such an epoch: {verdict}. Nothing was"
            " sealed. The next epoch reads the range again."
        )
    if verdict.outside:
        log.warning("epoch.outside pipeline=%s epoch=%d %s", epoch.pipeline, epoch.epoch_id, verdict)
    return verdict


def refuse_awaiting(epoch: Epoch) -> None:
    """Raise `EpochAwaitsApprovalError` for a sealed epoch that waits for an approval."""
    if epoch.state is EpochState.PRE_COMMITTED and epoch.approval == Approval.AWAITED:
        raise EpochAwaitsApprovalError(
            f"{epoch}: is pre-committed by {epoch.run} and awaits approval: {epoch.outside}. Nothing is planned before"
            f" it is approved, or aborted by `epochline abort {epoch.pipeline} {epoch.epoch_id} --reason …`.",
            f"approve {epoch.pipeline} {epoch.epoch_id} --reason …",
        )


def refuse_unapproved(epoch: Epoch, pipeline: Pipeline) -> None:
    """Refuse to commit a sealed epoch that is neither inside its bounds nor approved; read under its row lock.

    Args:
        epoch: to commit.
        pipeline: the declaration with which it was planned.

    Raises:
        EpochAwaitsApprovalError: it is outside, and nobody decided.
        EpochStateError: nobody judged what its newest attempt staged, although the declaration has bounds.
    """
    refuse_awaiting(epoch)
    judged = epoch.approval in (Approval.INSIDE, Approval.APPROVED) and epoch.judged_attempt == epoch.attempt
    if is_judged(pipeline, epoch) and not judged:
        raise EpochStateError(
            f"{epoch}: its declaration has bounds, and nobody judged what attempt {epoch.attempt} staged. Nothing was"
            " changed. Abort the epoch; a later run reads its range again."
        )
