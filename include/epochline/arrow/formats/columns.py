"""What ready-made parsers have in common: columns cast to the record's types, and a reason for each bad record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.contract import ERROR
from epochline.declare.columns import UNAVAILABLE, ColumnType


def with_errors(names: list[str], columns: list[pa.Array], problems: dict[int, str]) -> pa.RecordBatch:
    """A batch of the columns and ``_error``."""
    rows = len(columns[0])
    reasons = pa.nulls(rows, pa.string())
    if problems:
        reasons = pa.array([problems.get(row) for row in range(rows)], pa.string())
    return pa.RecordBatch.from_arrays([*columns, reasons], names=[*names, ERROR])


def with_left_out(parsed: pa.RecordBatch, names: Mapping[int, Sequence[str]]) -> pa.RecordBatch:
    """A batch with ``_unavailable``: per row the names of the columns whose values its record does not give."""
    lists = [names.get(row) or None for row in range(parsed.num_rows)]
    return parsed.append_column(UNAVAILABLE, pa.array(lists, pa.list_(pa.string())))


def cast_all(
    columns: list[pa.Array], kinds: dict[str, ColumnType], problems: dict[int, str]
) -> tuple[list[pa.Array], dict[int, str]]:
    """Cast every column. A row keeps its first problem."""
    cast_columns = []
    for column, (name, kind) in zip(columns, kinds.items(), strict=True):
        cast = cast_column(name, column, kind)
        problems = cast.problems | problems
        cast_columns.append(cast.array)
    return cast_columns, problems
