"""Explode a list column: each element becomes a row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.errors import BatchContractError


def explode(batch: pa.RecordBatch, name: str, keep_empty: pa.Array) -> tuple[pa.RecordBatch, pa.Array, pa.Array]:
    """Make one row per element of a list column.

    The fields of a list of structs become columns, and replace columns of the same name. The elements of another list
    become the column itself. A row with an empty list or NULL gives no row, unless ``keep_empty`` is true for it: then
    it gives one row without an element. Tombstones need this, because they have no list.

    Args:
        batch: as parsed.
        name: of the list column.
        keep_empty: per row, whether it gives a row even if its list has no elements.

    Returns:
        The rows; per row the index of its row in ``batch``; per row its number within the record, from 0.

    Raises:
        BatchContractError: the column does not exist, or it is not a list.
    """
    at = batch.schema.get_field_index(name)
    if at < 0:
        raise BatchContractError(f"explode: parse returned no column {name!r}; it returned {batch.schema.names}")
    lists = batch.column(at)
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise BatchContractError(f"explode: column {name!r} has type {lists.type}; it must be a list")
    element = lists.type.value_type
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    kept = (counts == 0) & np.asarray(keep_empty)
    parents = np.repeat(np.arange(len(lists)), counts + kept)
    first_row = np.cumsum(counts + kept) - (counts + kept)
    numbers = (np.arange(len(parents)) - first_row[parents]).astype(np.int32)
    # The flat array ends with an extra NULL, for kept rows without elements.
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
