"""File formats: Parquet, CSV for PostgreSQL's COPY, and JSON lines that `Json` can read."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from epochline.arrow.cast.calendar import spelled_out
from epochline.arrow.cast.types import column_type, record_schema
from epochline.arrow.stage.encoding import csv_rows
from epochline.declare.columns import INTEGERS, ColumnType
from epochline.errors import EpochlineError

_ROW_GROUP = 16 * 2**20
"""Bytes in Arrow's memory per row group. Groups of single batches would be too small for readers to skip."""

_NUMERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_quoted = json.JSONEncoder(ensure_ascii=False).encode


class RowFormat(Protocol):
    """Writes batches to one file."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows."""

    def end(self) -> None:
        """Write what follows the last row, without closing the file."""


class ParquetRows:
    """Parquet, with the Arrow type of every column."""

    def __init__(self, file: Any, columns: Mapping[str, str]) -> None:
        self._schema = record_schema(columns)
        self._writer = pq.ParquetWriter(file, self._schema)
        self._waiting: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows, in row groups of more than a batch."""
        self._waiting.append(batch)
        if sum(one.nbytes for one in self._waiting) >= _ROW_GROUP:
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


class CsvRows:
    r"""CSV with a header line. Every text is quoted, NULL is not; bytes are ``\x`` and hexadecimal digits."""

    def __init__(self, file: Any, columns: Mapping[str, str]) -> None:
        self._file = file
        doubled = (name.replace('"', '""') for name in columns)
        file.write((",".join(f'"{name}"' for name in doubled) + "\n").encode())

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows."""
        self._file.write(csv_rows(batch))

    def end(self) -> None:
        """Do nothing: CSV has no footer."""


class JsonRows:
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

    def end(self) -> None:
        """Do nothing: JSON lines have no footer."""


FORMATS: Mapping[str, Callable[[Any, Mapping[str, str]], RowFormat]] = {
    "parquet": ParquetRows,
    "csv": CsvRows,
    "json": JsonRows,
}
"""Constructors by format name; each takes an open file and the columns."""


def check_batch(batch: pa.RecordBatch, columns: Mapping[str, str], sink: str) -> None:
    """Check that a batch was cast to the columns of the sink.

    Raises:
        EpochlineError: the batch has another schema.
    """
    schema = record_schema(columns)
    if not batch.schema.equals(schema):
        raise EpochlineError(f"{sink}: expected a batch of ({schema.to_string()}), got ({batch.schema.to_string()})")


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
