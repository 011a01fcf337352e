"""The declared pipelines, as commands need them: with the functions that declarations name within reach."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from epochline.config import discovery as declarations
from epochline.declare.pipeline import Pipeline


def find(name: str) -> Pipeline:
    """The pipeline with this name."""
    _reach_spark_jobs()
    return declarations.find(name)


def find_all() -> dict[str, Pipeline]:
    """Every declared pipeline, by name."""
    _reach_spark_jobs()
    return declarations.find_all()


def _reach_spark_jobs() -> None:
    """Put ``spark_jobs/`` of the project on the path, as Airflow's processes have it."""
    from epochline.local.home import project_root

    folder = Path(os.environ.get("EPOCHLINE_PROJECT") or project_root()) / "spark_jobs"
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))
