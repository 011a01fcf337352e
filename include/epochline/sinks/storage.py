"""Where a file sink's files are: an object store through fsspec, or a disk, on which folders can be renamed."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from epochline.errors import EpochlineError, SinkError, SinkUnavailableError

STAGING = "_epochline/staging"
"""The folder, below the sink's own, in which each attempt has its folder."""

_SEALED = "sealed"
_HOPELESS = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EXDEV, errno.ELOOP,
    errno.EINVAL,
}  # fmt: skip


@contextmanager
def reaching(sink: str) -> Iterator[None]:
    """Say of what a file system raises whether another try helps.

    Raises:
        SinkError: it refuses, and will again.
        SinkUnavailableError: it did not answer, is full, or what was there is gone.
    """
    try:
        yield
    except (EpochlineError, ValueError, TypeError, LookupError):
        raise  # of what was given to a file system, not of the file system
    except Exception as error:  # every store's driver has errors of its own
        said = f"{sink} cannot be reached or written: {type(error).__name__}: {error}."
        if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in _HOPELESS):
            raise SinkError(f"{said} Give this user a folder that it may write.") from error
        if isinstance(error, FileNotFoundError):
            said += " Somebody removed it meanwhile, or it is not the same folder on every host."
        raise SinkUnavailableError(f"{said} Nothing was lost; try again when it answers.") from error


class Storage:
    """Files below a sink's folder, by paths relative to it.

    Here of an object store: a file is there once it is whole, nothing is renamed, and folders are but prefixes.

    Args:
        files: fsspec's file system.
        root: the sink's folder there.
        sink: names the sink in errors.
    """

    def __init__(self, files: Any, root: str, sink: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._sink = sink

    def make_folder(self, folder: str) -> None:
        """Make room for files; again is no error."""

    def create(self, path: str) -> Any:
        """A new file, to be written and then closed by `close`."""
        with reaching(self._sink):
            return self._files.open(self._whole(path), "wb")

    def close(self, file: Any, path: str) -> int:
        """Close a file that is complete; its size. Its bytes are safe now."""
        with reaching(self._sink):
            size: int = file.tell()
            file.close()
            return size

    def sizes(self, folder: str) -> dict[str, int]:
        """The files in a folder, and their sizes; none where there is no such folder."""
        with reaching(self._sink):
            try:
                found = self._files.ls(self._whole(folder), detail=True)
            except FileNotFoundError:
                return {}
            return {file["name"].rpartition("/")[2]: file["size"] for file in found if file["type"] == "file"}

    def gather(self, folder: str, names: list[str]) -> str:
        """Put these files of an attempt's folder where no writer can add to them; the folder they are in now."""
        return folder

    def target(self, sealed: str, epoch_id: int) -> str:
        """The folder in which an epoch's files are shown, after `gather` gave ``sealed``."""
        return sealed

    def move(self, sealed: str, target: str) -> bool:
        """Move a whole folder at once, if it is still there; False where another folder has the place."""
        return True

    def settle(self, target: str) -> None:
        """Make safe what `move` did, whoever did it."""

    def put(self, path: str, data: bytes, scratch: str) -> None:
        """Store a small file at once: a reader finds it whole or not at all.

        Args:
            path: of the file.
            data: all of it.
            scratch: a folder in which something may be left by a crash.
        """
        with reaching(self._sink):
            self._files.pipe_file(self._whole(path), data)

    def remove(self, folder: str, keep: frozenset[str] = frozenset()) -> None:
        """Remove a folder, or the files in it that are not to be kept; nothing there is no error."""
        # One by one: fsspec takes a whole folder's name for a pattern.
        for name in self.sizes(folder):
            if name not in keep:
                self.remove_file(f"{folder}/{name}")

    def remove_file(self, path: str) -> None:
        """Remove a file; not there is no error."""
        with reaching(self._sink), suppress(FileNotFoundError):
            self._files.rm_file(self._whole(path))

    def _whole(self, path: str) -> str:
        return f"{self._root}/{path}"


class LocalDisk(Storage):
    """A disk, or what is mounted as one: the files of an epoch are shown by renaming their folder.

    What a step did is on the disk before the next one begins.
    """

    def make_folder(self, folder: str) -> None:
        """Make the folder and those above it; again is no error."""
        with reaching(self._sink):
            os.makedirs(self._whole(folder), exist_ok=True)
            while folder:
                self._sync(folder)
                folder = folder.rpartition("/")[0]
            self._sync("")

    def close(self, file: Any, path: str) -> int:
        """Close a file that is complete, once its bytes and its name are on the disk; its size."""
        with reaching(self._sink):
            file.flush()
            os.fsync(file.fileno())
            size = super().close(file, path)
            self._sync(path.rpartition("/")[0])
            return size

    def gather(self, folder: str, names: list[str]) -> str:
        """Move these files into a folder that no writer knows, so that a rename can show no other file.

        A task that runs on after its attempt was sealed still has the attempt's folder, and may be in the middle of
        a file.
        """
        sealed = f"{folder}/{_SEALED}"
        with reaching(self._sink):
            os.makedirs(self._whole(sealed), exist_ok=True)
            for name in names:
                with suppress(FileNotFoundError):  # moved by an earlier try, or missing, which the seal will say
                    os.rename(self._whole(f"{folder}/{name}"), self._whole(f"{sealed}/{name}"))
            self._sync(sealed)
            self._sync(folder)
        return sealed

    def target(self, sealed: str, epoch_id: int) -> str:
        """A folder that Hive and Spark take for a partition."""
        return f"epoch={epoch_id:010d}"

    def move(self, sealed: str, target: str) -> bool:
        """Rename the folder, if it is still there; False where another folder has the place."""
        with reaching(self._sink):
            try:
                os.rename(self._whole(sealed), self._whole(target))
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
            return True

    def settle(self, target: str) -> None:
        """Have the new name on the disk, whoever gave it."""
        with reaching(self._sink):
            self._sync(target)
            self._sync("")

    def put(self, path: str, data: bytes, scratch: str) -> None:
        """Store a small file at once, by a rename from ``scratch``."""
        folder = path.rpartition("/")[0]
        self.make_folder(folder)
        new = self._whole(f"{scratch}/{uuid.uuid4().hex}.json")
        with reaching(self._sink):
            os.makedirs(self._whole(scratch), exist_ok=True)
            with open(new, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, self._whole(path))
            self._sync(folder)

    def remove(self, folder: str, keep: frozenset[str] = frozenset()) -> None:
        """Remove a folder with all that is in it: what was to be kept has been moved out of it."""
        with reaching(self._sink):
            for path, folders, names in os.walk(self._whole(folder), topdown=False):
                for name in names:
                    with suppress(FileNotFoundError):
                        os.unlink(f"{path}/{name}")
                for name in folders:
                    with suppress(FileNotFoundError):
                        os.rmdir(f"{path}/{name}")
            with suppress(FileNotFoundError):
                os.rmdir(self._whole(folder))

    def _sync(self, folder: str) -> None:
        descriptor = os.open(self._whole(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def storage_at(path: str, sink: str) -> Storage:
    """The storage that a path or URL names.

    Args:
        path: of the sink's folder.
        sink: names the sink in errors.

    Raises:
        SinkError: the URL is of a kind that fsspec does not know, or its driver is not installed.
    """
    try:
        files, root = fsspec.url_to_fs(path, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise SinkError(f"{sink}: {error}. Install fsspec's driver where Airflow and Spark's executors run.") from error
    return (LocalDisk if isinstance(files, LocalFileSystem) else Storage)(files, root, sink)
