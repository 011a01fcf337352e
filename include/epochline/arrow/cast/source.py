"""Bring the records from Kafka to one schema, whatever Arrow types Spark gives them."""

from __future__ import annotations

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

_NEEDED = ("topic", "partition", "offset", "value")


class ColumnMismatchError(EpochlineError):
    """A batch lacks a column, or a column's type cannot be cast to the declared one. The attempt fails."""


def source_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bring a batch of source records to `SOURCE_SCHEMA`.

    Raises:
        ColumnMismatchError: a column is missing, or its type cannot be cast.
    """
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
