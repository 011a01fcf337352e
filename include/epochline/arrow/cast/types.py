"""From PostgreSQL's types to Arrow's: what a column looks like between parse and COPY."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from epochline.declare.columns import Carrier, ColumnType, parse_type
from epochline.protocol.staging import StagedTable

_ARROW = {
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

_DECIMAL128_DIGITS = 38


def column_type(text: str) -> ColumnType:
    """Read a staged column's type; a name that is no supported type is an enum of the target.

    What cannot be carried was refused when it was declared or planned; here only staging's columns arrive.
    """
    try:
        return parse_type(text)
    except ValueError:
        return ColumnType(name=text, carrier=Carrier.TEXT)


def column_types(staged: StagedTable) -> dict[str, ColumnType]:
    """The types of a staging table's columns; those of enums know their labels."""
    kinds = {name: column_type(text) for name, text in staged.columns.items()}
    return kinds | {name: replace(kinds[name], labels=labels) for name, labels in staged.labels.items()}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The Arrow type that holds every value of a column type, except where Arrow has none: then ``string``.

    ``numeric`` without a precision has no Arrow type (each value has its own scale); it travels as text.
    """
    if kind.name == "numeric" and kind.precision is not None:
        wide = kind.precision > _DECIMAL128_DIGITS
        return (pa.decimal256 if wide else pa.decimal128)(kind.precision, kind.scale or 0)
    return _ARROW.get(kind.name, pa.string())


def record_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema of columns given by PostgreSQL types, in their order."""
    return pa.schema([(name, arrow_type(column_type(text))) for name, text in columns.items()])
