"""The tasks of an epoch. Each calls one use case; heavy things are imported where they run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    kafka_settings,
    ledger_of,
    offsets_of,
    postgres_dsn,
    registries_of,
    run_of,
    writers_of,
)
from epochline.airflow.settings import PLAN_PATIENCE, settings_of_run
from epochline.config.discovery import project_folder
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochTimeoutError, PipelinePausedError, error_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from epochline.ports import Ledger
    from epochline.protocol.staging import StagingTicket

EPOCH_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan_epoch') or '' }}"
"""The epoch's id, as ``plan_epoch`` left it: the only thing that passes between tasks (INV-8)."""


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
        """Give the task time for the minimum pause that holds for this run."""
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
                f"{self.pipeline.name}: nothing was planned, the backlog waits in Kafka: {'; '.join(planned.notes)}."
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
    """A run of a pipeline that an operator paused is skipped, naming who, when and why."""
    try:
        yield
    except PipelinePausedError as error:
        raise AirflowSkipException(str(error)) from error


class PreCommitOperator(SparkSubmitOperator):
    """Stage the epoch with Spark, then seal it: begin, submit, seal at every execution.

    :param pipeline: the declaration.
    :param epoch_id: id of the epoch. (templated)
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "epoch_id")

    def __init__(self, *, pipeline: Pipeline, epoch_id: str = EPOCH_OF_PLAN, **options: Any) -> None:
        # durable: a retry is an attempt of its own and must not be tied to the driver of the one before.
        # WARN: hundreds of lines of client settings would hide the few that tell what happened.
        conf = {"spark.log.level": "WARN", **pipeline.spark_conf}
        super().__init__(conn_id=pipeline.spark_connection, conf=conf, durable=False, **options)
        self.pipeline = pipeline
        self.epoch_id = epoch_id

    def pre_execute(self, context: Any) -> None:
        """Give the task the time-out that holds for this run."""
        self.execution_timeout = settings_of_run(self.pipeline, self.dag, context).timeout

    def execute(self, context: Context) -> None:
        """Stage and seal the epoch; succeed without Spark where it is sealed already.

        Raises:
            AirflowFailException: also where it took too long: the next epoch takes the range, not a retry (K10).
        """
        try:
            self._stage_and_seal(context)
        except AirflowTaskTimeout as timeout:
            # Before the error is told, because who hears of it may fence an attempt that is still writing.
            self.on_kill()
            with epochline_errors():
                raise EpochTimeoutError(
                    f"epoch {self.epoch_id} of {self.pipeline.name}: was not staged and sealed within"
                    f" {self.execution_timeout}. abort_epoch discards what it staged, no offset moves, and the next"
                    " epoch takes its range; where it was sealed in the last moment, the next run commits it."
                ) from timeout

    def _stage_and_seal(self, context: Context) -> None:
        from epochline.coordinator import LEASE, begin, seal
        from epochline.coordinator.lease import keep_lease_alive

        run, name = run_of(context), self.pipeline.name
        with epochline_errors():
            ledger = ledger_of(self.pipeline)
            self._refuse_not_to_wait()
            ticket = begin(ledger, name, int(self.epoch_id), run, lease=LEASE)
            if ticket is None:
                self.log.info("epoch %s of %s is sealed already; Spark has nothing to do", self.epoch_id, name)
                return
            self.application = self.application or str(project_folder() / "spark_jobs" / "pre_commit.py")
            self.jars = self.jars or os.environ.get("EPOCHLINE_SPARK_JARS")
            self.name = f"epochline {name} epoch {ticket.epoch_id} attempt {ticket.attempt}"
            self.application_args = [
                "--pipeline", name, "--epoch", str(ticket.epoch_id), "--attempt", str(ticket.attempt),
            ]  # fmt: skip
            with keep_lease_alive(ledger, ticket, run, self.on_kill):
                with self._credentials(ticket):
                    self._submit(context, ledger, ticket)
                counts = seal(ledger, offsets_of(self.pipeline), ticket, run)
        self.log.info(
            "epoch %d of %s is pre-committed: %d records read, %d passed, %d skipped, %d quarantined",
            ticket.epoch_id, name, counts.read, counts.passed, counts.skipped, counts.quarantined,
        )  # fmt: skip

    def _submit(self, context: Context, ledger: Ledger, ticket: StagingTicket) -> None:
        """Run Spark; where its job failed for a reason of ours, that reason says whether a retry helps."""
        try:
            super().execute(context)
        except AirflowException as failure:
            with ledger.transaction() as tx:
                attempt = tx.attempts.live(tx.epochs.lock(ticket.pipeline, ticket.epoch_id))
            reason = error_of(attempt.error or "") if attempt is not None else None
            if reason is None:
                raise
            raise reason from failure

    def _refuse_not_to_wait(self) -> None:
        """A submit that returns before the job ended would be sealed before it was staged."""
        for setting, value in (self.conf or {}).items():
            if setting.lower().endswith("waitappcompletion") and str(value).lower() == "false":
                raise AirflowFailException(
                    f"{setting}=false: pre_commit must wait until Spark ended. Take it out of spark_conf."
                )

    @contextmanager
    def _credentials(self, ticket: StagingTicket) -> Iterator[None]:
        """Let the driver read how to reach PostgreSQL and Kafka from a file that only its owner reads (trap 17).

        In cluster mode the driver runs elsewhere: there EPOCHLINE_CREDENTIALS names a file that was put in place.
        """
        # Made before the job's environment is: it looks up a connection.
        self._hook = self._get_hook()
        if self._hook._connection["deploy_mode"] == "cluster":
            yield
            return
        from epochline.airflow.handover import credentials_file, environment_of_job

        writer = postgres_dsn(self.pipeline.postgres_connection)
        if self.pipeline.writer_connection is not None:
            from epochline.postgres.ledger.writer import check_writer

            ledger, writer = writer, postgres_dsn(self.pipeline.writer_connection)
            check_writer(ledger, writer, ticket)
        kafka = kafka_settings(self.pipeline.source.connection)
        registries = registries_of(self.pipeline)
        with (
            credentials_file({"postgres": {"dsn": writer}, "kafka": kafka, "registries": registries}) as path,
            environment_of_job(EPOCHLINE_CREDENTIALS=str(path)),
        ):
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
        """Commit; show the receipt where it is committed already."""
        from epochline.coordinator import commit

        with epochline_errors():
            ledger = ledger_of(self.pipeline)
            receipt = commit(ledger, offsets_of(self.pipeline), self.pipeline.name, int(self.epoch_id))
        self.log.info("%s", receipt)
        announce_to_airflow(ledger, self.pipeline, context)


class AbortEpochOperator(BaseOperator):
    """Teardown: discard the staging of an epoch that was not committed, and let the run be red.

    :param pipeline: the declaration.
    :param epoch_id: id of the epoch. (templated)
    """

    template_fields: Sequence[str] = ("epoch_id",)

    def __init__(self, *, pipeline: Pipeline, epoch_id: str = EPOCH_OF_PLAN, **options: Any) -> None:
        super().__init__(**options)
        self.pipeline = pipeline
        self.epoch_id = epoch_id

    def execute(self, context: Context) -> None:
        """Abort; skip where the epoch is committed or was never planned.

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
