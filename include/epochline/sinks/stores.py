"""Opens the storage of a file sink: a disk, an object store, or HDFS."""

import uuid
from functools import partial
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from epochline.errors import SinkError
from epochline.sinks.storage import LocalDisk, Storage, reaching

_PATIENCE_SECONDS = 60
"""How long a request to HDFS may take without an answer; the client of fsspec would wait for ever."""


def storage_at(path: str, sink: str) -> Storage:
    """Open the storage of a path or URL.

    Raises:
        SinkError: fsspec does not know the URL's scheme, or its driver is not installed.
    """
    try:
        files, root = fsspec.url_to_fs(path, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise SinkError(f"{sink}: {error}. Install fsspec's driver where Airflow and Spark's executors run.") from error
    if isinstance(files, LocalFileSystem):
        return LocalDisk(files, root, sink)
    return (Hdfs if "webhdfs" in files.protocol else Storage)(files, root, sink)


class Hdfs(Storage):
    """HDFS through WebHDFS: a file is shown while it is written, and a rename to a name that exists changes nothing.

    So a small file is written under another name and renamed. The files of an epoch stay where their attempt wrote
    them, as in an object store.
    """

    def __init__(self, files: Any, root: str, sink: str) -> None:
        super().__init__(files, root, sink)
        files.session.request = partial(type(files.session).request, files.session, timeout=_PATIENCE_SECONDS)

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
