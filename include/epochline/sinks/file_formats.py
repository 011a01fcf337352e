"""How rows become the bytes of a file: Parquet, CSV as PostgreSQL's COPY reads it, JSON lines as `Json` reads them."""

from __future__ import annotations

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
"""Bytes in Arrow's memory after which a row group is written: a batch alone would make groups too small to skip by."""

_NUMERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_quoted = json.JSONEncoder(ensure_ascii=False).encode


class RowFormat(Protocol):
    """Turns batches into the bytes of one file."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows."""

    def end(self) -> None:
        """No more rows; the file itself stays open."""


class ParquetRows:
    """Parquet, every column in the type that Arrow holds it in."""

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
            # A writer that failed would try once more when it is thrown away.
            self._writer.is_open = False

    def _write_group(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._writer.write_table(pa.Table.from_batches(waiting, self._schema))


class CsvRows:
    r"""CSV with a header line; every text in quotes and NULL not, bytes as ``\x`` and hexadecimal digits."""

    def __init__(self, file: Any, columns: Mapping[str, str]) -> None:
        self._file = file
        doubled = (name.replace('"', '""') for name in columns)
        file.write((",".join(f'"{name}"' for name in doubled) + "\n").encode())

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows."""
        self._file.write(csv_rows(batch))

    def end(self) -> None:
        """Nothing follows the last row."""


class JsonRows:
    """One JSON object per line with every column as a member: documents as they are, bytes in base64.

    A number that JSON has no word for (NaN, infinity) is a text, as PostgreSQL's own ``to_json`` writes it.
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
        """Nothing follows the last row."""


FORMATS: Mapping[str, Callable[[Any, Mapping[str, str]], RowFormat]] = {
    "parquet": ParquetRows,
    "csv": CsvRows,
    "json": JsonRows,
}
"""By the declaration's word for it: from an open file and the columns to what writes rows there."""


def check_batch(batch: pa.RecordBatch, columns: Mapping[str, str], sink: str) -> None:
    """See that a batch was cast to the columns of the sink.

    Raises:
        EpochlineError: it was not.
    """
    schema = record_schema(columns)
    if not batch.schema.equals(schema):
        raise EpochlineError(
            f"{sink}: a batch of ({batch.schema.to_string()}) was to be written as ({schema.to_string()})"
        )


def _member(kind: ColumnType) -> Callable[[pa.Array], pa.Array]:
    """How a column's values are written in JSON; NULL stays NULL."""
    if kind.name == "boolean" or kind.name in INTEGERS or (kind.name == "numeric" and kind.precision is not None):
        return lambda column: column.cast(pa.string())
    if kind.name in ("real", "double precision"):
        return _floats
    if kind.name == "numeric":
        return lambda column: _each(column, _number)
    if kind.name in ("json", "jsonb"):
        # Line breaks inside a document stand between its tokens alone, where a space means the same.
        return lambda column: pc.replace_substring_regex(column, r"[\r\n]", " ")
    if kind.name == "bytea":
        return lambda column: _each(column, lambda value: f'"{base64.b64encode(value).decode()}"')
    if kind.name == "date" or kind.name.startswith("timestamp"):
        return _moments
    return lambda column: _each(column.cast(pa.string()), _quoted)


def _each(column: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], pa.string())


def _number(text: str) -> str:
    return text if _NUMERAL.fullmatch(text) else _quoted(text)


def _floats(column: pa.Array) -> pa.Array:
    plain = column.cast(pa.string())
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return plain
    said = pc.if_else(pc.is_nan(column), '"NaN"', pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(pc.is_finite(column), plain, said)


def _moments(column: pa.Array) -> pa.Array:
    spelled = spelled_out(column)
    texts = spelled.cast(pa.string())
    if pa.types.is_timestamp(spelled.type):
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return pc.binary_join_element_wise('"', texts, '"', "")
