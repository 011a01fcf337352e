"""Finds tables that two declarations name."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from epochline.config.discovery import Declared, dag_files, declared_in, look, pipeline_named
from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.errors import DeclarationError

_MAKES_DAGS = re.compile(rb"^\s*(?:from|import)\s+airflow\b", re.MULTILINE)


def shared_tables(declared: Declared) -> list[DeclarationError]:
    """An error for each table that a second pipeline of the same database connection names, as target or state."""
    return [table.error(declared) for table in _shared(declared)]


def without_shared_tables(declared: Declared) -> tuple[dict[str, Pipeline], list[DeclarationError]]:
    """The pipelines that share no table, and an error for each shared table."""
    shared = list(_shared(declared))
    sharing = {name for table in shared for name in (table.first, table.second)}
    alone = {name: pipeline for name, pipeline in declared.pipelines.items() if name not in sharing}
    return alone, [table.error(declared) for table in shared]


def find_alone(name: str) -> Pipeline:
    """The pipeline with this name; `DeclarationError` if no file declares it or another pipeline names its tables."""
    declared = look()
    pipeline = pipeline_named(name, declared)
    for table in _shared(declared):
        if name in (table.first, table.second):
            raise table.error(declared)
    return pipeline


def refuse_newer_file(pipeline: Pipeline, path: Path, folder: Path, made: Iterable[Pipeline] = ()) -> None:
    """Raise `DeclarationError` if an older file, or ``made`` of this one, gives a table of the pipeline to another one.

    A new file is refused rather than the old one, so that it stops no pipeline that runs. Other files are read only if
    they contain the name of one of the tables, and never if they import Airflow: their DAGs would count as this file's.
    """
    tables = [split_table(sink.table)[1].encode() for sink in (*pipeline.targets, *pipeline.states)]
    texts = {other: _older_text(other, path) for other in dag_files(folder) if other != path}
    naming = (other for other, text in texts.items() if any(table in text for table in tables))
    older = declared_in(other for other in naming if not _MAKES_DAGS.search(texts[other]))
    mine = {declared.name: declared for declared in (*made, pipeline)}
    places = {**older.places, **dict.fromkeys(mine, str(path))}
    together = Declared(pipelines={**older.pipelines, **mine}, places=places, broken=())
    for shared in _shared(together):
        if pipeline.name in (shared.first, shared.second):
            other_name = shared.first if shared.second == pipeline.name else shared.second
            raise _Shared(shared.table, other_name, pipeline.name).error(together)


def _older_text(other: Path, path: Path) -> bytes:
    """The content of a file if it is older than the given one; nothing if it is newer, or gone meanwhile."""
    try:
        return other.read_bytes() if _age(other) < _age(path) else b""
    except FileNotFoundError:
        return b""


def _age(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, str(path)


@dataclass(frozen=True, slots=True)
class _Shared:
    table: str
    first: str
    second: str

    def error(self, declared: Declared) -> DeclarationError:
        places = declared.places
        return DeclarationError(
            f"{places[self.second]}: pipelines {self.first!r} and {self.second!r} both name the table {self.table};"
            f" {self.first!r} is declared in {places[self.first]}. Give one of them another table."
        )


def _shared(declared: Declared) -> Iterator[_Shared]:
    owners: dict[tuple[str, tuple[str, str]], str] = {}
    for name, pipeline in sorted(declared.pipelines.items()):
        for sink in (*pipeline.targets, *pipeline.states):
            owner = owners.setdefault((pipeline.postgres_connection, split_table(sink.table)), name)
            if owner != name:
                yield _Shared(sink.table, owner, name)
