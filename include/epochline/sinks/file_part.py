"""Writes the file of one Spark partition, batch by batch, on an executor."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from epochline.declare.specs import FilesSpec
from epochline.errors import SinkError
from epochline.failpoints import failpoint
from epochline.sinks.file_formats import FORMATS, RowFormat, check_batch
from epochline.sinks.storage import Storage, reaching


class FilePart:
    """Writes the rows of one Spark partition into one file. Without rows it writes no file."""

    def __init__(self, files: FilesSpec, storage: Storage, folder: str, name: str) -> None:
        self._files = files
        self._storage = storage
        self._name = name
        self._path = f"{folder}/{name}"
        self._file: Any = None
        self._format: RowFormat | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that were cast to the columns of the sink.

        Raises:
            EpochlineError: the rows were not cast.
            SinkError: this user may not write there.
            SinkUnavailableError: the storage does not answer, or is full.
        """
        check_batch(batch, self._files.written, self._files.name)
        if batch.num_rows == 0:
            return
        if self._format is None:
            self._file = self._storage.create(self._path)
        with reaching(self._files.name):
            if self._format is None:
                self._format = FORMATS[self._files.format](self._file, self._files.written)
            self._format.write(batch)
        self._rows += batch.num_rows

    def finish(self) -> Mapping[str, Any]:
        """Complete the file and make it durable.

        Raises:
            SinkError: this user may not write there.
            SinkUnavailableError: the storage does not answer, or is full.
        """
        if self._format is None:
            return {}
        failpoint("files.write")
        with reaching(self._files.name):
            self._format.end()
        size = self._storage.close(self._file, self._path)
        self._file = None
        return {"file": self._name, "rows": self._rows, "bytes": size}

    def close(self) -> None:
        """Try to delete an unfinished file; otherwise the end of its attempt deletes it."""
        if self._file is None:
            return
        file, self._file = self._file, None
        if self._format is not None:
            # Otherwise Parquet's writer would end the file when it is garbage-collected, and raise there.
            with suppress(Exception):
                self._format.end()
        with suppress(Exception):
            file.close()
        with suppress(SinkError):
            self._storage.remove_file(self._path)
