"""A looked-up column for Arrow batches, as ``parse`` gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from epochline.arrow.cast.contract import ERROR, marks, require_columns
from epochline.lookup.asking import Answer, Outcome
from epochline.lookup.lookup import Lookup

V = TypeVar("V")


def over_batches(
    lookup: Lookup[Any, V, Any], *, key: str, column: str, kind: pa.DataType
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that adds a column of looked-up values to a batch, one row per row and in order.

    A row whose look-up failed or timed out gets an ``_error``, so that the pipeline's policy for bad records decides;
    it never waits longer than that. Rows that have an ``_error`` or ``_skip`` already, and those whose key is NULL, are
    not looked up: their value is NULL. A reason names the kind of an error and not its text, which could show a
    password or the key.

    In a ``transform`` it is given to ``mapInArrow``, as ``lambda batches: map(function, batches)``.

    Args:
        lookup: where the values are.
        key: the column with the keys.
        column: the new column.
        kind: its Arrow type. A value that it cannot hold is that row's error.
    """
    what = f"the look-up of {column}"

    def enriched(batch: pa.RecordBatch) -> pa.RecordBatch:
        require_columns(what, batch, (key,))
        reasons, skipped = marks(what, batch)
        keys = batch.column(key).to_pylist()
        left_out = {*reasons, *skipped}
        rows = [row for row, one in enumerate(keys) if one is not None and row not in left_out]
        values: list[V | None] = [None] * len(keys)
        for answer in lookup.as_they_come(keys[row] for row in rows):
            row = rows[answer.position]
            values[row] = answer.value
            if (reason := _reason(what, lookup, answer)) is not None:
                reasons[row] = reason
        found = _array(what, values, kind, reasons)
        kept = [name for name in batch.schema.names if name != ERROR]
        errors = pa.array([reasons.get(row) for row in range(len(keys))], pa.string())
        return pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in kept), found, errors], names=[*kept, column, ERROR]
        )

    return enriched


def _reason(what: str, lookup: Lookup[Any, V, Any], answer: Answer[Any, V]) -> str | None:
    if answer.outcome is Outcome.FAILED:
        return f"{what} failed ({type(answer.error).__name__})"
    if answer.outcome is Outcome.TIMED_OUT and answer.value is None:
        return f"{what} timed out after {lookup.timeout.total_seconds():g} s"
    return None


def _array(what: str, values: list[Any], kind: pa.DataType, reasons: dict[int, str]) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        fitting = [_fitting(value, kind) for value in values]
        for row, (value, fits) in enumerate(zip(values, fitting, strict=True)):
            if value is not None and fits is None:
                reasons.setdefault(row, f"{what} found a {type(value).__name__}, which is no {kind}")
        return pa.array(fitting, kind)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError):
        return None
    return value
