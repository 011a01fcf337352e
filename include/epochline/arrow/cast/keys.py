"""Keys that no index of PostgreSQL takes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

KEY_BYTES = 2692
"""Most bytes of a key of one text column: an entry of a B-tree is a third of a page of 8 kB at most, 2,704 bytes, of
which 12 are its header and the value's. Values that compress well may fit although they are longer; which ones do is
nothing that a producer could know, so the limit holds for all."""

_HEADER = 8
_FIXED = 16
"""Most bytes of a column of fixed length, such as a uuid."""


def too_long(columns: Sequence[pa.Array]) -> dict[int, int]:
    """The rows whose key is too long for an index, and how many bytes it has.

    Args:
        columns: of the key, each with a value per row; NULL counts as nothing.
    """
    variable = [column for column in columns if _is_variable(column.type)]
    if not variable:
        return {}
    # Beside another column, a value's place is rounded up.
    limit = KEY_BYTES - (len(variable) - 1) * _HEADER - (len(columns) - len(variable)) * _FIXED
    total = pc.fill_null(pc.binary_length(variable[0]), 0).cast(pa.int64())
    for column in variable[1:]:
        total = pc.add(total, pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
    return {row: total[row].as_py() for row in pc.indices_nonzero(pc.greater(total, limit)).to_pylist()}


def _is_variable(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)
