"""The tasks of an epoch. Each calls one use case, and imports heavy modules only when it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from epochline.airflow.action_runs import planned_by_action
from epochline.airflow.assets import announce_to_airflow, events_of
from epochline.airflow.connections import (
    epochline_errors,
    interval_of,
    job_credentials,
    ledger_of,
    offsets_of,
    run_of,
    spark_server,
    writers_of,
)
from epochline.airflow.server_job import ServerJob
from epochline.airflow.settings import PLAN_PATIENCE, settings_of_run
from epochline.config.discovery import project_folder
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochTimeoutError, PipelinePausedError, error_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from epochline.ports import Ledger
    from epochline.protocol.staging import StagingTicket

EPOCH_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan_epoch') or '' }}"
"""The epoch's id, as ``plan_epoch`` returned it. Nothing else passes between tasks (INV-8)."""


class PlanEpochOperator(BaseOperator):
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
        """Extend the task's time-out by the run's minimum pause."""
        self.execution_timeout = PLAN_PATIENCE + settings_of_run(self.pipeline, self.dag, context).minimum_pause

    def execute(self, context: Context) -> str:
        """Plan the run's epoch."""
        from epochline.coordinator import PlanOutcome, PlanRequest, plan

        settings = settings_of_run(self.pipeline, self.dag, context)
        for note in settings.notes:
            self.log.info(note)
        with epochline_errors(), skipped_while_paused():
            planned = planned_by_action(context, self.pipeline) or plan(
                ledger_of(self.pipeline),
                offsets_of(self.pipeline),
                self.pipeline,
                run_of(context),
                PlanRequest(
                    record_limit=int(self.record_limit) if self.record_limit else None,
                    note=self.note or None,
                    writers=writers_of(self.pipeline),
                    interval=interval_of(context),
                    settings=settings,
                ),
            )
        for note in planned.notes:
            self.log.info(note)
        if planned.outcome is PlanOutcome.COVERED:
            raise AirflowSkipException(
                f"{self.pipeline.name}: the interval of this backfill run is committed already; no epoch was written."
                f" {'; '.join(planned.notes)}."
            )
        if planned.outcome is PlanOutcome.SINKS_FULL:
            raise AirflowSkipException(
                f"{self.pipeline.name}: nothing was planned; the backlog waits in Kafka: {'; '.join(planned.notes)}."
            )
        if planned.outcome is PlanOutcome.NOTHING_TO_READ or planned.epoch is None:
            noted = f" {'; '.join(planned.notes)}." if planned.notes else ""
            raise AirflowSkipException(
                f"{self.pipeline.name}: nothing to read; no epoch was written and every origin is kept.{noted}"
            )
        self.log.info(
            "%s is %s (%s): %s",
            planned.epoch,
            planned.epoch.state,
            planned.outcome.replace("_", " "),
            ", ".join(str(one) for one in planned.ranges),
        )
        return str(planned.epoch.epoch_id)


@contextmanager
def skipped_while_paused() -> Iterator[None]:
    """Skip the run of a paused pipeline. The message says who paused the pipeline, when and why."""
    try:
        yield
    except PipelinePausedError as error:
        raise AirflowSkipException(str(error)) from error


class PreCommitOperator(SparkSubmitOperator):
    """Stage the epoch with Spark, then seal it. Each execution is a new attempt.

    A connection of type ``spark_connect`` names a server, which runs the job at once. Any other starts a driver by
    spark-submit.

    :param pipeline: the declaration.
    :param epoch_id: id of the epoch. (templated)
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "epoch_id")

    def __init__(self, *, pipeline: Pipeline, epoch_id: str = EPOCH_OF_PLAN, **options: Any) -> None:
        # Not durable: a retry is a new attempt and must not attach to the driver of the attempt before.
        # WARN: at INFO, hundreds of lines of client settings hide the few that tell what happened.
        conf = {"spark.log.level": "WARN", **pipeline.spark_conf}
        super().__init__(conn_id=pipeline.spark_connection, conf=conf, durable=False, **options)
        self.pipeline = pipeline
        self.epoch_id = epoch_id
        self._server_job: ServerJob | None = None

    def pre_execute(self, context: Any) -> None:
        """Set the task's time-out to the run's."""
        self.execution_timeout = settings_of_run(self.pipeline, self.dag, context).timeout

    def execute(self, context: Context) -> None:
        """Stage and seal the epoch; succeed without Spark if it is sealed already.

        Raises:
            AirflowFailException: also on a time-out: the next epoch takes the range, not a retry (K10).
        """
        from epochline.coordinator import stage

        name = self.pipeline.name
        with epochline_errors():
            try:
                self._refuse_early_return()
                ledger = ledger_of(self.pipeline)
                counts = stage(
                    ledger, offsets_of(self.pipeline), name, int(self.epoch_id), run_of(context),
                    submit=partial(self._submit, context, ledger), stop=self.on_kill,
                )  # fmt: skip
            except AirflowTaskTimeout as timeout:
                raise EpochTimeoutError(
                    f"epoch {self.epoch_id} of {name}: was not staged and sealed within {self.execution_timeout}."
                    " abort_epoch discards what it staged, no offset moves, and the next epoch takes its range. If it"
                    " was sealed in the last moment, the next run commits it."
                ) from timeout
        if counts is None:
            self.log.info("epoch %s of %s is sealed already; Spark has nothing to do", self.epoch_id, name)
            return
        self.log.info(
            "epoch %s of %s is pre-committed: %d records read, %d passed, %d skipped, %d quarantined",
            self.epoch_id, name, counts.read, counts.passed, counts.skipped, counts.quarantined,
        )  # fmt: skip

    def _submit(self, context: Context, ledger: Ledger, ticket: StagingTicket) -> None:
        """Run Spark. If its job failed for a reason of ours, that reason decides whether a retry helps."""
        program = self.application or str(project_folder() / "spark_jobs" / "pre_commit.py")
        self.application = program
        self.name = f"epochline {ticket.pipeline} epoch {ticket.epoch_id} attempt {ticket.attempt}"
        arguments = [
            "--pipeline", ticket.pipeline, "--epoch", str(ticket.epoch_id), "--attempt", str(ticket.attempt),
        ]  # fmt: skip
        self.application_args = arguments
        server = spark_server(self.pipeline.spark_connection)
        with self._credentials(ticket, server):
            try:
                if server is None:
                    super().execute(context)
                else:
                    self._server_job = ServerJob(self.log.info)
                    self._server_job.run(program, arguments)
            except AirflowException as failure:
                with ledger.transaction() as tx:
                    attempt = tx.attempts.live(tx.epochs.lock(ticket.pipeline, ticket.epoch_id))
                reason = error_of(attempt.error or "") if attempt is not None else None
                if reason is None:
                    raise
                raise reason from failure

    def on_kill(self) -> None:
        """End the job, wherever it runs."""
        if self._server_job is not None:
            self._server_job.stop()
        if self._hook is not None:
            super().on_kill()

    def _refuse_early_return(self) -> None:
        """Refuse a setting that lets spark-submit return before the job has ended: the seal would come too early."""
        for setting, value in (self.conf or {}).items():
            if setting.lower().endswith("waitappcompletion") and str(value).lower() == "false":
                raise AirflowFailException(
                    f"{setting}=false: pre_commit must wait until the job has ended. Remove it from spark_conf."
                )

    @contextmanager
    def _credentials(self, ticket: StagingTicket, server: str | None) -> Iterator[None]:
        """Hand the driver its connection details in a file that only its owner can read (SEC-4).

        In cluster mode the driver runs on another machine, where EPOCHLINE_CREDENTIALS must name such a file.
        """
        if server is None:
            # The hook looks up a connection, which the job's environment no longer allows.
            self._hook = self._get_hook()
            if self._hook._connection["deploy_mode"] == "cluster":
                yield
                return
        from epochline.airflow.handover import credentials_file, environment_of_job

        found = job_credentials(self.pipeline, ticket)
        held: dict[str, Any] = {
            "postgres": {"dsn": found.dsn}, "kafka": found.kafka, "registries": found.registries,
            "spark": {} if server is None else {"server": server},
        }  # fmt: skip
        with credentials_file(held) as path, environment_of_job(EPOCHLINE_CREDENTIALS=str(path)):
            yield


class CommitEpochOperator(BaseOperator):
    """Make the sealed epoch visible, exactly once, and emit an asset event per epoch and table.

    :param pipeline: the declaration.
    :param epoch_id: id of the epoch. (templated)
    """

    template_fields: Sequence[str] = ("epoch_id",)

    def __init__(self, *, pipeline: Pipeline, epoch_id: str = EPOCH_OF_PLAN, **options: Any) -> None:
        super().__init__(inlets=[events_of(pipeline)], outlets=[events_of(pipeline)], **options)
        self.pipeline = pipeline
        self.epoch_id = epoch_id

    def execute(self, context: Context) -> None:
        """Commit, or log the result again if the epoch is committed already."""
        from epochline.coordinator import commit

        with epochline_errors():
            ledger = ledger_of(self.pipeline)
            result = commit(ledger, offsets_of(self.pipeline), self.pipeline.name, int(self.epoch_id))
        self.log.info("%s", result)
        announce_to_airflow(ledger, self.pipeline, context)


class AbortEpochOperator(BaseOperator):
    """Teardown: discard the staging of an epoch that was not committed, and fail the run.

    :param pipeline: the declaration.
    :param epoch_id: id of the epoch. (templated)
    """

    template_fields: Sequence[str] = ("epoch_id",)

    def __init__(self, *, pipeline: Pipeline, epoch_id: str = EPOCH_OF_PLAN, **options: Any) -> None:
        super().__init__(**options)
        self.pipeline = pipeline
        self.epoch_id = epoch_id

    def execute(self, context: Context) -> None:
        """Abort; skip if the epoch is committed or was never planned.

        Raises:
            AirflowFailException: the epoch is not committed; with ``on_failure_fail_dagrun`` the run is red (U6).
        """
        from epochline.coordinator import abort
        from epochline.protocol.epoch import AbortOutcome

        if not self.epoch_id:
            raise AirflowSkipException(f"{self.pipeline.name}: this run has no epoch; there is nothing to abort.")
        run = run_of(context)
        with epochline_errors():
            outcome = abort(
                ledger_of(self.pipeline), self.pipeline.name, int(self.epoch_id), run, reason=f"teardown of {run}"
            )
        if outcome is AbortOutcome.ALREADY_COMMITTED:
            raise AirflowSkipException(f"epoch {self.epoch_id} of {self.pipeline.name} is committed; nothing to abort.")
        what = {
            AbortOutcome.LEFT_FOR_RECOVERY: (
                "is pre-committed and was left so: the next run of the pipeline commits it, or clear commit_epoch"
            ),
            AbortOutcome.ABORTED: (
                "was aborted, its staging is discarded, no offset moved; clear this run from plan_epoch to try the same"
                " range again, or let the next run take it"
            ),
            AbortOutcome.ALREADY_ABORTED: "was aborted before; clear this run from plan_epoch to try the range again",
        }[outcome]
        raise AirflowFailException(f"epoch {self.epoch_id} of {self.pipeline.name} {what}.")
