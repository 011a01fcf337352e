"""A savepoint as a file: a zip archive with ``savepoint.json`` and the rows of each state table.

COPY writes the rows as text, under the settings that each transaction makes, so that the digest of imported rows can be
compared with the saved digest. Epochs leave such files in a folder, each under the epoch's number.
"""

import json
import os
import re
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from psycopg2 import sql

from epochline.declare.columns import parse_type
from epochline.declare.state import StateDigest
from epochline.errors import SavepointFileError
from epochline.postgres.ledger.rows import head_columns, saved_head
from epochline.postgres.queries.statements import Connection, change, compose, defined_columns, query
from epochline.postgres.targets.columns import columns_of
from epochline.protocol.savepoint import Savepoint

_DESCRIBED = "savepoint.json"
_FORMAT = 1
_FIELDS = ("pipeline", "name", "epoch_id", "generation", "cluster_id", "watermark", "made_by", "reason", "made_at")
_TIMES = ("watermark", "made_at", "newest_event_time", "read_at")
_EPOCH_FILE = re.compile(r"epoch-(?P<epoch>\d+)\.zip")
_DRAFT = re.compile(r"\.epoch-(?P<epoch>\d+)\.[0-9a-f]{32}")

_DAMAGED = (
    zipfile.BadZipFile, zlib.error, KeyError, TypeError, ValueError, AttributeError, EOFError, NotImplementedError,
    RuntimeError, OSError,
)  # fmt: skip
"""What reading a damaged archive raises."""


def stored(savepoint: Savepoint) -> dict[str, Any]:
    """The fields of a savepoint that are neither heads nor states."""
    return {name: getattr(savepoint, name) for name in _FIELDS}


def write_file(
    connection: Connection,
    savepoint: Savepoint,
    declaration: str,
    copies: Mapping[str, sql.Identifier],
    into: IO[bytes],
    *,
    more: Mapping[Any, Any] = MappingProxyType({}),
) -> dict[str, StateDigest]:
    """Write a savepoint and its copies of state tables; return what each held. ``more`` is for people only."""
    described = {**more, **stored(savepoint), "format": _FORMAT, "declaration": json.loads(declaration), "states": []}
    described["heads"] = [head_columns(head) for head in savepoint.heads]
    held: dict[str, StateDigest] = {}
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, (state, table) in enumerate(sorted(copies.items())):
            file = f"state-{number}.txt"
            # A list: the rows have no names, and the members of an object have no order.
            columns = [(name, column.kind) for name, column in columns_of(connection, ".".join(table.strings)).items()]
            keys, digest = _counted(connection, table)
            held[state] = StateDigest(keys=keys, digest=digest)
            content = {"columns": columns, "keys": keys, "digest": str(digest)}
            described["states"].append({"state": state, "file": file, **content})
            with archive.open(file, "w", force_zip64=True) as rows:
                _copy(connection, "COPY {table} TO STDOUT (FORMAT text, ENCODING 'UTF8')", table, rows)
        text = json.dumps(described, indent=1, sort_keys=True, default=datetime.isoformat)
        archive.writestr(_DESCRIBED, text)
    return held


def refuse_other(subject: str, states: Mapping[str, StateDigest | None], held: Mapping[str, StateDigest]) -> None:
    """Refuse to keep copies of state that are not what was counted before; None says that nothing was."""
    for state, rows in held.items():
        if (known := states.get(state)) not in (None, rows):
            raise SavepointFileError(
                f"{subject}: the rows of {state} are not those that were counted: {known} then, {rows} now. Nothing was"
                " kept. They were changed past their triggers, or rotted; `epochline audit` compares the state."
            )


def read_description(source: IO[bytes]) -> tuple[Savepoint, str, list[dict[str, Any]]]:
    """Read the savepoint, the declaration and the description of each state's rows from a file.

    Raises:
        SavepointFileError: the file is no savepoint, or is damaged.
    """
    try:
        described = json.loads(_description_in(source))
        if described["format"] != _FORMAT:
            raise SavepointFileError(
                f"the file has format {described['format']}; this version reads format {_FORMAT}. Nothing was changed."
            )
        states = described["states"]
        savepoint = Savepoint(
            **_parsed({name: described[name] for name in _FIELDS}),
            heads=tuple(saved_head(_parsed(head)) for head in described["heads"]),
            states={state["state"]: StateDigest(keys=state["keys"], digest=int(state["digest"])) for state in states},
        )
        return savepoint, json.dumps(described["declaration"]), states
    except _DAMAGED as error:
        raise SavepointFileError(
            f"the file is no savepoint, or was damaged ({type(error).__name__}). Nothing was changed."
        ) from error


def _parsed(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with times in place of their texts."""
    times = {name: datetime.fromisoformat(text) for name, text in values.items() if name in _TIMES and text is not None}
    return {**values, **times}


def _description_in(source: IO[bytes]) -> str:
    with zipfile.ZipFile(source) as archive:
        return archive.read(_DESCRIBED).decode()


def description(source: IO[bytes]) -> str:
    """What a savepoint file says about itself, as JSON for people: everything but the rows of its state.

    Raises:
        SavepointFileError: the file is no savepoint, or is damaged.
    """
    read_description(source)
    return _description_in(source)


def read_rows(connection: Connection, source: IO[bytes], state: Mapping[str, Any], into: sql.Identifier) -> None:
    """Create a table with the rows of a state, and compare its digest with the saved one.

    Raises:
        SavepointFileError: the rows are not the saved rows, or nothing tells which columns their values belong to.
    """
    if isinstance(state["columns"], dict):
        raise SavepointFileError(
            f"state {state['state']}: an earlier version wrote the file, which lost the order of the columns: values"
            " would get into other columns. Nothing was imported. Export the savepoint again, with this version."
        )
    check_rows(source, state)
    columns = defined_columns({name: str(parse_type(kind)) for name, kind in state["columns"]})
    change(connection, "CREATE TABLE {into} ({columns})", into=into, columns=columns)
    with zipfile.ZipFile(source) as archive, archive.open(state["file"]) as rows:
        _copy(connection, "COPY {table} FROM STDIN (FORMAT text, ENCODING 'UTF8')", into, rows)
    keys, digest = _counted(connection, into)
    if (keys, digest) != (state["keys"], int(state["digest"])):
        raise SavepointFileError(
            f"state {state['state']}: the file says {state['keys']} keys and holds {keys}, or other values than were"
            " saved. It was damaged or changed; nothing was imported."
        )


def check_rows(source: IO[bytes], state: Mapping[str, Any]) -> None:
    """Compare the rows of a state in a file with their checksum, before PostgreSQL is given one.

    Raises:
        SavepointFileError: they were damaged.
    """
    try:
        with zipfile.ZipFile(source) as archive, archive.open(state["file"]) as rows:
            while rows.read(1 << 20):
                pass
    except _DAMAGED as error:
        raise SavepointFileError(
            f"state {state['state']}: its rows in the file were damaged ({type(error).__name__}). Nothing was imported."
        ) from error


def _counted(connection: Connection, table: sql.Identifier) -> tuple[int, int]:
    statement = "SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) FROM {table} r"
    [(keys, digest)] = query(connection, statement, table=table)
    return keys, int(digest)


def _copy(connection: Connection, statement: str, table: sql.Identifier, file: IO[bytes]) -> None:
    with connection.cursor() as cursor:
        cursor.copy_expert(compose(statement, table=table), file)


def file_of(folder: Path, epoch_id: int) -> Path:
    """The file of an epoch. Names sort in the order of the epochs."""
    return folder / f"epoch-{epoch_id:010d}.zip"


def files_in(folder: Path) -> Mapping[int, Path]:
    """The epoch files in a folder, by epoch, in order; empty if there is no such folder.

    Raises:
        SavepointFileError: the folder cannot be read.
    """
    return _paths(folder, _EPOCH_FILE)


def is_there(savepoint: Savepoint, folder: Path) -> bool:
    """Whether the epoch's file is in the folder: whole, and of this ledger and not of another one."""
    try:
        with file_of(folder, savepoint.epoch_id).open("rb") as file:
            kept, _, _ = read_description(file)
    except (OSError, SavepointFileError):
        return False
    return (kept.pipeline, kept.made_at, kept.heads) == (savepoint.pipeline, savepoint.made_at, savepoint.heads)


@dataclass
class NewFile:
    """A file to which an epoch is written, and whether it gets its name at the end."""

    draft: IO[bytes]
    is_whole: bool = False


@contextmanager
def new_file(folder: Path, epoch_id: int) -> Iterator[NewFile]:
    """Make an epoch's file, which vanishes unless it is whole. Only its owner can read it: state may be personal data.

    Raises:
        SavepointFileError: the folder cannot be written.
    """
    with _writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".epoch-{epoch_id}.{uuid.uuid4().hex}"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
                yield (file := NewFile(written))
                written.flush()
                os.fsync(written.fileno())
            if file.is_whole:
                draft.replace(file_of(folder, epoch_id))
        finally:
            draft.unlink(missing_ok=True)


def delete_older(folder: Path, epoch_id: int, keep: int) -> None:
    """Delete all files but those of the ``keep`` newest epochs up to this one, and what killed writers left.

    Raises:
        SavepointFileError: the folder cannot be written.
    """
    with _writing(folder):
        ours = [file for epoch, file in files_in(folder).items() if epoch <= epoch_id]
        for file in ours[:-keep]:
            file.unlink(missing_ok=True)
        for epoch, draft in _paths(folder, _DRAFT).items():
            if epoch < epoch_id:
                draft.unlink(missing_ok=True)


def delete_all(folder: Path) -> int:
    """Delete the epoch files of a folder, and what killed writers left; return how many there were.

    Raises:
        SavepointFileError: the folder cannot be written.
    """
    files = [*files_in(folder).values(), *_paths(folder, _DRAFT).values()]
    with _writing(folder):
        for file in files:
            file.unlink(missing_ok=True)
    return len(files)


def _paths(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    with _writing(folder), suppress(FileNotFoundError):
        matches = [(pattern.fullmatch(path.name), path) for path in folder.iterdir()]
        return dict(sorted((int(match["epoch"]), path) for match, path in matches if match is not None))
    return {}


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SavepointFileError(f"epoch files in {folder}: {error.strerror}.") from error
