"""Rows that a sink, a function or a window cannot take, and why: a value is missing, or only PostgreSQL has it."""

import json
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import only_postgres
from epochline.arrow.cast.casting import null_rows
from epochline.declare.columns import DELETED, UNAVAILABLE
from epochline.declare.specs import CustomSinkSpec, ExternalSpec, PipelineSpec
from epochline.errors import BatchContractError


def takes_every_value(external: ExternalSpec) -> bool:
    """Whether an external sink writes a value that only PostgreSQL has: text files do, as PostgreSQL's text."""
    return not isinstance(external, CustomSinkSpec) and external.format != "parquet"


def refused_for(what: str, columns: Mapping[str, pa.Array], names: Iterable[str]) -> dict[int, str]:
    """The reason for each row with an infinite date, ``24:00:00`` or the like in a column that ``what`` would get."""
    reasons: dict[int, str] = {}
    for name in names:
        for row in only_postgres(columns[name]):
            reasons.setdefault(row, f"{name}: an infinite date, a year after 294246 or 24:00:00 does not pass {what}")
    return reasons


def without_refused(rows: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """The rows with NULL in each temporal value of a refused row, so that a function can read all rows."""
    if not reasons:
        return rows
    refused = pa.array([row in reasons for row in range(rows.num_rows)])
    columns = [
        pc.if_else(refused, pa.scalar(None, column.type), column) if pa.types.is_temporal(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def left_out(rows: pa.RecordBatch) -> dict[int, list[str]]:
    """Per row, the columns that its record does not give; raises `BatchContractError` for an unfit ``_unavailable``."""
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


_LEAVE_OUT = "a deletion cannot be counted in a window. Set _skip for it in parse, or keep it out of the topic"
_DELETED = f"the parse marked the record with _deleted, and {_LEAVE_OUT}"
_NO_VALUE = f"the record has no value, and {_LEAVE_OUT}"


def outside_windows(
    pipeline: PipelineSpec, given: pa.RecordBatch, columns: Mapping[str, pa.Array], tombstones: pa.Array
) -> dict[int, str]:
    """The rows that belong to no window, with the reason; ``columns`` are the cast ones of ``given``."""
    problems: dict[int, str] = {}
    deleted = deleted_by_parse(given)
    if deleted is not None:
        problems |= dict.fromkeys(pc.indices_nonzero(deleted).to_pylist(), _DELETED)
    without_value = set(pc.indices_nonzero(tombstones).to_pylist())
    if not isinstance(pipeline.parse, str):
        problems |= dict.fromkeys(without_value, _NO_VALUE)
    for name in pipeline.required:
        for row in null_rows(columns[name]):
            reason = _NO_VALUE if row in without_value else f"{name} is NULL, so the record belongs to no window"
            problems.setdefault(row, reason)
    return problems


def deleted_by_parse(rows: pa.RecordBatch) -> pa.Array | None:
    """Which rows the parse marked with ``_deleted``, if any; raises `BatchContractError` unless it is boolean."""
    if DELETED not in rows.schema.names:
        return None
    column = rows.column(DELETED)
    if not (pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise BatchContractError(f"the parse returned {DELETED} with type {column.type}; it must be boolean")
    return pc.fill_null(column.cast(pa.bool_()), False)
