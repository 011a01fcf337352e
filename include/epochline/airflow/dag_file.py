"""What a DAG file calls. Airflow is imported only if a DAG is built."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from epochline.config.discovery import collect, dags_folder
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
        DeclarationError: an older file of the DAGs folder or bundle, or this file, declares another pipeline with the
            same table. Only while Airflow reads the folder: a task runs although a newer file is wrong.
    """
    if collect(pipeline):
        return None
    from epochline.airflow.dag import build_dag

    _refuse_shared_tables(pipeline)
    return build_dag(pipeline)


def folder_of_task(context: Mapping[str, Any]) -> Path:
    """Where a task finds declarations: EPOCHLINE_DAGS, or else the DAG bundle of the task's own file."""
    bundle = getattr(context["ti"], "bundle_instance", None)
    return _airflow_dags_folder() if bundle is None else dags_folder(Path(bundle.path))


def _airflow_dags_folder() -> Path:
    from airflow.sdk.configuration import conf

    return dags_folder(Path(conf.get("core", "dags_folder")))


def _refuse_shared_tables(pipeline: Pipeline) -> None:
    from airflow.sdk import get_parsing_context

    from epochline.config.shared_tables import refuse_newer_file

    if get_parsing_context().task_id is not None:
        return
    frame = _top_level()
    path, folder = Path(frame.f_code.co_filename), _bundle_being_read(frame) or _airflow_dags_folder()
    earlier = frame.f_globals.setdefault(_MADE, [])
    if path.is_relative_to(folder):
        refuse_newer_file(pipeline, path, folder, earlier)
    earlier.append(pipeline)


def _top_level() -> FrameType:
    """The frame of the file whose top level is running."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _bundle_being_read(frame: FrameType | None) -> Path | None:
    """The folder of the DAG bundle for which Airflow runs a file. Airflow tells it to no file, so its frames say it."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("airflow.dag_processing") and "bundle_path" in frame.f_locals:
            path = frame.f_locals["bundle_path"]
            return None if path is None else Path(path)
        frame = frame.f_back
    return None
