"""A list column whose elements become rows of their own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.contract import BatchContractError


def explode(batch: pa.RecordBatch, name: str, keep_empty: pa.BooleanArray) -> tuple[pa.RecordBatch, pa.Array, pa.Array]:
    """Multiply rows by the elements of a list column.

    The fields of a list of structs become columns (and take the place of columns of the same name); the elements
    of another list become the column itself. A record with an empty list, or NULL for it, gives no row, unless
    ``keep_empty`` says so (a tombstone has no list and must still be seen): then one row without an element.

    Args:
        batch: as parsed.
        name: of the list column.
        keep_empty: per row, whether it gives a row even if its list has no elements.

    Returns:
        The rows; per row the index of its row in ``batch``; per row its number within the record, from 0.

    Raises:
        BatchContractError: there is no such column, or it is no list.
    """
    at = batch.schema.get_field_index(name)
    if at < 0:
        raise BatchContractError(f"explode: parse gave no column {name!r}; it gave {batch.schema.names}")
    lists = batch.column(at)
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise BatchContractError(f"explode: column {name!r} is of type {lists.type}; it must be a list")
    element = lists.type.value_type
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    kept = (counts == 0) & np.asarray(keep_empty)
    parents = np.repeat(np.arange(len(lists)), counts + kept)
    first_row = np.cumsum(counts + kept) - (counts + kept)
    numbers = (np.arange(len(parents)) - first_row[parents]).astype(np.int32)
    # The elements lie one after the other; a kept record without any takes a NULL from past their end.
    flat = pa.concat_arrays([pc.list_flatten(lists), pa.nulls(1, element)])
    position = np.where(kept[parents], len(flat) - 1, np.cumsum(~kept[parents]) - 1)
    elements = flat.take(pa.array(position, pa.int64()))
    indices = pa.array(parents, pa.int64())
    columns = {other: batch.column(other).take(indices) for other in batch.schema.names if other != name}
    if pa.types.is_struct(element):
        columns |= dict(zip((field.name for field in element), elements.flatten(), strict=True))
    else:
        columns[name] = elements
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return rows, indices, pa.array(numbers, pa.int32())
