"""The batches that a parse receives and returns: records in one schema, and checks of what functions return."""

import base64
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from epochline.arrow.cast.reasons import any_true, printable
from epochline.arrow.cast.types import record_schema
from epochline.declare.columns import QUARANTINE_COLUMNS
from epochline.errors import BatchContractError, ColumnMismatchError

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
    """Records of one partition in `SOURCE_SCHEMA`; a time that it cannot hold becomes NULL."""
    rows = len(columns["offset"])
    headers = [pairs and _named(pairs) for pairs in columns["headers"]] if any(columns["headers"]) else [None] * rows
    arrays: dict[str, pa.Array] = {
        "topic": pa.repeat(pa.scalar(topic, pa.string()), rows),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
        "timestamp": _times(columns["timestamp"]),
        "headers": pa.array(headers, _HEADERS),
    }
    for name in ("offset", "timestamp_type", "key", "value"):
        arrays[name] = pa.array(columns[name], _TYPES[name])
    return pa.RecordBatch.from_arrays([arrays[name] for name in SOURCE_SCHEMA.names], schema=SOURCE_SCHEMA)


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
        "headers": None
        if headers is None
        else _named([(name or "", None if value is None else base64.b64decode(value)) for name, value in headers]),
    }


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
    pairs = header_pairs(taken.column("headers"))
    columns.append(pa.array([None if headers is None else _header_text(headers) for headers in pairs], pa.string()))
    columns.append(pa.array([printable(reasons[row]) for row in rows], pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _header_text(pairs: list[tuple[str, bytes | None]]) -> str:
    written = [
        [name.replace("\0", _NUL_REPLACEMENT), None if value is None else base64.b64encode(value).decode()]
        for name, value in pairs
    ]
    return json.dumps(written, ensure_ascii=False)


BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]

ERROR, SKIP = "_error", "_skip"


def call(what: str, function: BatchFunction, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Call a user's function, as ``what`` names it; raises `BatchContractError` unless rows match one to one."""
    returned = function(batch)
    if isinstance(returned, pa.Table):
        returned = returned.combine_chunks()
        chunks = returned.to_batches()
        returned = chunks[0] if chunks else pa.RecordBatch.from_pylist([], schema=returned.schema)
    if not isinstance(returned, pa.RecordBatch):
        raise BatchContractError(f"{what} returned a {type(returned).__name__}; it must return an Arrow record batch")
    if returned.num_rows != batch.num_rows:
        raise BatchContractError(
            f"{what} returned {returned.num_rows} rows for {batch.num_rows}; it must return one row per input row, in"
            " order. Mark rows with _error or _skip instead of leaving them out, and declare explode for several rows"
            " per record"
        )
    if len(set(returned.schema.names)) != len(returned.schema.names):
        raise BatchContractError(f"{what} returned two columns with the same name: {', '.join(returned.schema.names)}")
    return returned


def require_columns(what: str, batch: pa.RecordBatch, names: Iterable[str]) -> None:
    """Raise `ColumnMismatchError` if a batch lacks a column."""
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise ColumnMismatchError(
            f"{what} returned no column {', '.join(missing)}; it returned {', '.join(batch.schema.names) or 'none'}"
        )


def refuse_generated(what: str, names: Iterable[str], generated: Collection[str]) -> None:
    """Raise `ColumnMismatchError` for values of generated columns: PostgreSQL takes none, and would store others."""
    refused = [name for name in names if name in generated]
    if refused:
        raise ColumnMismatchError(
            f"{what} has {', '.join(refused)}, which the table generates: it would store other values. Leave the column"
            " out, or run ALTER TABLE … ALTER COLUMN … SET GENERATED BY DEFAULT on an identity column"
        )


def marks(what: str, batch: pa.RecordBatch) -> tuple[dict[int, str], list[int]]:
    """The text of ``_error`` per row, and the skipped rows without one; raises `BatchContractError` for other types."""
    errors: dict[int, str] = {}
    skipped: list[int] = []
    if ERROR in batch.schema.names:
        column = batch.column(ERROR)
        if not (pa.types.is_null(column.type) or _is_text(column.type)):
            raise BatchContractError(f"{what}: {ERROR} has type {column.type}; it must be text")
        if column.null_count < len(column):
            errors = {row: str(reason) for row, reason in enumerate(column.to_pylist()) if reason is not None}
    if SKIP in batch.schema.names:
        column = batch.column(SKIP)
        if not (pa.types.is_null(column.type) or pa.types.is_boolean(column.type)):
            raise BatchContractError(f"{what}: {SKIP} has type {column.type}; it must be boolean")
        if not pa.types.is_null(column.type) and any_true(column):
            skipped = [row for row, skip in enumerate(column.to_pylist()) if skip and row not in errors]
    return errors, skipped


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
