"""The task between `pre_commit` and `commit_epoch` of a pipeline with bounds: Airflow's own approval (ADR 0064).

An epoch inside its bounds passes at once. Outside, the task waits in the triggerer, and holds no worker slot, until a
person answers in Airflow, or decides elsewhere: by a page, the command line or the API. The ledger keeps the decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.triggers.hitl import HITLTrigger
from airflow.sdk import Context, Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.hitl import upsert_hitl_detail
from airflow.triggers.base import TriggerEvent

from epochline.airflow.connections import adapters, epochline_errors
from epochline.airflow.outcome import EPOCH_OF_PLAN, EpochOutcome, begin_log, epoch_of_run, show_outcome
from epochline.declare.pipeline import Pipeline
from epochline.errors import ActionRefusedError
from epochline.protocol.epoch import Approval, Epoch, EpochState

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks at the ledger. No session is open in between."""


class ApproveEpochOperator(ApprovalOperator):
    """Let an epoch pass that is inside its bounds, or approved; else ask Airflow's users.

    :param pipeline: the declaration.
    :param epoch_id: id of the epoch. (templated)
    """

    template_fields: Sequence[str] = ("epoch_id",)

    def __init__(self, *, pipeline: Pipeline, epoch_id: str = EPOCH_OF_PLAN, **options: Any) -> None:
        super().__init__(subject=f"An epoch of {pipeline.name}", **options)
        # Airflow gives each task the params of its DAG, which are no part of the question.
        reason = Param("", type="string", title="Reason", description="Why; kept in the ledger.")
        self.params = ParamsDict({"reason": reason})
        self.pipeline = pipeline
        self.epoch_id = epoch_id

    def pre_execute(self, context: Any) -> None:
        """Take the epoch's id from the ledger where Airflow has lost it."""
        self.epoch_id = epoch_of_run(context, self.pipeline, self.epoch_id)

    def execute(self, context: Context) -> None:
        """Pass, or ask, and wait without a worker."""
        with epochline_errors():
            ledger, doing = adapters().ledger(self.pipeline), "asks for approval, unless it is inside its bounds"
            known = begin_log(ledger, self.pipeline.name, self.epoch_id, doing)
            epoch = self._epoch()
            if self._is_decided(epoch):
                return
        show_outcome(context, EpochOutcome.of(epoch, known.ranges or ()))
        self._ask(context, epoch)

    def execute_complete(self, context: Context, event: dict[str, Any], attempt: int = 0) -> None:
        """Do what a person chose in Airflow, for the attempt that the question showed; or see what was decided."""
        with epochline_errors():
            chosen, reason = event.get("chosen_options"), _reason(event)
            if chosen and reason:
                self._decide("approve" if self.APPROVE in chosen else "abort", attempt, _actor(event), reason)
            epoch = self._epoch()
            if self._is_decided(epoch):
                return
        self.log.warning("%s still awaits approval%s", epoch, ": an answer needs a reason" if chosen else "")
        self._ask(context, epoch)

    def _decide(self, name: str, attempt: int, actor: str, reason: str) -> None:
        from epochline.operations import Request, Subject
        from epochline.operations.approve import Approve, DecisionParameters
        from epochline.operations.runs import Abort

        action = Approve() if name == "approve" else Abort()
        subject = Subject(name=self.pipeline.name, ledger=adapters().ledger(self.pipeline))
        parameters = DecisionParameters(epoch=int(self.epoch_id), awaited=attempt)
        try:
            done = action.act(subject, parameters, Request(actor=actor, reason=reason))
        except ActionRefusedError as error:
            # Somebody else decided first, or the epoch was staged again.
            self.log.warning("%s of %s came too late: %s", name, actor, error)
            return
        for line in done.lines:
            self.log.info(line)

    def _epoch(self) -> Epoch:
        with adapters().ledger(self.pipeline).transaction() as tx:
            return tx.epochs.lock(self.pipeline.name, int(self.epoch_id))

    def _is_decided(self, epoch: Epoch) -> bool:
        """Whether the run may go on to the commit, which asks the ledger again.

        Raises:
            AirflowFailException: the epoch was aborted.
        """
        if epoch.state is EpochState.ABORTED:
            raise AirflowFailException(f"{epoch} was aborted: {epoch.error}. The next run reads its range again.")
        if epoch.state is EpochState.PRE_COMMITTED and epoch.approval == Approval.AWAITED:
            return False
        if epoch.approval == Approval.APPROVED:
            by, why = epoch.decided_by, epoch.decided_reason
            self.log.info("%s was outside its bounds: %s. %s approved it: %s", epoch, epoch.outside, by, why)
        else:
            self.log.info("%s is %s and awaits no approval", epoch, epoch.state)
        return True

    def _ask(self, context: Context, epoch: Epoch) -> None:
        ti_id = context["task_instance"].id
        commands = f"`epochline approve {epoch.pipeline} {epoch.epoch_id} --reason …`, or `abort` in its place"
        upsert_hitl_detail(
            ti_id=ti_id,
            options=self.options,
            subject=f"{epoch}, attempt {epoch.attempt}, is outside its bounds",
            body=f"{epoch.outside}\n\nReject aborts the epoch, and the next run reads its range again. At a terminal:"
            f" {commands}.",
            params=self.serialized_params,
        )
        self.log.warning("%s waits, because it is outside its bounds: %s. %s", epoch, epoch.outside, commands)
        trigger = DecisionTrigger(
            ti_id=ti_id, options=self.options, params=self.serialized_params, timeout_datetime=None,
            postgres_connection=self.pipeline.postgres_connection, pipeline=epoch.pipeline, epoch_id=epoch.epoch_id,
            attempt=epoch.attempt,
        )  # fmt: skip
        self.defer(trigger=trigger, method_name="execute_complete", kwargs={"attempt": epoch.attempt})


class DecisionTrigger(HITLTrigger):
    """Waits for an answer in Airflow, as its parent, or for a decision in the ledger, whichever comes first.

    Airflow keeps the arguments in its database. They hold the id of a connection, and no address or password.
    """

    def __init__(self, *, postgres_connection: str, pipeline: str, epoch_id: int, attempt: int, **options: Any) -> None:
        super().__init__(**options)
        self.where: dict[str, Any] = {
            "postgres_connection": postgres_connection, "pipeline": pipeline, "epoch_id": epoch_id, "attempt": attempt,
        }  # fmt: skip

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments, as Airflow keeps them."""
        return f"{__name__}.{type(self).__name__}", {**super().serialize()[1], **self.where}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once."""
        answer = asyncio.ensure_future(anext(aiter(super().run())))
        decision = asyncio.ensure_future(self._decided())
        waits = (answer, decision)
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            yield (answer if answer in done else decision).result()
        finally:
            for task in waits:
                task.cancel()

    async def _decided(self) -> TriggerEvent:
        """Return when the attempt awaits approval no more. A ledger that does not answer is asked again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if not await asyncio.to_thread(_awaits, **self.where):
                    return TriggerEvent({"decided": True})  # type: ignore[no-untyped-call]
            except Exception as error:
                log.warning("approval.interrupted reason=%s: %s; looks again", type(error).__name__, error)


def _awaits(*, postgres_connection: str, pipeline: str, epoch_id: int, attempt: int) -> bool:
    with adapters().ledger(postgres_connection).transaction() as tx:
        epoch = tx.epochs.find(pipeline, epoch_id)
    if epoch is None or epoch.state is not EpochState.PRE_COMMITTED:
        return False
    return (epoch.approval, epoch.judged_attempt) == (Approval.AWAITED, attempt)


def _reason(event: Mapping[str, Any]) -> str:
    given = (event.get("params_input") or {}).get("reason")
    text = str(given.get("value") or "" if isinstance(given, Mapping) else given or "")
    return text.replace("\0", "").strip()  # PostgreSQL keeps no text with a NUL


def _actor(event: Mapping[str, Any]) -> str:
    user = event.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or "a user of Airflow")
