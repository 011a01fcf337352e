"""A parse of the crash suite's records that gives each a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

RECORD = {"value": "text", "at": "timestamptz"}


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
