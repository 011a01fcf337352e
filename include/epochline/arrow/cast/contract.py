"""Check what a user's function returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from epochline.arrow.cast.checks import any_true
from epochline.arrow.cast.source import ColumnMismatchError
from epochline.errors import EpochlineError

BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]

ERROR, SKIP = "_error", "_skip"


class BatchContractError(EpochlineError):
    """A ``parse`` or ``select`` did not return one row per input row. The attempt fails."""


def call(what: str, function: BatchFunction, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Call a user's function and check that it returns one row per input row.

    Args:
        what: the function's role and name, for the message.
        function: the user's function.
        batch: its argument.

    Raises:
        BatchContractError: the function returned no record batch, another number of rows, or two columns of one name.
    """
    given = function(batch)
    if isinstance(given, pa.Table):
        given = given.combine_chunks()
        chunks = given.to_batches()
        given = chunks[0] if chunks else pa.RecordBatch.from_pylist([], schema=given.schema)
    if not isinstance(given, pa.RecordBatch):
        raise BatchContractError(f"{what} returned a {type(given).__name__}; it must return an Arrow record batch")
    if given.num_rows != batch.num_rows:
        raise BatchContractError(
            f"{what} returned {given.num_rows} rows for {batch.num_rows}; it must return one row per input row, in"
            " order. Mark rows with _error or _skip instead of leaving them out, and declare explode for several rows"
            " per record"
        )
    if len(set(given.schema.names)) != len(given.schema.names):
        raise BatchContractError(f"{what} returned two columns with the same name: {', '.join(given.schema.names)}")
    return given


def require_columns(what: str, batch: pa.RecordBatch, names: Iterable[str]) -> None:
    """Check that a batch has some columns.

    Raises:
        ColumnMismatchError: a column is missing.
    """
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise ColumnMismatchError(
            f"{what} returned no column {', '.join(missing)}; it returned {', '.join(batch.schema.names) or 'none'}"
        )


def marks(what: str, batch: pa.RecordBatch) -> tuple[dict[int, str], list[int]]:
    """The rows that a parse marked: the text of ``_error`` per row, and the rows with a true ``_skip``.

    A row with both counts as an error, because skipping it would hide the error.

    Raises:
        BatchContractError: a marker column has the wrong type.
    """
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
