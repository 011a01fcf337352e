"""Bring records from Kafka or the quarantine to the one schema that a parse receives, and back into the quarantine."""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from epochline.arrow.cast.reasons import printable
from epochline.arrow.cast.types import record_schema
from epochline.declare.columns import QUARANTINE_COLUMNS
from epochline.errors import ColumnMismatchError

_HEADERS: pa.DataType = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_type": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": _HEADERS,
}

SOURCE_SCHEMA = pa.schema(_TYPES)
"""The argument of ``parse``. ``headers`` is NULL if the reader does not read them."""

_OLDEST_MS, _NEWEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999. Kafka takes any number as a timestamp, and what lies beyond is no time for a reader."""

_NEEDED = ("topic", "partition", "offset", "value")


def source_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bring source records to `SOURCE_SCHEMA`; raises `ColumnMismatchError` if a column is missing or unfit."""
    if batch.schema.equals(SOURCE_SCHEMA):
        return batch
    columns = []
    for field in SOURCE_SCHEMA:
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
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)


def record_batch(topic: str, partition: int, columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    """Records of one partition, as `epochline.kafka.records.ReadSession.read` gives them, in `SOURCE_SCHEMA`.

    A time that the schema cannot hold becomes NULL.
    """
    rows = len(columns["offset"])
    headers = [pairs and _named(pairs) for pairs in columns["headers"]] if any(columns["headers"]) else [None] * rows
    given: dict[str, pa.Array] = {
        "topic": pa.repeat(pa.scalar(topic, pa.string()), rows),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
        "timestamp": _times(columns["timestamp"]),
        "headers": pa.array(headers, _HEADERS),
    }
    for name in ("offset", "timestamp_type", "key", "value"):
        given[name] = pa.array(columns[name], _TYPES[name])
    return pa.RecordBatch.from_arrays([given[name] for name in SOURCE_SCHEMA.names], schema=SOURCE_SCHEMA)


def _times(milliseconds: Sequence[int]) -> pa.Array:
    moments = np.asarray(milliseconds, np.int64)
    beyond = (moments < _OLDEST_MS) | (moments > _NEWEST_MS)
    microseconds = np.where(beyond, 0, moments) * 1000
    return pa.array(microseconds, pa.int64(), mask=beyond if beyond.any() else None).cast(_TYPES["timestamp"])


def _named(pairs: Sequence[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in pairs]


def stored_record(
    topic: str,
    partition: int,
    offset: int,
    timestamp: datetime | None,
    key: Any,
    value: Any,
    headers: Sequence[Sequence[str | None]] | None,
) -> dict[str, Any]:
    """A quarantined record, as the ledger stores it, as a row of `SOURCE_SCHEMA`; headers are pairs with base64."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "timestamp_type": None,
        "key": None if key is None else bytes(key),
        "value": None if value is None else bytes(value),
        "headers": None if headers is None else _named([_stored_header(*header) for header in headers]),
    }


def _stored_header(name: str | None, value: str | None) -> tuple[str, bytes | None]:
    return name or "", None if value is None else base64.b64decode(value)


def header_pairs(headers: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    """Name and value of each header, by record; None for a record without headers."""
    if headers.null_count == len(headers):
        return [None] * len(headers)
    # As bytes, because the name of a header may be invalid UTF-8, on which Arrow raises.
    raw: pa.Array = headers.cast(pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])))
    return [
        None
        if pairs is None
        else [((header["key"] or b"").decode("utf-8", "replace"), header["value"]) for header in pairs]
        for pairs in raw.to_pylist()
    ]


_SCHEMA = record_schema(QUARANTINE_COLUMNS)
# The quarantine stores headers as jsonb, which cannot hold NUL.
_NUL_REPLACEMENT = "\N{SYMBOL FOR NULL}"


def quarantine_batch(source: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """The quarantine's rows, in the records' order: the unchanged record and its reason."""
    rows = sorted(reasons)
    taken = source.take(pa.array(rows, pa.int64()))
    columns = [taken.column(name) for name in ("topic", "partition", "offset", "timestamp", "key", "value")]
    columns.append(pa.array(_header_texts(taken.column("headers")), pa.string()))
    columns.append(pa.array([printable(reasons[row]) for row in rows], pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _header_texts(headers: pa.Array) -> list[str | None]:
    return [None if pairs is None else _header_text(pairs) for pairs in header_pairs(headers)]


def _header_text(pairs: list[tuple[str, bytes | None]]) -> str:
    written = [
        [name.replace("\0", _NUL_REPLACEMENT), None if value is None else base64.b64encode(value).decode()]
        for name, value in pairs
    ]
    return json.dumps(written, ensure_ascii=False)
