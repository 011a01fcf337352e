"""The task that shows committed epochs in the sinks that follow the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from epochline.airflow.assets import events_of, tell_airflow
from epochline.airflow.connections import epochline_errors, ledger_of
from epochline.pipeline import Pipeline

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
        """Publish, and emit an asset event per epoch and sink; skip where there is neither to do."""
        from epochline.coordinator import publish

        with epochline_errors():
            ledger = ledger_of(self.pipeline)
            published = publish(ledger, self.pipeline, report=lambda one: self.log.info("%s", one))
        told = tell_airflow(ledger, self.pipeline, context)
        if not published and not told:
            raise AirflowSkipException(
                f"{self.pipeline.name}: every sink shows every committed epoch, and all are told."
            )
