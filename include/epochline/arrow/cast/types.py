"""The Arrow types that carry PostgreSQL's types between parse and COPY, and the bytes of their arrays."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochline.declare.columns import Carrier, ColumnType, parse_type

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "time without time zone": pa.time64("us"),
}


def column_type(text: str) -> ColumnType:
    """Parse the type of a staging table's column. A name that is no supported type is an enum of the target."""
    try:
        return parse_type(text)
    except ValueError:
        return ColumnType(name=text, carrier=Carrier.BINARY)  # the binary form of a label is its text


def column_types(columns: Mapping[str, str], labels: Mapping[str, tuple[str, ...]]) -> dict[str, ColumnType]:
    """The types of columns, with the labels of enums."""
    kinds = {name: column_type(text) for name, text in columns.items()}
    return kinds | {name: replace(kinds[name], labels=allowed) for name, allowed in labels.items()}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The Arrow type that holds every value of a column type, or ``string`` if Arrow has no such type."""
    if kind.name == "numeric" and kind.precision is not None:
        return (pa.decimal256 if kind.is_wide else pa.decimal128)(kind.precision, kind.scale or 0)
    return _ARROW.get(kind.name, pa.string())


def record_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema of columns with PostgreSQL types, in their order."""
    return pa.schema([(name, arrow_type(column_type(text))) for name, text in columns.items()])


class ByteLayout(NamedTuple):
    """Starts and lengths of the rows' bytes within ``data``; a NULL has the length 0."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    data: memoryview


def byte_layout(array: pa.Array) -> ByteLayout:
    """The layout of an array of type ``binary`` or ``string`` (32-bit offsets). A slice gives only its own bytes."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        empty = np.zeros(0, np.int64)
        return ByteLayout(empty, empty, memoryview(b""))
    ends = np.frombuffer(memoryview(offsets), np.int32, count=len(array) + 1, offset=array.offset * 4)
    bounds = ends.astype(np.int64)
    whole = memoryview(b"" if data is None else data)
    return ByteLayout(bounds[:-1] - bounds[0], np.diff(bounds), whole[int(bounds[0]) : int(bounds[-1])])


def hexadecimal(array: pa.Array) -> pa.Array:
    r"""Each row in PostgreSQL's text form of ``bytea``: ``\x`` and two digits per byte. NULL stays NULL."""
    layout = byte_layout(array)
    digits = bytes(layout.data).hex().encode()
    rows = zip(array.is_valid().to_pylist(), (layout.starts * 2).tolist(), (layout.lengths * 2).tolist(), strict=True)
    texts = [b"\\x" + digits[start : start + length] if valid else None for valid, start, length in rows]
    return pa.array(texts, pa.binary()).cast(pa.string())
