"""The task that shows committed epochs in the sinks that follow the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from epochline.airflow.connections import epochline_errors, ledger_of
from epochline.pipeline import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context


class PublishOperator(BaseOperator):
    """Show every committed epoch in every sink that does not show it yet, whoever committed it.

    :param pipeline: the declaration.
    """

    def __init__(self, *, pipeline: Pipeline, **options: Any) -> None:
        super().__init__(**options)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Publish; skip where every sink shows everything."""
        from epochline.coordinator import publish

        with epochline_errors():
            published = publish(
                ledger_of(self.pipeline), self.pipeline.name, report=lambda one: self.log.info("%s", one)
            )
        if not published:
            raise AirflowSkipException(f"{self.pipeline.name}: every sink shows every committed epoch.")
