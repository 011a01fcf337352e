"""Which shipped examples there are, and which are enabled: an example is off while an ``.airflowignore`` names it."""

import os
from collections.abc import Collection
from pathlib import Path

from epochline.config.discovery import EXAMPLES, IGNORE_FILE, dag_files
from epochline.config.places import project_folder
from epochline.errors import ConfigurationError


def example_files() -> dict[str, Path]:
    """The file of each example by name, sorted."""
    return {path.stem: path for path in sorted((_dags() / EXAMPLES).glob("*.py"))}


def enabled_examples() -> set[str]:
    """The names of the examples that are enabled."""
    return {path.stem for path in dag_files(_dags()) if path.parent == _dags() / EXAMPLES}


def switch_examples(names: Collection[str], *, on: bool) -> None:
    """Enable or disable examples; a repeat changes nothing. Raises `ConfigurationError` if one cannot be."""
    unknown = sorted(set(names) - set(example_files()))
    if unknown:
        existing = ", ".join(example_files()) or "none"
        raise ConfigurationError(
            f"there is no example {', '.join(unknown)} in {_dags() / EXAMPLES}; examples: {existing}"
        )
    path = _dags() / IGNORE_FILE
    entries = {f"{EXAMPLES}/{name}.py" for name in names}
    lines = path.read_text().splitlines() if path.is_file() else []
    kept = [line for line in lines if line.partition("#")[0].strip() not in entries]
    _write(path, kept if on else [*kept, *sorted(entries)])
    stuck = sorted(set(names) - enabled_examples()) if on else []
    if stuck:
        raise ConfigurationError(f"another line of {path} still leaves {', '.join(stuck)} out. Remove that line.")


def _write(path: Path, lines: list[str]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror}. Run the command where the project's dags folder can be written."
        ) from error


def _dags() -> Path:
    return project_folder() / "dags"
