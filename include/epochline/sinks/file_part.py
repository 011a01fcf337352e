"""One file of one Spark partition, written batch by batch on an executor."""

from __future__ import annotations

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
    """Writes the rows of one Spark partition into one file; no rows, no file."""

    def __init__(self, files: FilesSpec, storage: Storage, folder: str, name: str) -> None:
        self._files = files
        self._storage = storage
        self._name = name
        self._path = f"{folder}/{name}"
        self._file: Any = None
        self._format: RowFormat | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take some rows, cast to the columns of the sink.

        Raises:
            EpochlineError: they were not cast.
            SinkError: nobody may write there.
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
        """Complete the file, and have it safe.

        Raises:
            SinkError: nobody may write there.
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
        """Take away a file that was not finished, if that can be done; its attempt's end will otherwise."""
        if self._file is None:
            return
        file, self._file = self._file, None
        if self._format is not None:
            # Else Parquet's writer would try when nobody listens any more.
            with suppress(Exception):
                self._format.end()
        with suppress(Exception):
            file.close()
        with suppress(SinkError):
            self._storage.remove_file(self._path)
