"""The task that publishes committed epochs to the sinks that follow the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from epochline.airflow.assets import announce_to_airflow, events_of
from epochline.airflow.connections import adapters, epochline_errors
from epochline.declare.pipeline import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context


class PublishOperator(BaseOperator):
    """Publish every committed epoch to each sink that does not show it yet, including other runs' epochs.

    :param pipeline: the declaration.
    """

    def __init__(self, *, pipeline: Pipeline, **options: Any) -> None:
        super().__init__(inlets=[events_of(pipeline)], outlets=[events_of(pipeline)], **options)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Publish, and emit an asset event per epoch and sink; skip if nothing is due and nothing unannounced.

        Raises:
            AirflowFailException: an earlier task failed. What was due is published all the same; the run stays red.
        """
        from epochline.coordinator import publish

        name = self.pipeline.name
        self.log.info("%s: this task publishes every committed epoch that a sink does not show yet", name)
        with epochline_errors():
            ledger = adapters().ledger(self.pipeline)
            published = publish(ledger, self.pipeline, report=lambda one: self.log.info("%s", one))
            announced = announce_to_airflow(ledger, self.pipeline, context)
            failed = self._failed_before(context)
            if failed:
                raise AirflowFailException(
                    f"{name}: {', '.join(failed)} failed, so the run fails. This task published what was due from"
                    f" earlier runs: {len(published)} receipts. The log of {failed[-1]} says what to do."
                )
        if not published and not announced:
            raise AirflowSkipException(
                f"{name}: every sink shows every committed epoch, and Airflow has recorded them all."
            )
        self.log.info("%s: published %d receipts, announced %d. Nothing to do.", name, len(published), announced)

    def _failed_before(self, context: Context) -> list[str]:
        """Ids of the failed tasks before this one in the run."""
        before = sorted(self.get_flat_relative_ids(upstream=True))
        ti: Any = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=before, run_ids=[ti.run_id]).get(ti.run_id, {})
        return [task for task in before if states.get(task) == "failed"]
