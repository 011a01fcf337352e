"""What a DAG file calls. Airflow is imported only if a DAG is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochline.config.discovery import collect
from epochline.declare.pipeline import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import DAG


def epoch_dag(pipeline: Pipeline) -> DAG | None:
    """The Airflow DAG of a pipeline: ``plan_epoch >> pre_commit >> commit_epoch``, ``abort_epoch`` as teardown.

    Returns:
        The DAG; None while the command line reads declarations, which needs no Airflow.
    """
    if collect(pipeline):
        return None
    from epochline.airflow.dag import build_dag

    return build_dag(pipeline)
