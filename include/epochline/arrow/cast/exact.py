"""Exact sums of a measure: integers and decimals, without silent overflow."""

from __future__ import annotations

from decimal import Context, Decimal, Overflow
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.types import arrow_type
from epochline.declare.columns import INTEGERS, ColumnType

_BITS = {"smallint": 15, "integer": 31, "bigint": 63}
# As many digits as PostgreSQL's numeric can have, so that no sum is rounded.
# Without traps, because infinity and minus infinity add up to NaN, in PostgreSQL too.
_EXACT = Context(prec=131072 + 16383, Emax=10**9, Emin=-(10**9), traps=[Overflow])


class Measure:
    """Adds the values of one measure.

    Args:
        kind: the measure's type, integer or numeric.
    """

    def __init__(self, kind: ColumnType) -> None:
        self.arrow = arrow_type(kind)
        self._integer = kind.name in INTEGERS
        self._bits = _BITS.get(kind.name, 0)
        self._bare = pa.types.is_string(self.arrow)
        self._limit = None if kind.precision is None else Decimal(10) ** (kind.precision - (kind.scale or 0))

    def summable(self, column: pa.Array) -> pa.Array | None:
        """The column in a type that sums its rows exactly, or None if Arrow has no such type."""
        if self._integer:
            bounds = pc.min_max(column)
            largest = max(abs(bounds["min"].as_py() or 0), abs(bounds["max"].as_py() or 0))
            if largest * len(column) < 2**63:
                return column.cast(pa.int64())
            return column.cast(pa.decimal128(19, 0))
        if self._bare or column.type.precision + len(str(len(column))) > 76:
            return None
        # Arrow sums decimals in the widest precision of their width; 38 digits may be too few.
        return column.cast(pa.decimal256(76, column.type.scale))

    def values(self, column: pa.Array | pa.ChunkedArray) -> list[Any]:
        """The column as Python numbers."""
        values: list[Any] = column.to_pylist()
        if self._bare:
            return [Decimal(text) for text in values]
        return [int(value) for value in values] if self._integer else values

    def sum(self, one: Any, other: Any) -> Any:
        """The exact sum."""
        return one + other if self._integer else _EXACT.add(one, other)

    def holds(self, value: Any) -> bool:
        """Whether the column's type can hold a sum."""
        if self._integer:
            return bool(-(2**self._bits) <= value < 2**self._bits)
        return self._limit is None or bool(abs(value) < self._limit)

    def array(self, values: list[Any]) -> pa.Array:
        """Build a column of the measure's type from sums."""
        if self._bare:
            return pa.array([format(value, "f") for value in values], pa.string())
        return pa.array(values, self.arrow)
