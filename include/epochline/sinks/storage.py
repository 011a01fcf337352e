"""Storage of a file sink: an object store or HDFS through fsspec, or a disk, where folders can be renamed."""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from epochline.errors import EpochlineError, SinkError, SinkUnavailableError

STAGING = "_epochline/staging"
"""Parent of the attempts' folders, relative to the sink's folder."""

_HDFS_PATIENCE_SECONDS = 60
"""How long a request to HDFS may take without an answer; the client of fsspec would wait for ever."""

_HOPELESS = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EXDEV, errno.ELOOP,
    errno.EINVAL, errno.ENOSYS,
}  # fmt: skip


@contextmanager
def reaching(sink: str) -> Iterator[None]:
    """Turn a file system's errors into ours, which say whether a retry helps.

    Raises:
        SinkError: the file system refuses, and a retry gives the same.
        SinkUnavailableError: the file system did not answer or is full, or a file is missing.
    """
    try:
        yield
    except (EpochlineError, ValueError, TypeError, LookupError):
        raise  # raised for an argument, not by the file system
    except Exception as error:  # every store's driver has its own errors
        reason = f"{sink} cannot be reached or written: {type(error).__name__}: {error}."
        if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in _HOPELESS):
            raise SinkError(f"{reason} Give this user a folder that it may write.") from error
        if isinstance(error, FileNotFoundError):
            reason += " It was removed meanwhile, or it is not the same folder on every host."
        raise SinkUnavailableError(f"{reason} Nothing was lost; try again when it answers.") from error


class Storage:
    """Files below a sink's folder, by paths relative to it.

    This class is for object stores: a file appears once it is complete, nothing is renamed, and folders are only
    prefixes of names. A conditional PUT (``If-None-Match: *``) keeps the first of two files with one name.

    Args:
        files: fsspec's file system.
        root: the sink's folder in it.
        sink: name of the sink, for errors.
    """

    def __init__(self, files: Any, root: str, sink: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._sink = sink

    def make_folder(self, folder: str) -> None:
        """Create a folder; an existing one is no error."""

    def create(self, path: str) -> Any:
        """Open a new file for writing; `close` must close it."""
        with reaching(self._sink):
            return self._files.open(self._whole(path), "wb")

    def close(self, file: Any, path: str) -> int:
        """Close a complete file and return its size in bytes. The file is durable on return."""
        with reaching(self._sink):
            size: int = file.tell()
            file.close()
            return size

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes in bytes of the files in a folder, by name; empty if there is no such folder."""
        with reaching(self._sink):
            try:
                listing = self._files.ls(self._whole(folder), detail=True)
            except FileNotFoundError:
                return {}
            return {file["name"].rpartition("/")[2]: file["size"] for file in listing if file["type"] == "file"}

    def digest(self, path: str) -> str | None:
        """The SHA-256 of a file; None in a store, which checks its bytes itself, and where reading may be dear."""
        return None

    def gather(self, folder: str, names: list[str]) -> str:
        """Move files of an attempt's folder where no writer can add to them; return their folder."""
        return folder

    def target(self, sealed: str, epoch_id: int) -> str:
        """The folder in which an epoch's files are shown; `gather` returned ``sealed``."""
        return sealed

    def move(self, sealed: str, target: str) -> bool:
        """Move a folder atomically, if it still exists; False if another folder has the target's name."""
        return True

    def settle(self, target: str) -> None:
        """Make a `move` durable, even one of another process."""

    def put(self, path: str, data: bytes, scratch: str) -> None:
        """Store a small file atomically: a reader finds it complete or not at all.

        If the file exists, it is kept and no error is raised. Read the file to find out whose it is.

        A crash may leave temporary files behind in the folder ``scratch``.
        """
        with reaching(self._sink), suppress(FileExistsError):
            self._files.pipe_file(self._whole(path), data, mode="create")

    def read(self, path: str) -> bytes:
        """Read a small file."""
        with reaching(self._sink):
            content: bytes = self._files.cat_file(self._whole(path))
            return content

    def remove(self, folder: str, keep: frozenset[str] = frozenset()) -> None:
        """Remove a folder except the files to keep; a missing folder is no error."""
        # File by file, because fsspec treats a folder's name as a pattern.
        for name in self.sizes(folder):
            if name not in keep:
                self.remove_file(f"{folder}/{name}")

    def remove_file(self, path: str) -> None:
        """Remove a file; a missing file is no error."""
        with reaching(self._sink), suppress(FileNotFoundError):
            self._files.rm_file(self._whole(path))

    def _whole(self, path: str) -> str:
        return f"{self._root}/{path}"


class LocalDisk(Storage):
    """A local or mounted disk, which shows the files of an epoch by renaming their folder.

    The result of each step is on the disk before the next step begins.
    """

    def make_folder(self, folder: str) -> None:
        """Create a folder and its parents; an existing one is no error."""
        with reaching(self._sink):
            os.makedirs(self._whole(folder), exist_ok=True)
            while folder:
                self._sync(folder)
                folder = folder.rpartition("/")[0]
            self._sync("")

    def close(self, file: Any, path: str) -> int:
        """Close a complete file once its bytes and its name are on the disk; return its size in bytes."""
        with reaching(self._sink):
            file.flush()
            os.fsync(file.fileno())
            size = super().close(file, path)
            self._sync(path.rpartition("/")[0])
            return size

    def digest(self, path: str) -> str | None:
        """The SHA-256 of a file, in hexadecimal digits."""
        with reaching(self._sink), open(self._whole(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def gather(self, folder: str, names: list[str]) -> str:
        """Move files into a folder that no writer knows, so that a rename shows no other file.

        A task that still runs after its attempt was sealed may be writing a file in the attempt's folder.
        """
        sealed = f"{folder}/sealed"
        with reaching(self._sink):
            with suppress(FileExistsError):  # of an earlier try; where the attempt's folder is gone, it was aborted
                os.mkdir(self._whole(sealed))
            for name in names:
                with suppress(FileNotFoundError):  # moved by an earlier try, or missing, which the seal reports
                    os.rename(self._whole(f"{folder}/{name}"), self._whole(f"{sealed}/{name}"))
            self._sync(sealed)
            self._sync(folder)
        return sealed

    def target(self, sealed: str, epoch_id: int) -> str:
        """A folder that Hive and Spark read as a partition."""
        return f"epoch={epoch_id:010d}"

    def move(self, sealed: str, target: str) -> bool:
        """Rename a folder, if it still exists; False if another folder has the target's name."""
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
        """Sync the new name to the disk, even after a rename by another process."""
        with reaching(self._sink):
            self._sync(target)
            self._sync("")

    def put(self, path: str, data: bytes, scratch: str) -> None:
        """Store a small file atomically, by a rename from ``scratch``."""
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
        """Remove a folder with all its content: files to keep have been moved out of it."""
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


class Hdfs(Storage):
    """HDFS through WebHDFS: a file is shown while it is written, and a rename to a name that exists changes nothing.

    So a small file is written under another name and renamed. The files of an epoch stay where their attempt wrote
    them, as in an object store.
    """

    def __init__(self, files: Any, root: str, sink: str) -> None:
        super().__init__(files, root, sink)
        files.session.request = partial(type(files.session).request, files.session, timeout=_HDFS_PATIENCE_SECONDS)

    def put(self, path: str, data: bytes, scratch: str) -> None:
        """Store a small file atomically, by a rename from ``scratch``. An existing file is kept."""
        new = self._whole(f"{scratch}/{uuid.uuid4().hex}")
        with reaching(self._sink):
            self._files.makedirs(self._whole(path.rpartition("/")[0]), exist_ok=True)
            self._files.pipe_file(new, data)
            # The NameNode refuses a rename to an existing file in its answer, and fsspec does not look at that answer.
            self._files.mv(new, self._whole(path))
            self._files.rm(new)

    def remove(self, folder: str, keep: frozenset[str] = frozenset()) -> None:
        """Remove a folder except the files to keep; without such files, the folder itself as well."""
        super().remove(folder, keep)
        if not keep:
            with reaching(self._sink):
                self._files.rm(self._whole(folder), recursive=True)


def storage_at(path: str, sink: str) -> Storage:
    """Open the storage of a path or URL.

    Raises:
        SinkError: fsspec does not know the URL's scheme, or its driver is not installed.
    """
    try:
        files, root = fsspec.url_to_fs(path, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        driver = "Run `pip install 'epochline[s3]'`" if path.startswith("s3") else "Install fsspec's driver"
        raise SinkError(f"{sink}: {error}. {driver} where Airflow and Spark's executors run.") from error
    if isinstance(files, LocalFileSystem):
        return LocalDisk(files, root, sink)
    return (Hdfs if "webhdfs" in files.protocol else Storage)(files, root, sink)
