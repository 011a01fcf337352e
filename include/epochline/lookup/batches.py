"""Add a looked-up column to the Arrow batches of a ``parse``."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa

from epochline.arrow.cast.batches import ERROR, marks, require_columns
from epochline.lookup.answers import Answer, KeyedLookup, Outcome

V = TypeVar("V")


def over_batches(
    lookup: KeyedLookup[Any, V], *, key: str, column: str, kind: pa.DataType
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Returns a function that adds a column of looked-up values to a batch. Rows keep their number and order.

    A row whose look-up failed or timed out gets an ``_error``; the pipeline's policy for bad records applies to it.
    Rows with an ``_error`` or ``_skip``, and rows whose key is NULL, are not looked up: their value is NULL. An
    ``_error`` names the class of the exception only, because its text could show a password or the key.

    In a ``transform``, pass ``lambda batches: map(function, batches)`` to ``mapInArrow``.

    Args:
        lookup: finds the values.
        key: the column with the keys.
        column: the new column.
        kind: the new column's Arrow type. A row whose value does not have this type gets an ``_error``.
    """
    what = f"the look-up of {column}"

    def enrich(batch: pa.RecordBatch) -> pa.RecordBatch:
        require_columns(what, batch, (key,))
        reasons, skipped = marks(what, batch)
        keys = batch.column(key).to_pylist()
        left_out = {*reasons, *skipped}
        rows = [row for row, value in enumerate(keys) if value is not None and row not in left_out]
        values: list[V | None] = [None] * len(keys)
        for answer in lookup.as_they_come(keys[row] for row in rows):
            row = rows[answer.position]
            values[row] = answer.value
            if (reason := _reason(what, lookup.timeout, answer)) is not None:
                reasons[row] = reason
        looked_up = _array(what, values, kind, reasons)
        kept = [name for name in batch.schema.names if name != ERROR]
        errors = pa.array([reasons.get(row) for row in range(len(keys))], pa.string())
        return pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in kept), looked_up, errors], names=[*kept, column, ERROR]
        )

    return enrich


def _reason(what: str, timeout: timedelta, answer: Answer[Any, Any]) -> str | None:
    if answer.outcome is Outcome.FAILED:
        return f"{what} failed ({type(answer.error).__name__})"
    if answer.outcome is Outcome.TIMED_OUT and answer.value is None:
        return f"{what} timed out after {timeout.total_seconds():g} s"
    return None


def _array(what: str, values: list[Any], kind: pa.DataType, reasons: dict[int, str]) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        valid = [_value_or_none(value, kind) for value in values]
        for row, (value, kept) in enumerate(zip(values, valid, strict=True)):
            if value is not None and kept is None:
                reasons.setdefault(row, f"{what} found a value of type {type(value).__name__}, not {kind}")
        return pa.array(valid, kind)


def _value_or_none(value: Any, kind: pa.DataType) -> Any:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError):
        return None
    return value
