"""Columns whose values a record does not give: the names that a parse leaves in ``_unavailable``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from epochline.declare.columns import UNAVAILABLE
from epochline.errors import BatchContractError


def left_out(rows: pa.RecordBatch) -> dict[int, list[str]]:
    """Per row with such columns, their names.

    Raises:
        BatchContractError: ``_unavailable`` is not a list of texts.
    """
    if UNAVAILABLE not in rows.schema.names:
        return {}
    column = rows.column(UNAVAILABLE)
    if column.null_count == len(column):
        return {}
    if not pa.types.is_list(column.type) or not pa.types.is_string(column.type.value_type):
        raise BatchContractError(
            f"the parse returned {UNAVAILABLE} with type {column.type}; it must be a list of texts"
        )
    some = pc.greater(pc.fill_null(pc.list_value_length(column), 0), 0)
    return {row: [str(name) for name in column[row].as_py()] for row in pc.indices_nonzero(some).to_pylist()}


def not_given(names: Iterable[str]) -> str:
    """The reason of a record whose row needs a value that it does not give."""
    return f"the record does not give {', '.join(names)} (a value that its connector did not have)"


def staged_names(names: Mapping[int, Sequence[str]], rows: int) -> pa.Array:
    """The column ``_unavailable`` of staging: per row a JSON array of names, or NULL."""
    return pa.array([json.dumps(names[row]) if names.get(row) else None for row in range(rows)], pa.string())
