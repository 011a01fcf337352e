"""Parses of the crash suite's records: one gives each a time, the other a one to add."""

from typing import Any

import pyarrow as pa

RECORD = {"value": "text", "at": "timestamptz"}
COUNTED = {"value": "text", "one": "bigint"}


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The value as text, an error if it is not text, and the record's own timestamp."""
    values: list[str | None] = []
    errors: list[str | None] = []
    given: list[Any] = batch.column("value").to_pylist()
    for value in given:
        try:
            values.append(value.decode())
            errors.append(None)
        except UnicodeDecodeError:
            values.append(None)
            errors.append("is no text")
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.string()), batch.column("timestamp"), pa.array(errors, pa.string())],
        names=["value", "at", "_error"],
    )


def count(batch: pa.RecordBatch) -> pa.RecordBatch:
    parsed = parse(batch)
    ones = pa.array([1] * batch.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays(
        [parsed.column("value"), ones, parsed.column("_error")], names=["value", "one", "_error"]
    )
