"""Finds declarations in the files of the DAGs folder, with or without Airflow.

A DAG file ends with ``dag = epoch_dag(pipeline)``. In Airflow this makes the DAG. In `find`, which the command line
uses, it only notes the pipeline, without importing Airflow.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the files of a folder declare.

    ``pipelines`` are the valid ones by name. ``broken`` has an error for each file that cannot be read to its end; the
    message begins with file and line.
    """

    pipelines: Mapping[str, Pipeline]
    broken: Sequence[DeclarationError]


def look(folder: Path | None = None) -> Declared:
    """Read every declaration of the folder. A broken one hides no other.

    A name that two files declare differently is no valid pipeline.

    Raises:
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
    broken: list[DeclarationError] = []
    twice: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        if b"epoch_dag" not in path.read_bytes():
            continue
        declared, error = _declared_in(path)
        if error is not None:
            broken.append(error)
        for pipeline in declared:
            name = pipeline.name
            if name in found and found[name] != pipeline:
                twice.add(name)
                broken.append(DeclarationError(f"{path}: pipeline {name!r} is declared twice, with different fields."))
            found[name] = pipeline
    return Declared(pipelines={name: one for name, one in found.items() if name not in twice}, broken=broken)


def find_all(folder: Path | None = None) -> dict[str, Pipeline]:
    """Every pipeline that a file of the folder declares, by name.

    Raises:
        DeclarationError: a file cannot be read, a declaration is invalid, or two share a name.
        ConfigurationError: there is no such folder.
    """
    declared = look(folder)
    if declared.broken:
        raise declared.broken[0]
    return dict(declared.pipelines)


def find(name: str, folder: Path | None = None) -> Pipeline:
    """The pipeline with this name. Other declarations may be broken.

    Raises:
        DeclarationError: no file declares the pipeline; the message lists the declared ones, and what is broken.
    """
    declared = look(folder)
    if name not in declared.pipelines:
        known = ", ".join(declared.pipelines) or "none"
        broken = "".join(f" Broken: {error}" for error in declared.broken)
        raise DeclarationError(
            f"no file in {folder or dags_folder()} declares a pipeline {name!r}; declared: {known}.{broken}"
        )
    return declared.pipelines[name]


def _declared_in(path: Path) -> tuple[list[Pipeline], DeclarationError | None]:
    """The pipelines that the file declares before it fails, and why it fails."""
    declared: list[Pipeline] = []
    reading = _declared.set(declared)
    try:
        # As a module, because Python keeps no bytecode of a script.
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        SourceFileLoader(path.stem, str(path)).exec_module(module)
    except DeclarationError as error:
        return declared, DeclarationError(f"{_place(path, error)}: {error}")
    except Exception as error:
        return declared, DeclarationError(f"{_place(path, error)}: cannot be read ({type(error).__name__}: {error})")
    finally:
        _declared.reset(reading)
    return declared, None


def _place(path: Path, error: Exception) -> str:
    """The file, with the line at which it fails."""
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines else str(path)
