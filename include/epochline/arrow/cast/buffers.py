"""The byte layout of binary Arrow arrays, for numpy loops over all rows at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class ByteLayout(NamedTuple):
    """Starts and lengths of the rows' bytes within ``data``; a NULL has the length 0."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    data: memoryview


def byte_layout(array: pa.Array) -> ByteLayout:
    """The layout of an array of type ``binary`` or ``string`` (32-bit offsets). A slice gives only its own bytes."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        empty = np.zeros(0, np.int64)
        return ByteLayout(empty, empty, memoryview(b""))
    ends = np.frombuffer(memoryview(offsets), np.int32, count=len(array) + 1, offset=array.offset * 4)
    bounds = ends.astype(np.int64)
    whole = memoryview(b"" if data is None else data)
    return ByteLayout(bounds[:-1] - bounds[0], np.diff(bounds), whole[int(bounds[0]) : int(bounds[-1])])


def hexadecimal(array: pa.Array) -> pa.Array:
    r"""Each row in PostgreSQL's text form of ``bytea``: ``\x`` and two digits per byte. NULL stays NULL."""
    layout = byte_layout(array)
    digits = bytes(layout.data).hex().encode()
    rows = zip(array.is_valid().to_pylist(), (layout.starts * 2).tolist(), (layout.lengths * 2).tolist(), strict=True)
    texts = [b"\\x" + digits[start : start + length] if valid else None for valid, start, length in rows]
    return pa.array(texts, pa.binary()).cast(pa.string())
