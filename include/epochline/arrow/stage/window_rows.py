"""Find the rows that windows of event time cannot count: deletions, and rows without a time or a key."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.casting import null_rows
from epochline.arrow.stage.rows import deleted_by_parse
from epochline.declare.specs import PipelineSpec

_LEAVE_OUT = "a deletion cannot be counted in a window. Set _skip for it in parse, or keep it out of the topic"
_DELETED = f"the parse marked the record with _deleted, and {_LEAVE_OUT}"
_NO_VALUE = f"the record has no value, and {_LEAVE_OUT}"


def outside_windows(
    pipeline: PipelineSpec, given: pa.RecordBatch, columns: Mapping[str, pa.Array], tombstones: pa.Array
) -> dict[int, str]:
    """The rows that belong to no window, with the reason.

    A record without a value is a deletion, unless a function ``parse`` gives it a time and a key.

    Args:
        pipeline: has windows.
        given: rows of the parse.
        columns: the same rows, cast to the types of the record.
        tombstones: whether the record of each row has no value.

    Raises:
        BatchContractError: ``_deleted`` is not boolean.
    """
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
