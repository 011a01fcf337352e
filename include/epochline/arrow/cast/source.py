"""Bring the records from Kafka to one schema, whatever Arrow types Spark gives them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from epochline.errors import EpochlineError

_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_type": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}

SOURCE_SCHEMA = pa.schema(_TYPES)
"""The argument of ``parse``. ``headers`` is NULL if the reader does not read them."""

TRAVELLING_SCHEMA = pa.schema(_TYPES | {"headers": pa.string()})
"""Records on their way from Spark: ``headers`` is JSON, a list of [name, base64 of the value or null]."""

_NEEDED = ("topic", "partition", "offset", "value")


class ColumnMismatchError(EpochlineError):
    """A batch lacks a column, or a column's type cannot be cast to the declared one. The attempt fails."""


def source_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bring a batch of source records to `SOURCE_SCHEMA`, or to `TRAVELLING_SCHEMA` if its headers are text.

    Raises:
        ColumnMismatchError: a column is missing, or its type cannot be cast.
    """
    wanted = TRAVELLING_SCHEMA if _headers_are_text(batch) else SOURCE_SCHEMA
    if batch.schema.equals(wanted):
        return batch
    columns = []
    for field in wanted:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            if field.name in _NEEDED:
                raise ColumnMismatchError(f"the source has no column {field.name!r}; it has {batch.schema.names}")
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(at)
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except pa.ArrowException as error:
            raise ColumnMismatchError(f"the source's column {field.name!r} ({column.type}): {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def stored_record(
    topic: str,
    partition: int,
    offset: int,
    timestamp: datetime | None,
    key: Any,
    value: Any,
    headers: Sequence[Sequence[str | None]] | None,
) -> dict[str, Any]:
    """A quarantined record, as the ledger stores it, as a row of `TRAVELLING_SCHEMA`. It has no ``timestamp_type``.

    Args:
        topic: of the record.
        partition: of the record.
        offset: of the record.
        timestamp: of the record, as Kafka has it.
        key: bytes or a buffer, or None.
        value: bytes or a buffer, or None.
        headers: pairs of name and base64 of the value or None.
    """
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "timestamp_type": None,
        "key": None if key is None else bytes(key),
        "value": None if value is None else bytes(value),
        "headers": None if headers is None else json.dumps(headers),
    }


def with_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bring a batch of `source_batch` to `SOURCE_SCHEMA`: a user's function receives headers as a list."""
    if not _headers_are_text(batch):
        return batch
    headers = [
        None if pairs is None else [{"key": name, "value": value} for name, value in pairs]
        for pairs in header_pairs(batch.column("headers"))
    ]
    columns = [*batch.columns[:-1], pa.array(headers, SOURCE_SCHEMA.field("headers").type)]
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)


def header_pairs(headers: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    """Name and value of each header, by record; None for a record without headers.

    Args:
        headers: the column of either schema.
    """
    if pa.types.is_string(headers.type):
        return [None if text is None else _pairs(json.loads(text)) for text in headers.to_pylist()]
    if headers.null_count == len(headers):
        return [None] * len(headers)
    # As bytes, because the name of a header may be invalid UTF-8, on which Arrow raises.
    raw: pa.Array = headers.cast(pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])))
    return [
        None if pairs is None else [((one["key"] or b"").decode("utf-8", "replace"), one["value"]) for one in pairs]
        for pairs in raw.to_pylist()
    ]


def _pairs(written: list[tuple[str | None, str | None]]) -> list[tuple[str, bytes | None]]:
    return [(name or "", None if text is None else base64.b64decode(text)) for name, text in written]


def _headers_are_text(batch: pa.RecordBatch) -> bool:
    at = batch.schema.get_field_index("headers")
    return at >= 0 and pa.types.is_string(batch.schema.field(at).type)
