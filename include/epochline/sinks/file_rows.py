"""The rows of a file of a sink, as values that can be compared: read as its format spells them.

Nothing guesses a type: numbers would lose digits, and documents fit no column.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from epochline.declare.specs import FilesSpec
from epochline.sinks.file_part import FORMATS

_ROWS = 10_000
_BLOCK_BYTES = 64 * 2**20
"""The most bytes of a row in a CSV file."""

Values = Mapping[str, Sequence[Any]]
"""Some rows, column by column."""


def rows_in(file: Any, form: str, names: Sequence[str]) -> Iterator[Values]:
    """The rows of an open file, some at a time; ``form`` is the format of `Files`, ``names`` are the columns.

    Raises:
        ValueError, OSError, KeyError: the file is damaged, or lacks a column.
    """
    read = {"parquet": _parquet, "csv": _csv, "json": _json}[form]
    yield from read(file, names)


def rows_as_written(batch: pa.RecordBatch, files: FilesSpec) -> Iterator[Values]:
    """Rows of a sink, as a file of it would give them."""
    if batch.num_rows:
        written = io.BytesIO()
        rows = FORMATS[files.format](written, files.written)
        rows.write(batch.select(list(files.written)))
        rows.end()
        written.seek(0)
        yield from rows_in(written, files.format, list(files.written))


def _parquet(file: Any, names: Sequence[str]) -> Iterator[Values]:
    for batch in pq.ParquetFile(file).iter_batches(_ROWS):
        yield {name: _exact(batch.column(name)).to_pylist() for name in names}


def _exact(column: pa.Array) -> pa.Array:
    """Times as whole numbers: Python has no year after 9999."""
    if not pa.types.is_temporal(column.type):
        return column
    return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _csv(file: Any, names: Sequence[str]) -> Iterator[Values]:
    reader = pyarrow.csv.open_csv(
        file,
        read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            include_columns=list(names), column_types=dict.fromkeys(names, pa.string()), null_values=[""],
            strings_can_be_null=True, quoted_strings_can_be_null=False,
        ),
    )  # fmt: skip
    for batch in reader:
        yield {name: batch.column(name).to_pylist() for name in names}


def _json(file: Any, names: Sequence[str]) -> Iterator[Values]:
    rows: list[Mapping[str, Any]] = []
    for line in file:
        try:
            # A number as its bytes, so that it keeps its spelling and differs from a text.
            rows.append(json.loads(line, parse_int=str.encode, parse_float=str.encode))
        except RecursionError:  # of a document that is nested too deeply for Python
            rows.append(dict.fromkeys(names, hashlib.sha256(line).hexdigest()))
        if len(rows) == _ROWS:
            yield {name: [row[name] for row in rows] for name in names}
            rows = []
    if rows:
        yield {name: [row[name] for row in rows] for name in names}
