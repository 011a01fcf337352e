"""Finds declarations in the files of the DAGs folder, with or without Airflow.

A DAG file ends with ``dag = epoch_dag(pipeline)``. Airflow makes the DAG; `find` only notes the pipeline. A file with
`epoch_tasks` makes its DAG itself, which needs Airflow.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from epochline.config.extras import extra_missing
from epochline.config.places import dags_folder, functions_folder
from epochline.declare.external import CustomSink
from epochline.declare.pipeline import Pipeline
from epochline.declare.topic import KafkaTopic
from epochline.errors import ConfigurationError, DeclarationError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".airflowignore"

SKIPPED = (
    'does not contain the word "airflow". Airflow skips such a file without an error, unless its setting [core]'
    " dag_discovery_safe_mode is False."
)
"""What is wrong with a file of `skipped_by_safe_mode`."""

EXAMPLES = "examples"
"""The folder of the shipped examples within the project's DAGs folder, and the schema of their tables."""

_DECLARES = re.compile(rb"epoch_(dag|tasks)")

# Collects the pipelines that files hand to `epoch_dag` or `epoch_tasks` while `look` reads them; None otherwise.
_declared: ContextVar[_Reading | None] = ContextVar("declared", default=None)


def collect(pipeline: Pipeline) -> bool:
    """Note a pipeline that a DAG file declares, if `look` reads the file. Otherwise Airflow does, and needs a DAG."""
    reading = _declared.get()
    if reading is not None:
        frames = (frame for frame, _ in traceback.walk_stack(None) if frame.f_code.co_filename == str(reading.path))
        lines = [frame.f_lineno for frame in frames]
        reading.pipelines.append((pipeline, f"{reading.path}:{lines[-1]}" if lines else str(reading.path)))
    return reading is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The file that is being read, and the pipelines so far with the places that declare them."""

    path: Path
    pipelines: list[tuple[Pipeline, str]] = field(default_factory=list)


def code_version() -> str:
    """A text that changes with the contents of files from which functions of pipelines may import.

    Copies of the files on other workers have the same version, wherever they are and whenever they were written.
    """
    digest = hashlib.sha256()
    for folder in (dags_folder(), functions_folder()):
        for place, folders, files in os.walk(folder):
            # No import reaches a folder such as .git. What Python compiled differs with the path.
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
            package = os.path.relpath(place, folder)
            for name in sorted(name for name in files if name.endswith(".py")):
                with open(os.path.join(place, name), "rb", buffering=0) as file:
                    contents = file.read()
                digest.update(b"%b\0%d\0%b" % (os.fsencode(f"{package}/{name}"), len(contents), contents))
        digest.update(b"\0")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the files of a folder declare."""

    pipelines: Mapping[str, Pipeline]
    broken: Sequence[DeclarationError]
    """An error for each file that cannot be read to its end; the message begins with file and line."""
    places: Mapping[str, str] = field(default_factory=dict)
    """The file and line that declare each pipeline."""


def look(folder: Path | None = None) -> Declared:
    """Read every declaration of the folder; a broken one hides no other. A name that is declared twice is not valid.

    Files that an ``.airflowignore`` leaves out are not read. Raises `ConfigurationError` if there is no such folder.
    """
    folder = folder or dags_folder()
    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no folder {folder}. Run the command in the folder that holds your dags/, or set"
            " EPOCHLINE_PROJECT to that folder, or EPOCHLINE_DAGS to the one with your DAG files."
        )
    return declared_in(dag_files(folder))


def declared_in(paths: Iterable[Path]) -> Declared:
    """Read every declaration of these files, as `look`."""
    pipelines: dict[str, Pipeline] = {}
    places: dict[str, str] = {}
    broken: list[DeclarationError] = []
    twice: set[str] = set()
    for path in paths:
        if not _DECLARES.search(path.read_bytes()):
            continue
        declared, error = _declared_in(path)
        broken += [] if error is None else [error]
        for pipeline, place in declared:
            name = pipeline.name
            if pipelines.get(name, pipeline) != pipeline:
                twice.add(name)
                broken.append(DeclarationError(f"{path}: pipeline {name!r} is declared twice, with different fields."))
            pipelines[name], places[name] = pipeline, place
    valid = {name: pipeline for name, pipeline in pipelines.items() if name not in twice}
    return Declared(pipelines=valid, broken=broken, places=places)


def unscheduled(path: Path) -> dict[str, Pipeline]:
    """The pipelines of one file by name: those of its variables, and those that it hands to `epoch_dag`.

    Raises:
        ConfigurationError: there is no such file.
        DeclarationError: the file cannot be read to its end, or declares no pipeline.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}.")
    module, noted, error = _run(path)
    if error is not None:
        raise error
    found = [*(value for value in vars(module).values() if isinstance(value, Pipeline)), *(one for one, _ in noted)]
    if not found:
        raise DeclarationError(f"{path} has no variable that is a Pipeline.")
    return {pipeline.name: pipeline for pipeline in found}


def find(name: str, folder: Path | None = None) -> Pipeline:
    """The pipeline with this name; raises `DeclarationError` if no file that is read declares it."""
    return pipeline_named(name, look(folder), folder)


def pipeline_named(name: str, declared: Declared, folder: Path | None = None) -> Pipeline:
    """The pipeline with this name among the declared ones; raises as `find`."""
    if name not in declared.pipelines:
        left_out = why_left_out(name, folder)
        if left_out is not None:
            raise DeclarationError(left_out)
        existing = ", ".join(declared.pipelines) or "none"
        broken = "".join(f" Broken: {error}" for error in declared.broken)
        raise DeclarationError(
            f"no file in {folder or dags_folder()} declares a pipeline {name!r}; declared: {existing}.{broken}"
        )
    return declared.pipelines[name]


def why_left_out(name: str, folder: Path | None = None) -> str | None:
    """Say which file that an ``.airflowignore`` leaves out declares the pipeline, and the command that goes on."""
    folder = folder or dags_folder()
    for path in (path for path, left_out in _files(folder) if left_out):
        text = path.read_bytes()
        if not _DECLARES.search(text) or name.encode() not in text:
            continue
        if name in (pipeline.name for pipeline, _ in _declared_in(path)[0]):
            if path.parent == folder / EXAMPLES:
                return (
                    f"pipeline {name!r} is a shipped example that is not enabled. Run `epochline examples enable"
                    f" {path.stem}`."
                )
            return f"pipeline {name!r} is declared in {path}, which an {IGNORE_FILE} leaves out. Remove its line there."
    return None


def skipped_by_safe_mode(declared: Declared, names: Iterable[str]) -> Iterator[Path]:
    """The files of these pipelines that Airflow does not read by default, because they lack its name."""
    places = [declared.places[name] for name in names if name in declared.pipelines]
    for file in dict.fromkeys(Path(re.sub(r":\d+$", "", place)) for place in places):
        if b"airflow" not in file.read_bytes().lower():
            yield file


def dag_files(folder: Path) -> list[Path]:
    """The Python files under the folder that Airflow reads, sorted."""
    return [path for path, left_out in _files(folder) if not left_out]


def _files(folder: Path) -> Iterator[tuple[Path, bool]]:
    rules = {path.parent: _rules(path) for path in folder.rglob(IGNORE_FILE)}
    for path in sorted(folder.rglob("*.py")):
        # The file that is nearest decides, as in Airflow.
        included = (
            rules[parent].check_file(path.relative_to(parent).as_posix()).include
            for parent in path.parents
            if parent in rules
        )
        yield path, next((answer for answer in included if answer is not None), False)


def _rules(path: Path) -> GitIgnoreSpec:
    # Imported here, because most folders leave out no file.
    from pathspec import GitIgnoreSpec

    # Airflow also takes a # behind a pattern for a comment.
    return GitIgnoreSpec.from_lines(line.partition("#")[0].rstrip() for line in path.read_text().splitlines())


def _declared_in(path: Path) -> tuple[list[tuple[Pipeline, str]], DeclarationError | None]:
    """The pipelines that the file declares before it fails, with their places, and why it fails."""
    return _run(path)[1:]


def _run(path: Path) -> tuple[ModuleType, list[tuple[Pipeline, str]], DeclarationError | None]:
    functions = str(functions_folder())
    if functions not in sys.path:
        # Declarations name functions of spark_jobs/, which Airflow has on its path and a shell does not.
        sys.path.append(functions)
    reading = _Reading(path=path)
    # As a module, because Python keeps no bytecode of a script.
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    token = _declared.set(reading)
    try:
        SourceFileLoader(path.stem, str(path)).exec_module(module)
    except DeclarationError as error:
        return module, reading.pipelines, DeclarationError(f"{_place(path, error)}: {error}")
    except Exception as error:
        said = extra_missing(error) or f"{type(error).__name__}: {error}"
        return module, reading.pipelines, DeclarationError(f"{_place(path, error)}: cannot be read ({said})")
    finally:
        _declared.reset(token)
    return module, reading.pipelines, None


def _place(path: Path, error: Exception) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines else str(path)


def references(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Each field that names a function or a class, with what it names."""
    for name, input_ in pipeline.inputs.items():
        if isinstance(input_.parse, str):
            yield f"source.inputs.{name}.parse" if name else "parse", input_.parse
    if pipeline.transform is not None:
        yield "transform", pipeline.transform
    for sink in pipeline.sinks:
        if sink.select is not None:
            yield f"sinks.{sink}.select", sink.select
        if isinstance(sink, KafkaTopic) and isinstance(sink.value, str):
            yield f"sinks.{sink}.value", sink.value
        if isinstance(sink, CustomSink):
            yield f"sinks.{sink}.sink", sink.sink
    for state in pipeline.state:
        if state.keys is not None:
            yield f"state.{state}.keys", state.keys


def unimportable(pipeline: Pipeline) -> list[str]:
    """A message for each function or class that cannot be imported here."""
    messages = []
    for where, reference in references(pipeline):
        module, _, name = reference.partition(":")
        try:
            getattr(import_module(module), name)
        except Exception as error:  # a module may raise anything
            if (missing := extra_missing(error)) is not None:
                messages.append(f"{where}: {reference} cannot be imported ({missing})")
                continue
            messages.append(
                f"{where}: {reference} cannot be imported ({type(error).__name__}: {error}); correct {module}, or"
                " install what it imports"
            )
    return messages
