"""Finds declarations in the files of the DAGs folder, with or without Airflow.

A DAG file ends with ``dag = epoch_dag(pipeline)``. In Airflow this makes the DAG. In `find`, which the command line
uses, it only notes the pipeline, without importing Airflow.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextvars import ContextVar
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, DeclarationError

# Collects the pipelines that files hand to `epoch_dag` while `find_all` reads them; None otherwise.
_declared: ContextVar[list[Pipeline] | None] = ContextVar("declared", default=None)


def collect(pipeline: Pipeline) -> bool:
    """Note a pipeline that a DAG file declares.

    Returns:
        Whether `find_all` is reading declarations. Otherwise Airflow is, and needs a DAG.
    """
    declared = _declared.get()
    if declared is not None:
        declared.append(pipeline)
    return declared is not None


def project_folder() -> Path:
    """The folder that holds ``dags/`` and ``spark_jobs/``: ``EPOCHLINE_PROJECT``, or this checkout."""
    return Path(os.environ.get("EPOCHLINE_PROJECT") or Path(__file__).parents[3])


def dags_folder(otherwise: Path | None = None) -> Path:
    """``EPOCHLINE_DAGS``, or else the given folder, or else ``dags/`` of the project."""
    named = os.environ.get("EPOCHLINE_DAGS")
    return Path(named) if named else otherwise or project_folder() / "dags"


def code_version() -> str:
    """A text that changes with the files from which functions of pipelines may import."""
    digest = hashlib.sha256()
    for folder in (dags_folder(), project_folder() / "spark_jobs"):
        for path in sorted(folder.rglob("*.py")):
            status = path.stat()
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def find_all(folder: Path | None = None) -> dict[str, Pipeline]:
    """Every pipeline that a file of the folder declares, by name.

    Raises:
        DeclarationError: a file cannot be read, a declaration is invalid, or two share a name.
        ConfigurationError: there is no such folder.
    """
    folder = folder or dags_folder()
    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no folder {folder}; set EPOCHLINE_DAGS to the one that holds your DAG files."
        )
    functions = str(project_folder() / "spark_jobs")
    if functions not in sys.path:
        # Declarations name functions of spark_jobs/, which Airflow has on its path and a shell does not.
        sys.path.append(functions)
    found: dict[str, Pipeline] = {}
    for path in sorted(folder.rglob("*.py")):
        if b"epoch_dag" not in path.read_bytes():
            continue
        for pipeline in _declared_in(path):
            if pipeline.name in found and found[pipeline.name] != pipeline:
                raise DeclarationError(f"{path}: pipeline {pipeline.name!r} is declared twice, with different fields.")
            found[pipeline.name] = pipeline
    return found


def find(name: str, folder: Path | None = None) -> Pipeline:
    """The pipeline with this name.

    Raises:
        DeclarationError: no file declares the pipeline; the message lists the declared ones.
    """
    found = find_all(folder)
    if name not in found:
        known = ", ".join(found) or "none"
        raise DeclarationError(f"no file in {folder or dags_folder()} declares a pipeline {name!r}; declared: {known}.")
    return found[name]


def _declared_in(path: Path) -> list[Pipeline]:
    declared: list[Pipeline] = []
    reading = _declared.set(declared)
    try:
        # As a module, because Python keeps no bytecode of a script.
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        SourceFileLoader(path.stem, str(path)).exec_module(module)
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {error}") from error
    except Exception as error:
        raise DeclarationError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    finally:
        _declared.reset(reading)
    return declared
