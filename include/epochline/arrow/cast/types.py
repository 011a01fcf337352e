"""The Arrow types that carry PostgreSQL's types between parse and COPY."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from epochline.declare.columns import BINARY_DIGITS, ColumnType, enum_type, parse_type

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
    """Parse the type of a staging table's column. A name that is not a supported type is an enum of the target.

    Other unsupported types were refused by the declaration or the plan.
    """
    try:
        return parse_type(text)
    except ValueError:
        return enum_type(text)


def column_types(columns: Mapping[str, str], labels: Mapping[str, tuple[str, ...]]) -> dict[str, ColumnType]:
    """The types of columns, with the labels of enums."""
    kinds = {name: column_type(text) for name, text in columns.items()}
    return kinds | {name: replace(kinds[name], labels=allowed) for name, allowed in labels.items()}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The Arrow type that holds every value of a column type, or ``string`` if Arrow has no such type.

    ``numeric`` without a precision travels as text, because each value has its own scale.
    """
    if kind.name == "numeric" and kind.precision is not None:
        wide = kind.precision > BINARY_DIGITS
        return (pa.decimal256 if wide else pa.decimal128)(kind.precision, kind.scale or 0)
    return _ARROW.get(kind.name, pa.string())


def record_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema of columns with PostgreSQL types, in their order."""
    return pa.schema([(name, arrow_type(column_type(text))) for name, text in columns.items()])
