"""A savepoint as a file: a zip archive with ``savepoint.json`` and the rows of each state table.

COPY writes the rows as text, under the settings that each transaction makes, so that the digest of imported rows can be
compared with the saved digest. Epochs leave such files in a folder, each under the epoch's number.
"""

import json
import os
import re
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import parse_type
from epochline.declare.event_time import PartitionTime
from epochline.declare.state import StateDigest
from epochline.errors import SavepointFileError
from epochline.postgres.queries.composed import change, compose, driver, joined, query
from epochline.postgres.targets.columns import columns_of
from epochline.protocol.offsets import TopicPartition
from epochline.protocol.savepoint import SavedHead, Savepoint

_DESCRIBED = "savepoint.json"
_FORMAT = 1
_HOW = sql.SQL("(FORMAT text, ENCODING 'UTF8')")
_EPOCH_FILE = re.compile(r"epoch-(?P<epoch>\d+)\.zip")
_DRAFT = re.compile(r"\.epoch-(?P<epoch>\d+)\.[0-9a-f]{32}")


def write_file(
    connection: Connection,
    savepoint: Savepoint,
    declaration: str,
    copies: Mapping[str, sql.Identifier],
    into: IO[bytes],
    *,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write a savepoint and its copies of state tables. ``more`` is for people, and no import reads it."""
    described = dict(more or {}) | _described(savepoint) | {"declaration": json.loads(declaration), "states": []}
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, (state, table) in enumerate(sorted(copies.items())):
            file = f"state-{number}.txt"
            columns = _columns(connection, table)
            # Counted again: an ALTER TABLE after the savepoint changes the digest of its copy.
            keys, digest = _counted(connection, table)
            described["states"].append(
                {"state": state, "file": file, "columns": columns, "keys": keys, "digest": str(digest)}
            )
            with archive.open(file, "w", force_zip64=True) as rows:
                _copy(connection, sql.SQL("COPY {} TO STDOUT {}").format(table, _HOW), rows)
        archive.writestr(_DESCRIBED, json.dumps(described, indent=1, sort_keys=True))


def read_description(source: IO[bytes]) -> tuple[Savepoint, str, list[dict[str, Any]]]:
    """Read the savepoint, the declaration and the description of each state's rows from a file.

    Raises:
        SavepointFileError: the file is no savepoint, or is damaged.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            described = json.loads(archive.read(_DESCRIBED))
        if described["format"] != _FORMAT:
            raise SavepointFileError(
                f"the file has format {described['format']}; this version reads format {_FORMAT}. Nothing was changed."
            )
        states = described["states"]
        savepoint = Savepoint(
            pipeline=described["pipeline"], name=described["name"], epoch_id=described["epoch_id"],
            generation=described["generation"], cluster_id=described["cluster_id"],
            watermark=_time(described["watermark"]), made_by=described["made_by"], reason=described["reason"],
            made_at=_time(described["made_at"]),
            heads=tuple(map(_head, described["heads"])),
            states={one["state"]: StateDigest(keys=one["keys"], digest=int(one["digest"])) for one in states},
        )  # fmt: skip
        return savepoint, json.dumps(described["declaration"]), states
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise SavepointFileError(
            f"the file is no savepoint, or was damaged ({type(error).__name__}). Nothing was changed."
        ) from error


def description(source: IO[bytes]) -> str:
    """What a savepoint file says about itself, as JSON for people: everything but the rows of its state.

    Raises:
        SavepointFileError: the file is no savepoint, or is damaged.
    """
    read_description(source)
    with zipfile.ZipFile(source) as archive:
        return archive.read(_DESCRIBED).decode()


def read_rows(connection: Connection, source: IO[bytes], state: Mapping[str, Any], into: sql.Identifier) -> None:
    """Create a table with the rows of a state, and compare its digest with the saved one.

    Raises:
        SavepointFileError: the rows are not the saved rows.
    """
    columns = joined(
        compose("{name} {kind}", name=name, kind=sql.SQL(str(parse_type(kind))))
        for name, kind in state["columns"].items()
    )
    change(connection, "CREATE TABLE {into} ({columns})", into=into, columns=columns)
    with zipfile.ZipFile(source) as archive, archive.open(state["file"]) as rows:
        _copy(connection, sql.SQL("COPY {} FROM STDIN {}").format(into, _HOW), rows)
    keys, digest = _counted(connection, into)
    if (keys, digest) != (state["keys"], int(state["digest"])):
        raise SavepointFileError(
            f"state {state['state']}: the file says {state['keys']} keys and holds {keys}, or other values than were"
            " saved. It was damaged or changed; nothing was imported."
        )


def _counted(connection: Connection, table: sql.Identifier) -> tuple[int, int]:
    asked = "SELECT count(*), coalesce(sum(epochline.row_digest(r::text)), 0) FROM {table} r"
    [(keys, digest)] = query(connection, asked, table=table)
    return keys, int(digest)


def _described(savepoint: Savepoint) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "pipeline": savepoint.pipeline,
        "name": savepoint.name,
        "epoch_id": savepoint.epoch_id,
        "generation": savepoint.generation,
        "cluster_id": savepoint.cluster_id,
        "watermark": _text(savepoint.watermark),
        "made_by": savepoint.made_by,
        "reason": savepoint.reason,
        "made_at": _text(savepoint.made_at),
        "heads": [
            {
                "topic": head.tp.topic, "topic_id": head.tp.topic_id, "partition": head.tp.partition,
                "next_offset": head.next_offset, "leader_epoch": head.leader_epoch,
                "newest_event_time": _text(head.time.newest), "read_at": _text(head.time.read_at),
            }
            for head in savepoint.heads
        ],
    }  # fmt: skip


def _head(one: Mapping[str, Any]) -> SavedHead:
    return SavedHead(
        tp=TopicPartition(topic=one["topic"], partition=one["partition"], topic_id=one["topic_id"]),
        next_offset=one["next_offset"],
        leader_epoch=one["leader_epoch"],
        time=PartitionTime(newest=_time(one["newest_event_time"]), read_at=_time(one["read_at"])),
    )


def _columns(connection: Connection, table: sql.Identifier) -> dict[str, str]:
    return {name: column.kind for name, column in columns_of(connection, ".".join(table.strings)).items()}


def _copy(connection: Connection, statement: sql.Composable, file: IO[bytes]) -> None:
    with driver(connection).cursor() as cursor:
        cursor.copy_expert(statement, file)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


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
    return (kept.pipeline, kept.made_at, kept.heads) == (
        savepoint.pipeline,
        savepoint.made_at,
        savepoint.heads,
    )


@contextmanager
def new_file(folder: Path, epoch_id: int) -> Iterator[IO[bytes]]:
    """A file to write an epoch to. It gets its name when the block ends, and vanishes if the block raises.

    Only its owner can read it, because state may hold personal data.

    Raises:
        SavepointFileError: the folder cannot be written.
    """
    with _writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".epoch-{epoch_id}.{uuid.uuid4().hex}"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
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
