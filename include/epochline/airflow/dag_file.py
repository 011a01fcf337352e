"""What a DAG file calls. Airflow is imported only if a DAG or its tasks are built."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from epochline.config.discovery import collect
from epochline.config.places import dags_folder
from epochline.declare.pipeline import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import DAG, TaskGroup

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


def epoch_tasks(pipeline: Pipeline) -> TaskGroup:
    """The tasks of `epoch_dag` as a group of your own DAG, for tasks of yours before and after an epoch.

    A task after the group runs once the epoch is committed, and published if a sink follows the commit. It does not run
    if the epoch failed, or if there was nothing to read. Pools, callbacks, queues and other ``default_args`` of the DAG
    apply; retries, trigger rules and time-outs of these tasks are the pipeline's.

    Raises:
        DeclarationError: there is no DAG around, or it cannot keep what `epoch_dag` promises: another ``dag_id`` than
            the pipeline's name, a ``max_active_runs`` other than 1, a ``dagrun_timeout``, another schedule than the
            declared one, a param that is a setting of epochs; or the tables are another pipeline's, as for `epoch_dag`.
    """
    from epochline.airflow.dag import build_group

    group = build_group(pipeline)
    if not collect(pipeline):
        _refuse_shared_tables(pipeline)
    return group


def epoch_schedule(pipeline: Pipeline) -> Any:
    """The pipeline's schedule for a DAG with `epoch_tasks`: its runs have intervals, so that backfills read them."""
    from epochline.airflow.dag import schedule_of

    return schedule_of(pipeline)


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
