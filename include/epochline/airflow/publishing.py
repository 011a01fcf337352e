"""The task that shows committed epochs in the sinks that follow the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from epochline.airflow.assets import announce_to_airflow, events_of
from epochline.airflow.connections import epochline_errors, ledger_of
from epochline.declare.pipeline import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context


class PublishOperator(BaseOperator):
    """Show every committed epoch in every sink that does not show it yet, whoever committed it.

    :param pipeline: the declaration.
    """

    def __init__(self, *, pipeline: Pipeline, **options: Any) -> None:
        super().__init__(inlets=[events_of(pipeline)], outlets=[events_of(pipeline)], **options)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Publish, and emit an asset event per epoch and sink; skip where there is neither to do.

        Raises:
            AirflowFailException: an earlier task failed. What was due is shown all the same; the run stays red.
        """
        from epochline.coordinator import publish

        with epochline_errors():
            ledger = ledger_of(self.pipeline)
            published = publish(ledger, self.pipeline, report=lambda one: self.log.info("%s", one))
        told = announce_to_airflow(ledger, self.pipeline, context)
        failed = self._failed_before(context)
        if failed:
            raise AirflowFailException(
                f"{self.pipeline.name}: {', '.join(failed)} failed, and so the run does. What earlier runs committed is"
                f" shown: {len(published)} receipts by this task, nothing is due."
            )
        if not published and not told:
            raise AirflowSkipException(
                f"{self.pipeline.name}: every sink shows every committed epoch, and all are told."
            )

    def _failed_before(self, context: Context) -> list[str]:
        """Ids of the run's tasks before this one that failed."""
        before = sorted(self.get_flat_relative_ids(upstream=True))
        ti: Any = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=before, run_ids=[ti.run_id]).get(ti.run_id, {})
        return [task for task in before if states.get(task) == "failed"]
