"""Writes the file of one Spark partition: Parquet, CSV for PostgreSQL's COPY, or JSON lines that `Json` can read."""

import base64
import hashlib
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from epochline.arrow.cast.calendar import spelled_out
from epochline.arrow.cast.csv_text import csv_rows
from epochline.arrow.cast.types import column_type, record_schema
from epochline.declare.columns import INTEGERS, ColumnType
from epochline.declare.specs import FilesSpec
from epochline.errors import EpochlineError, SinkError
from epochline.failpoints import failpoint
from epochline.sinks.storage import Storage, reaching

_ROW_GROUP = 16 * 2**20
"""Bytes in Arrow's memory per row group. Groups of single batches would be too small for readers to skip."""

_NUMERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_quoted = json.JSONEncoder(ensure_ascii=False).encode


class RowFormat(ABC):
    """Writes batches to one open file, given the columns."""

    @abstractmethod
    def __init__(self, file: Any, columns: Mapping[str, str]) -> None: ...

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows."""

    def end(self) -> None:
        """Write what follows the last row, without closing the file. By default nothing."""
        return


class ParquetRows(RowFormat):
    """Parquet, with the Arrow type of every column."""

    def __init__(self, file: Any, columns: Mapping[str, str]) -> None:
        self._schema = record_schema(columns)
        self._writer = pq.ParquetWriter(file, self._schema)
        self._waiting: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows, in row groups of more than a batch."""
        self._waiting.append(batch)
        if sum(waiting.nbytes for waiting in self._waiting) >= _ROW_GROUP:
            self._write_group()

    def end(self) -> None:
        """Write the rest and the footer."""
        try:
            self._write_group()
            self._writer.close()
        finally:
            # A failed writer would otherwise try again when it is garbage-collected.
            self._writer.is_open = False

    def _write_group(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._writer.write_table(pa.Table.from_batches(waiting, self._schema))


class CsvRows(RowFormat):
    r"""CSV with a header line. Every text is quoted, NULL is not; bytes are ``\x`` and hexadecimal digits."""

    def __init__(self, file: Any, columns: Mapping[str, str]) -> None:
        self._file = file
        doubled = (name.replace('"', '""') for name in columns)
        file.write((",".join(f'"{name}"' for name in doubled) + "\n").encode())

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows."""
        self._file.write(csv_rows(batch))


class JsonRows(RowFormat):
    """One JSON object per line with every column as a member: JSON documents unchanged, bytes in base64.

    Numbers that JSON cannot write (NaN, infinity) are strings, as in PostgreSQL's ``to_json``.
    """

    def __init__(self, file: Any, columns: Mapping[str, str]) -> None:
        self._file = file
        names = [f"{',' if at else '{'}{_quoted(name)}:" for at, name in enumerate(columns)]
        kinds = [column_type(text) for text in columns.values()]
        self._members = [(name, _member(kind)) for name, kind in zip(names, kinds, strict=True)]

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows."""
        pieces: list[Any] = []
        for (name, member), column in zip(self._members, batch.columns, strict=True):
            pieces += [name, pc.fill_null(member(column), "null")]
        lines = pc.binary_join_element_wise(*pieces, "}\n", "")
        self._file.write("".join(lines.to_pylist()).encode())


class _Digested(io.BufferedIOBase):
    """Writes to a file, and digests what it writes. To close it leaves the file open."""

    def __init__(self, file: Any) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        written: int = self._file.write(data)
        return written


FORMATS: Mapping[str, type[RowFormat]] = {"parquet": ParquetRows, "csv": CsvRows, "json": JsonRows}


class FilePart:
    """Writes the rows of one Spark partition into one file. Without rows it writes no file.

    `SinkError` says that this user may not write there, `SinkUnavailableError` that the storage is away or full.
    """

    def __init__(self, files: FilesSpec, storage: Storage, folder: str, name: str) -> None:
        self._files = files
        self._storage = storage
        self._name = name
        self._path = f"{folder}/{name}"
        self._file: Any = None
        self._digested: _Digested | None = None
        self._format: RowFormat | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that were cast to the columns of the sink."""
        schema = record_schema(self._files.written)
        if not batch.schema.equals(schema):
            raise EpochlineError(
                f"{self._files.name}: expected a batch of ({schema.to_string()}), got ({batch.schema.to_string()})"
            )
        if batch.num_rows == 0:
            return
        if self._format is None:
            self._file = self._storage.create(self._path)
        with reaching(self._files.name):
            if self._format is None:
                self._digested = _Digested(self._file)
                self._format = FORMATS[self._files.format](self._digested, self._files.written)
            self._format.write(batch)
        self._rows += batch.num_rows

    def finish(self) -> Mapping[str, Any]:
        """Complete the file and make it durable."""
        if self._format is None or self._digested is None:
            return {}
        failpoint("files.write")
        with reaching(self._files.name):
            self._format.end()
        size = self._storage.close(self._file, self._path)
        self._file = None
        return {"file": self._name, "rows": self._rows, "bytes": size, "sha256": self._digested.digest.hexdigest()}

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


def _member(kind: ColumnType) -> Callable[[pa.Array], pa.Array]:
    """Return the function that writes a column's values in JSON; NULL stays NULL."""
    if kind.name == "boolean" or kind.name in INTEGERS or (kind.name == "numeric" and kind.precision is not None):
        return lambda column: column.cast(pa.string())
    if kind.name in ("real", "double precision"):
        return _floats
    if kind.name == "numeric":
        return lambda column: _each(column, _number)
    if kind.name in ("json", "jsonb"):
        # Line breaks in a document are only between its tokens, where a space means the same.
        return lambda column: pc.replace_substring_regex(column, r"[\r\n]", " ")
    if kind.name == "bytea":
        return lambda column: _each(column, lambda value: f'"{base64.b64encode(value).decode()}"')
    if kind.name == "date" or kind.name.startswith("timestamp"):
        return _moments
    if kind.name == "time without time zone":
        return lambda column: _each(spelled_out(column).cast(pa.string()), _quoted)
    return lambda column: _each(column.cast(pa.string()), _quoted)


def _each(column: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], pa.string())


def _number(text: str) -> str:
    return text if _NUMERAL.fullmatch(text) else _quoted(text)


def _floats(column: pa.Array) -> pa.Array:
    plain = column.cast(pa.string())
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return plain
    named = pc.if_else(pc.is_nan(column), '"NaN"', pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(pc.is_finite(column), plain, named)


def _moments(column: pa.Array) -> pa.Array:
    spelled = spelled_out(column)
    texts = spelled.cast(pa.string())
    if pa.types.is_timestamp(spelled.type):
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return pc.binary_join_element_wise('"', texts, '"', "")
