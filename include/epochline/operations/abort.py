"""Abort an epoch by hand, even a pre-committed one, which otherwise ends only with its commit."""

from collections.abc import Sequence

from pydantic import Field

from epochline.coordinator.abort import abort_in
from epochline.coordinator.discard import discard, sweep
from epochline.errors import EpochNotFoundError
from epochline.operations.action import ActionPreview, Afterwards, Case, DirectAction, Parameters, Request
from epochline.protocol.epoch import EpochState

_EFFECT = {
    EpochState.PLANNED: "its attempt is fenced, so that its late writes are refused, and its staging is discarded",
    EpochState.PRE_COMMITTED: "its sealed rows, which the next run would commit, are discarded and staged again",
    EpochState.ABORTED: "it is aborted already; what is left of its staging is discarded",
}


def aborting(epoch: object, state: EpochState, run: object, *, attempt: int, offsets: int, rows: int) -> Sequence[str]:
    """What an abort does, for page and terminal."""
    return (
        f"{epoch} is {state}, planned by {run}: {offsets} offsets, attempt {attempt}, {rows} rows staged",
        f"{_EFFECT[state]}; no offset moves",
    )


class AbortParameters(Parameters):
    """Which epoch."""

    epoch: int = Field(ge=1, description="The epoch's id.", json_schema_extra={"argument": True})


class Abort(DirectAction[AbortParameters, None]):
    """Abort EPOCH of PIPELINE, even if it is pre-committed: its staging is discarded, no offset moves, and a later
    run reads its range again. A committed epoch cannot be aborted.
    """

    name = "abort"
    parameters = AbortParameters

    def describe(self, case: Case[AbortParameters, None]) -> ActionPreview:
        tx, epoch_id = case.tx, case.parameters.epoch
        epoch = tx.epochs.find(case.pipeline, epoch_id)
        if epoch is None:
            raise EpochNotFoundError(f"the ledger has no epoch {epoch_id} of a pipeline {case.pipeline!r}.")
        attempt = tx.attempts.live(epoch)
        rows = sum(part.rows for part in tx.attempts.part_sums(attempt)) if attempt is not None else 0
        offsets = sum(len(planned.range) for planned in tx.epochs.ranges(epoch))
        before = {"state": str(epoch.state), "attempt": epoch.attempt}
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

    def change(self, case: Case[AbortParameters, None], request: Request) -> Afterwards:
        epoch = case.tx.epochs.lock(case.pipeline, case.parameters.epoch)
        attempt = abort_in(case.tx, epoch, str(request))

        def discard_staging() -> tuple[str, ...]:
            if attempt is not None:
                discard(case.subject.ledger, attempt)
            if epoch.state is EpochState.ABORTED:
                sweep(case.subject.ledger, case.pipeline)
                return (f"{epoch} was aborted before; what was left of its staging is gone",)
            return (f"{epoch} is aborted; no offset moved, a later run reads its range again",)

        return discard_staging
