"""Links at tasks: to the epoch of the run, to the pipeline, to Spark's log. Airflow opens each in its own frame.

The API server makes a link when a user looks at a task, so no task writes one. An address has no leading slash: it is
relative to the base address of Airflow's user interface, to which a proxy may add a prefix.
"""

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from epochline.airflow.pages.plugin import EPOCH_TAB, PIPELINE_TAB


class EpochLink(BaseOperatorLink):
    """The epoch of the run, at every task of a pipeline's DAG."""

    name = "Epoch"

    @property
    def operators(self) -> list[type[Any]]:  # type: ignore[override]
        """Classes, imported when Airflow reads a DAG for its user interface: it loads plugins in every process."""
        from epochline.airflow import operators
        from epochline.airflow.pre_commit import PreCommitOperator

        others = [operators.CommitEpochOperator, operators.AbortEpochOperator, operators.PublishOperator]
        return [operators.PlanEpochOperator, PreCommitOperator, *others]

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The tab of the run."""
        return f"{_run(ti_key)}/plugin/{EPOCH_TAB}"


class SparkLogLink(BaseOperatorLink):
    """What Spark's driver said: `pre_commit` copies it to its own log, wherever Spark runs."""

    name = "Spark's log"

    @property
    def operators(self) -> list[type[Any]]:  # type: ignore[override]
        """Tasks after which there is such a log."""
        from epochline.airflow.operators import AbortEpochOperator, CommitEpochOperator

        return [CommitEpochOperator, AbortEpochOperator]

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The log of the run's `pre_commit`."""
        return f"{_run(ti_key)}/tasks/pre_commit"


class PipelineLink(EpochLink):
    """The pipeline: of the task's own DAG, or the one that the run of an action names."""

    name = "Pipeline"

    @property
    def operators(self) -> list[type[Any]]:  # type: ignore[override]
        """Every task of a pipeline's DAG, and the actions."""
        from epochline.airflow.operations import ActionOperator

        return [*super().operators, ActionOperator]

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The tab of the pipeline's DAG; empty if the run of an action names no pipeline."""
        is_action = operator.task_type == "ActionOperator"
        pipeline = _pipeline_of_action(ti_key) if is_action else ti_key.dag_id
        return f"dags/{quote(pipeline, safe='')}/plugin/{PIPELINE_TAB}" if pipeline else ""


def _run(ti_key: Any) -> str:
    return f"dags/{quote(ti_key.dag_id, safe='')}/runs/{quote(ti_key.run_id, safe='')}"


def _pipeline_of_action(ti_key: Any) -> str | None:
    """What the conf of an action's run names. The user who asks may read the run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        conf = session.scalar(select(DagRun.conf).where(DagRun.dag_id == ti_key.dag_id, DagRun.run_id == ti_key.run_id))
    pipeline = conf.get("pipeline") if isinstance(conf, dict) else None
    return pipeline if isinstance(pipeline, str) else None


LINKS = [EpochLink(), PipelineLink(), SparkLogLink()]
