"""What a DAG file calls. Airflow is imported only if a DAG is built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochline.config.discovery import collect
from epochline.config.places import dags_folder
from epochline.declare.pipeline import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import DAG

_MADE = "_epochline_pipelines"
"""The global variable of a DAG file that holds the pipelines which the file has declared so far."""


def epoch_dag(pipeline: Pipeline) -> DAG | None:
    """The Airflow DAG of a pipeline: ``plan_epoch >> pre_commit >> commit_epoch``, ``abort_epoch`` as teardown.

    Returns:
        The DAG; None while the command line reads declarations, which needs no Airflow.

    Raises:
        DeclarationError: an older file of the DAGs folder, or this file, declares another pipeline with the same table.
            Only while Airflow reads the DAGs folder: a task runs although a newer file is wrong.
    """
    if collect(pipeline):
        return None
    from epochline.airflow.dag import build_dag

    _refuse_shared_tables(pipeline)
    return build_dag(pipeline)


def airflow_dags_folder() -> Path:
    """The folder that EPOCHLINE_DAGS names; if it is not set, Airflow's own DAGs folder."""
    from airflow.sdk.configuration import conf

    return dags_folder(Path(conf.get("core", "dags_folder")))


def _refuse_shared_tables(pipeline: Pipeline) -> None:
    from airflow.sdk import get_parsing_context

    from epochline.config.shared_tables import refuse_newer_file

    if get_parsing_context().task_id is not None:
        return
    path, variables = _dag_file()
    folder = airflow_dags_folder()
    earlier = variables.setdefault(_MADE, [])
    if path.is_relative_to(folder):
        refuse_newer_file(pipeline, path, folder, earlier)
    earlier.append(pipeline)


def _dag_file() -> tuple[Path, dict[str, Any]]:
    """The file whose top level is running, and its global variables."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return Path(frame.f_code.co_filename), frame.f_globals
