"""Approve an epoch that is outside its bounds. The other decision is an abort."""

from typing import Any

from pydantic import Field

from epochline.errors import ActionRefusedError, EpochNotFoundError
from epochline.operations.action import ActionPreview, Afterwards, Case, DirectAction, Parameters, Request, refused
from epochline.protocol.epoch import Approval, Epoch, EpochState


class DecisionParameters(Parameters):
    """Which epoch, and for which attempt the decision holds."""

    epoch: int = Field(ge=1, description="The epoch's id.", json_schema_extra={"argument": True})
    awaited: int | None = Field(
        None, ge=1, description="The attempt that must still await approval; by default that of the preview."
    )


class EpochDecision(DirectAction[DecisionParameters, None]):
    """A decision about one epoch, bound to the attempt that awaited approval when it was previewed."""

    parameters = DecisionParameters

    def pinned(self, parameters: DecisionParameters, previewed: ActionPreview) -> DecisionParameters:
        if previewed.before.get("approval") != Approval.AWAITED:
            return parameters
        return parameters.model_copy(update={"awaited": previewed.before["attempt"]})


def found(case: Case[Any, None]) -> Epoch:
    """The epoch that the parameters name; `EpochNotFoundError` if the ledger does not have it."""
    epoch = case.tx.epochs.find(case.pipeline, case.parameters.epoch)
    if epoch is None:
        raise EpochNotFoundError(f"the ledger has no epoch {case.parameters.epoch} of a pipeline {case.pipeline!r}.")
    return epoch


def no_longer_awaited(epoch: Epoch, attempt: int | None) -> str | None:
    """Why an attempt of an epoch awaits no approval, and who decided; None if it does. By default the newest one."""
    if epoch.state is EpochState.PRE_COMMITTED and epoch.approval == Approval.AWAITED:
        if attempt in (None, epoch.judged_attempt):
            return None
        return f"{epoch}: attempt {epoch.judged_attempt} awaits approval now, not attempt {attempt}; look at it again."
    if epoch.approval == Approval.APPROVED:
        decided = f"{epoch.decided_by} approved it at {epoch.decided_at:%Y-%m-%d %H:%M:%S %Z} ({epoch.decided_reason})"
        return f"{epoch} is {epoch.state}; {decided}."
    if epoch.state is EpochState.ABORTED:
        return f"{epoch} is aborted ({epoch.error or 'no reason given'}); there is nothing to approve."
    return f"{epoch} is {epoch.state} and awaits no approval."


class Approve(EpochDecision):
    """Approve EPOCH of PIPELINE, which waits because it is outside its declared bounds: its run commits it, or the
    next one. The approval holds for the attempt that is shown; if the epoch is staged again, it counts for nothing.
    """

    name = "approve"

    def describe(self, case: Case[DecisionParameters, None]) -> ActionPreview:
        epoch = found(case)
        problem = no_longer_awaited(epoch, case.parameters.awaited)
        if problem is not None:
            return refused(problem)
        before = {"state": str(epoch.state), "attempt": epoch.attempt, "approval": str(Approval.AWAITED)}
        return ActionPreview(
            lines=approving(epoch, epoch.run, attempt=epoch.attempt, outside=epoch.outside),
            before=before,  # not what is outside, which may be a person's value: an action is kept for ever
            after={**before, "approval": str(Approval.APPROVED)},
            epoch_id=epoch.epoch_id,
        )

    def change(self, case: Case[DecisionParameters, None], request: Request) -> Afterwards:
        epoch = case.tx.epochs.lock(case.pipeline, case.parameters.epoch)
        attempt = case.parameters.awaited or epoch.attempt
        if not case.tx.epochs.approve(epoch, attempt, request.actor.strip(), request.reason.strip()):
            raise ActionRefusedError(f"{no_longer_awaited(epoch, attempt)} Nothing was changed.")
        return lambda: (f"{epoch} is approved; its run commits it, or the next run of {epoch.pipeline}",)


def approving(epoch: object, run: object, *, attempt: int, outside: object) -> tuple[str, ...]:
    """What an approval does, for page and terminal."""
    return (
        f"{epoch}, planned by {run}, attempt {attempt}, is outside its bounds: {outside}",
        "its sealed rows become visible with the commit, and no approval takes them back",
    )
