"""The savepoint files that epochs leave in a folder (C11): their names, their writing, and which of them are kept."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from epochline.errors import SavepointFileError
from epochline.postgres.ledger.savepoint_file import read_description
from epochline.protocol.savepoint import Savepoint

_FILE = re.compile(r"epoch-(?P<epoch>\d+)\.zip")
_DRAFT = re.compile(r"\.epoch-(?P<epoch>\d+)\.[0-9a-f]{32}")


def file_of(folder: Path, epoch_id: int) -> Path:
    """The file of an epoch. Names sort in the order of the epochs."""
    return folder / f"epoch-{epoch_id:010d}.zip"


def files_in(folder: Path) -> Mapping[int, Path]:
    """The epoch files in a folder, by epoch, in order; empty if there is no such folder.

    Raises:
        SavepointFileError: the folder cannot be read.
    """
    return _found(folder, _FILE)


def is_there(savepoint: Savepoint, folder: Path) -> bool:
    """Whether the epoch's file is in the folder: whole, and of this ledger and not of another one."""
    try:
        with file_of(folder, savepoint.epoch_id).open("rb") as file:
            found, _, _ = read_description(file)
    except (OSError, SavepointFileError):
        return False
    return (found.pipeline, found.made_at, found.heads) == (savepoint.pipeline, savepoint.made_at, savepoint.heads)


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
        for epoch, draft in _found(folder, _DRAFT).items():
            if epoch < epoch_id:
                draft.unlink(missing_ok=True)


def _found(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
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
