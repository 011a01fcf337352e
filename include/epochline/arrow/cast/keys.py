"""Find keys that are too long for an index of PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

KEY_BYTES = 2692
"""Maximum bytes of a key of one text column. A B-tree entry has at most a third of an 8 kB page, 2,704 bytes, and 12 of
them are headers. PostgreSQL accepts longer values that compress well, but a producer cannot know which ones. So the
limit applies to all values."""

_HEADER = 8
_FIXED = 16
"""Maximum bytes of a column of fixed length, such as a uuid."""


def too_long(columns: Sequence[pa.Array]) -> dict[int, int]:
    """The rows whose key is too long for an index, with the number of its bytes.

    Args:
        columns: of the key, each with a value per row; NULL counts 0 bytes.
    """
    variable = [column for column in columns if _is_variable(column.type)]
    if not variable:
        return {}
    # A key of several columns pads each value.
    limit = KEY_BYTES - (len(variable) - 1) * _HEADER - (len(columns) - len(variable)) * _FIXED
    total = pc.fill_null(pc.binary_length(variable[0]), 0).cast(pa.int64())
    for column in variable[1:]:
        total = pc.add(total, pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
    return {row: total[row].as_py() for row in pc.indices_nonzero(pc.greater(total, limit)).to_pylist()}


def _is_variable(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)
