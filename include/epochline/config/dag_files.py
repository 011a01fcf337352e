"""Finds the files of a DAGs folder that Airflow reads: all but those that an ``.airflowignore`` leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".airflowignore"


def dag_files(folder: Path) -> list[Path]:
    """The Python files under the folder that Airflow reads, sorted."""
    return [path for path, left_out in _files(folder) if not left_out]


def left_out_files(folder: Path) -> list[Path]:
    """The Python files under the folder that an ``.airflowignore`` leaves out, sorted."""
    return [path for path, left_out in _files(folder) if left_out]


def _files(folder: Path) -> Iterator[tuple[Path, bool]]:
    rules = {path.parent: _rules(path) for path in folder.rglob(IGNORE_FILE)}
    for path in sorted(folder.rglob("*.py")):
        # The file that is nearest decides, as in Airflow.
        said = [
            spec.check_file(path.relative_to(parent).as_posix()).include
            for parent in path.parents
            if (spec := rules.get(parent)) is not None
        ]
        yield path, next((one for one in said if one is not None), False)


def _rules(path: Path) -> GitIgnoreSpec:
    # Imported here, because most folders leave out no file.
    from pathspec import GitIgnoreSpec

    # Airflow also takes a # behind a pattern for a comment.
    return GitIgnoreSpec.from_lines(line.partition("#")[0].rstrip() for line in path.read_text().splitlines())
