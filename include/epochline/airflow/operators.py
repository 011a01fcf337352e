"""The tasks that plan, commit, abort and publish. Each calls one use case, and imports heavy modules when it runs."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException

from epochline.airflow.assets import announce_to_airflow, events_of
from epochline.airflow.connections import (
    adapters,
    epochline_errors,
    interval_of,
    note_sources,
    planned_by_action,
    run_of,
    writers_of,
)
from epochline.airflow.figures import send_figures
from epochline.airflow.lineage import Known, TellsLineage, Written
from epochline.airflow.outcome import (
    EPOCH_OF_PLAN,
    EpochOutcome,
    begin_log,
    epoch_of_run,
    no_epoch,
    not_planned,
    show_outcome,
)
from epochline.airflow.settings import COMMIT_PATIENCE, PLAN_AGAIN, PLAN_PATIENCE, commit_patience, settings_of_run
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochBusyError, EpochlineError, PipelinePausedError
from epochline.protocol.epoch import AbortOutcome, Approval, EpochState
from epochline.protocol.standing import way_out_of_pause

if TYPE_CHECKING:
    from epochline.coordinator import Published

log = logging.getLogger(__name__)


class EpochOperator(TellsLineage, BaseOperator):
    """A task of an epoch that is planned.

    :param pipeline: the declaration.
    :param epoch_id: id of the epoch. (templated)
    """

    template_fields: Sequence[str] = ("epoch_id",)

    def __init__(self, *, pipeline: Pipeline, epoch_id: str = EPOCH_OF_PLAN, **options: Any) -> None:
        super().__init__(**options)
        self.pipeline = pipeline
        self.epoch_id = epoch_id

    def pre_execute(self, context: Any) -> None:
        """Take the epoch's id from the ledger where Airflow has lost it."""
        self.epoch_id = epoch_of_run(context, self.pipeline, self.epoch_id)


class PlanEpochOperator(TellsLineage, BaseOperator):
    """Settle what earlier runs left, then write origins and this run's range to the ledger.

    :param pipeline: the declaration.
    :return: the epoch's id as text. Skips when there is nothing to read, or when a backfill's interval is committed.
    """

    template_fields: Sequence[str] = ("record_limit", "note")

    def __init__(
        self, *, pipeline: Pipeline, record_limit: str | None = None, note: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.pipeline = pipeline
        self.record_limit = record_limit
        self.note = note

    def pre_execute(self, context: Any) -> None:
        """Extend the task's time-out by the run's minimum pause and the longest commit of a sealed epoch."""
        pause = settings_of_run(self.pipeline, self.dag, context).minimum_pause
        self.execution_timeout = PLAN_PATIENCE + pause + patience_with_sealed(self.pipeline)

    def execute(self, context: Context) -> str:
        """Plan the run's epoch."""
        from epochline.coordinator import PlanRequest, plan

        settings, name = settings_of_run(self.pipeline, self.dag, context), self.pipeline.name
        self.log.info("%s: this task plans the epoch of %s", name, run_of(context))
        for note in settings.notes:
            self.log.info(note)
        with epochline_errors(), shown_where_not_planned(context, self.pipeline):
            planned = planned_by_action(context, self.pipeline)
            if planned is None:
                request = PlanRequest(
                    record_limit=int(self.record_limit) if self.record_limit else None,
                    note=self.note or None,
                    writers=writers_of(self.pipeline),
                    interval=interval_of(context),
                    settings=settings,
                    # A scheduled run's epoch keeps the interval. A person's run starts at once.
                    scheduled=context["dag_run"].run_type == "scheduled",
                )
                ledger, source = adapters().ledger(self.pipeline), adapters().offsets(self.pipeline)
                planned = plan(ledger, source, self.pipeline, run_of(context), request)
        for note in planned.notes:
            self.log.info(note)
        noted = f" {'; '.join(planned.notes)}." if planned.notes else ""
        if planned.epoch is None:
            outcome, sentence = _WITHOUT_EPOCH[planned.outcome]
            show_outcome(context, outcome)
            raise AirflowSkipException(f"{name}: {sentence}.{noted}")
        self.known = Known(epoch=planned.epoch, ranges=planned.ranges)
        how, ranges = planned.outcome.replace("_", " "), ", ".join(map(str, planned.ranges))
        advice = _AFTER_PLAN.get(planned.epoch.state, "Nothing to do.")
        self.log.info("%s is %s (%s): %s. %s", planned.epoch, planned.epoch.state, how, ranges, advice)
        return str(planned.epoch.epoch_id)


def patience_with_sealed(pipeline: Pipeline) -> timedelta:
    """The longest commit of today's declaration, and of that with which the unfinished epoch was planned."""
    declared = [pipeline]
    # A ledger that does not answer fails the task itself, with the reason.
    with suppress(Exception), adapters().ledger(pipeline).transaction() as tx:
        unfinished = tx.epochs.unfinished(pipeline.name)
        if unfinished is not None:
            declared.append(tx.epochs.declaration(unfinished))
    return max(map(commit_patience, declared))


_COVERED = "the interval of this backfill run is committed already"
_WITHOUT_EPOCH = {
    "covered": (no_epoch(_COVERED), f"{_COVERED}; no epoch was written"),
    "sinks_full": (
        no_epoch("a sink is full", "repair the sink; the backlog waits in Kafka"),
        "nothing was planned; the backlog waits in Kafka",
    ),
    "nothing_to_read": (no_epoch("nothing to read"), "nothing to read; no epoch was written and every origin is kept"),
}
"""By the outcome of a plan without an epoch: the line at the task, and why the task is skipped."""

_AFTER_PLAN = {
    EpochState.PLANNED: "pre_commit stages it next.",
    EpochState.PRE_COMMITTED: "commit_epoch makes it visible next.",
}


@contextmanager
def shown_where_not_planned(context: Context, pipeline: Pipeline) -> Iterator[None]:
    """Show the outcome of a plan that fails, and keep why in the ledger, also where a connection was at fault.

    A paused pipeline's run is skipped: the message says by whom, and why. To wait for the epoch of another run, whose
    lease is alive, is no failure and takes no retry: Airflow starts the task again.
    """
    from epochline.coordinator import keep_plan_error

    try:
        yield
    except EpochlineError as error:
        show_outcome(context, not_planned(error))
        with suppress(Exception):  # The ledger's own connection may be the fault.
            keep_plan_error(adapters().ledger(pipeline), pipeline.name, run_of(context), error)
        if isinstance(error, PipelinePausedError):
            raise AirflowSkipException(str(error)) from error
        if isinstance(error, EpochBusyError):
            log.info("%s", error)
            again: Any = AirflowRescheduleException  # it has no types
            raise again(datetime.now(UTC) + PLAN_AGAIN) from error
        raise


class CommitEpochOperator(EpochOperator):
    """Make the sealed epoch visible, exactly once, and emit an asset event per epoch and table."""

    def __init__(self, *, pipeline: Pipeline, **options: Any) -> None:
        super().__init__(pipeline=pipeline, inlets=[events_of(pipeline)], outlets=[events_of(pipeline)], **options)

    def pre_execute(self, context: Any) -> None:
        """Give the commit the time that the epoch's own declaration allows."""
        super().pre_execute(context)
        self.execution_timeout = COMMIT_PATIENCE + patience_with_sealed(self.pipeline)

    def execute(self, context: Context) -> None:
        """Commit, or log the result again if the epoch is committed already."""
        from epochline.coordinator import commit

        with epochline_errors():
            ledger, name = adapters().ledger(self.pipeline), self.pipeline.name
            self.known = begin_log(ledger, name, self.epoch_id, "commits it")
            result = commit(ledger, adapters().offsets(self.pipeline), name, int(self.epoch_id))
        ranges = self.known.ranges or ()
        tables = [target.table for target in self.pipeline.targets]
        written = {
            table: Written(rows=result.rows.get(table), columns=result.columns.get(table, {})) for table in tables
        }
        self.known = Known(epoch=result.epoch, ranges=ranges, written=written)
        outcome = EpochOutcome.of(result.epoch, ranges)
        show_outcome(context, outcome)
        send_figures(result.epoch)
        announce_to_airflow(ledger, self.pipeline, context)
        self.log.info("%s", result)
        self.log.info("%s. Nothing to do.", outcome)


class AbortEpochOperator(EpochOperator):
    """Teardown: discard the staging of an epoch that was not committed, and fail the run."""

    def execute(self, context: Context) -> None:
        """Abort; skip if the epoch is committed.

        Raises:
            AirflowFailException: the epoch is not committed; with ``on_failure_fail_dagrun`` the run is red.
        """
        from epochline.coordinator import abort

        run, name, ledger = run_of(context), self.pipeline.name, adapters().ledger(self.pipeline)
        with epochline_errors():
            ranges = begin_log(ledger, name, self.epoch_id, "aborts it, unless it is committed or sealed").ranges or ()
            outcome = abort(ledger, name, int(self.epoch_id), run, reason=f"teardown of {run}")
            with ledger.transaction() as tx:
                epoch, paused = tx.epochs.lock(name, int(self.epoch_id)), tx.operators.standing(name).paused
            self.known = Known(epoch=epoch, ranges=())
            show_outcome(context, EpochOutcome.of(epoch, ranges, paused))
            if outcome is AbortOutcome.ABORTED:
                send_figures(epoch)
            if outcome is AbortOutcome.ALREADY_COMMITTED:
                raise AirflowSkipException(f"{epoch} is committed; nothing to abort, and nothing to do.")
            result = {
                AbortOutcome.LEFT_FOR_RECOVERY: "is pre-committed and was left so",
                AbortOutcome.ABORTED: "was aborted, its staging is discarded, no offset moved",
                AbortOutcome.ALREADY_ABORTED: "was aborted before",
            }[outcome]
            if paused is not None:
                advice = f"The pipeline is paused. To go on, run `epochline {way_out_of_pause(name, paused.command)}`"
            elif outcome is AbortOutcome.LEFT_FOR_RECOVERY and epoch.approval == Approval.AWAITED:
                advice = f"To let it be committed, run `epochline approve {name} {epoch.epoch_id} --reason …`"
            elif outcome is AbortOutcome.LEFT_FOR_RECOVERY:
                advice = "The next run of the pipeline commits it, or clear commit_epoch"
            else:
                advice = "Clear this run from plan_epoch to try the same range again, or let the next run take it"
            raise AirflowFailException(f"{epoch} {result}{f': {epoch.error}' if epoch.error else ''}. {advice}.")


class PublishOperator(TellsLineage, BaseOperator):
    """Publish every committed epoch to each sink that does not show it yet, including other runs' epochs.

    :param pipeline: the declaration.
    """

    def __init__(self, *, pipeline: Pipeline, **options: Any) -> None:
        super().__init__(inlets=[events_of(pipeline)], outlets=[events_of(pipeline)], **options)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Publish, and emit an asset event per epoch and sink; skip if the run has no epoch and there is nothing to do.

        Raises:
            AirflowFailException: an earlier task failed. What was due is published all the same; the run stays red.
        """
        from epochline.coordinator import publish

        name = self.pipeline.name
        self.log.info("%s: this task publishes every committed epoch that a sink does not show yet", name)
        with epochline_errors():
            ledger = adapters().ledger(self.pipeline)
            published = publish(ledger, self.pipeline, report=self._shown)
            if published:
                note_sources(self.pipeline)
            announced = announce_to_airflow(ledger, self.pipeline, context)
            states = self._states_before(context)
            failed = [task for task, state in states.items() if state == "failed"]
            if failed:
                raise AirflowFailException(
                    f"{name}: {', '.join(failed)} failed, so the run fails. This task published what was due from"
                    f" earlier runs: {len(published)} receipts. The log of {failed[-1]} says what to do."
                )
        # If this run committed an epoch, a skip would skip the tasks that follow, although its rows are published.
        if not published and not announced and states.get("commit_epoch") != "success":
            raise AirflowSkipException(
                f"{name}: every sink shows every committed epoch, and Airflow has recorded them all."
            )
        self.log.info("%s: published %d receipts, announced %d. Nothing to do.", name, len(published), announced)

    def _shown(self, published: "Published") -> None:
        self.log.info("%s", published)
        written = dict(self.known.written) if self.known else {}
        before = written.get(published.sink, Written(rows=0))
        epochs = (*before.epochs, published.epoch_id)
        written[published.sink] = Written(rows=(before.rows or 0) + published.rows, epochs=epochs)
        self.known = Known(written=written)

    def _states_before(self, context: Context) -> dict[str, Any]:
        """The states of the tasks before this one in the run, by their ids."""
        before = sorted(self.get_flat_relative_ids(upstream=True))
        ti: Any = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=before, run_ids=[ti.run_id]).get(ti.run_id, {})
        return {task: states[task] for task in before if task in states}
