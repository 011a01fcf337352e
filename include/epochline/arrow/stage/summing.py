"""Sum the rows of an ``add`` sink before staging, so that a frequent key gives one row per part."""

from decimal import Context, Decimal, Overflow
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.types import arrow_type, column_type, record_schema
from epochline.declare.columns import INTEGERS, ColumnType
from epochline.declare.specs import TableSpec
from epochline.protocol.staging import StagedTable

_BITS = {"smallint": 15, "integer": 31, "bigint": 63}
# As many digits as PostgreSQL's numeric can have, so that no sum is rounded.
# Without traps, because infinity and minus infinity add up to NaN, in PostgreSQL too.
_EXACT = Context(prec=131072 + 16383, Emax=10**9, Emin=-(10**9), traps=[Overflow])


class Measure:
    """Adds the values of one measure, integer or numeric, exactly."""

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


Key = tuple[Any, ...]


class PartialSums:
    """Partial sums per key of one part, for a sink of mode ``add``. They depend on the rows and their order alone.

    Sums are flushed when a new key arrives while ``max_keys`` are held, and never because of memory or time. A sum that
    would exceed its column's type is flushed and a new one begins; the commit finds out whether the total fits.
    """

    def __init__(self, staged: StagedTable, sink: TableSpec, max_keys: int = 100_000) -> None:
        self._schema = record_schema(staged.columns)
        self._keys = [name for name in staged.columns if name not in sink.measures]
        self._measures = {
            name: Measure(column_type(text)) for name, text in staged.columns.items() if name in sink.measures
        }
        self._max_keys = max_keys
        self._sums: dict[Key, list[Any]] = {}
        self._flushed: list[tuple[Key, list[Any]]] = []

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Add rows that are cast to the staging columns. Returns the flushed sums, or None."""
        while batch.num_rows:
            batch = self._add_some(batch)
        return self._take_flushed()

    def flush(self) -> pa.RecordBatch | None:
        """Flush all sums. Returns them, or None if there are none."""
        self._flush_all()
        return self._take_flushed()

    def _add_some(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add rows up to the first one whose key exceeds ``max_keys``. Returns the rest of the batch."""
        groups = self._grouped(batch)
        if groups is None:
            groups = self._single_rows(batch)
        fresh: set[Key] = set()
        for key, _, row in groups:
            if key in self._sums or key in fresh:
                continue
            if len(self._sums) + len(fresh) < self._max_keys:
                fresh.add(key)
            elif row == 0:
                self._flush_all()
                return batch
            else:
                self._add_some(batch.slice(0, row))
                return batch.slice(row)
        for key, values, _ in groups:
            self._merge(key, values)
        return batch.slice(batch.num_rows)

    def _grouped(self, batch: pa.RecordBatch) -> list[tuple[Key, list[Any], int]] | None:
        """Key, sums and first row of each key, in order; None if Arrow cannot sum, or a sum is too large."""
        columns = {name: _hashable(batch.column(name)) for name in self._keys}
        for name, measure in self._measures.items():
            summable = measure.summable(batch.column(name))
            if summable is None:
                return None
            columns[name] = summable
        columns["#row"] = pa.array(range(batch.num_rows), pa.int64())
        wanted: list[Any] = [("#row", "min"), *((name, "sum") for name in self._measures)]
        table = pa.table(columns)
        try:
            grouped = table.group_by(self._keys, use_threads=False).aggregate(wanted).sort_by("#row_min")
        except pa.ArrowNotImplementedError:
            return None
        sums = [measure.values(grouped.column(f"{name}_sum")) for name, measure in self._measures.items()]
        for values, measure in zip(sums, self._measures.values(), strict=True):
            if not all(map(measure.holds, values)):
                return None
        keys = zip(*(grouped.column(name).to_pylist() for name in self._keys), strict=True)
        rows = zip(*sums, strict=True)
        firsts: list[Any] = grouped.column("#row_min").to_pylist()
        return [(key, list(row), first) for key, row, first in zip(keys, rows, firsts, strict=True)]

    def _single_rows(self, batch: pa.RecordBatch) -> list[tuple[Key, list[Any], int]]:
        keys = zip(*(_hashable(batch.column(name)).to_pylist() for name in self._keys), strict=True)
        rows = zip(*(measure.values(batch.column(name)) for name, measure in self._measures.items()), strict=True)
        return [(key, list(row), at) for at, (key, row) in enumerate(zip(keys, rows, strict=True))]

    def _merge(self, key: Key, values: list[Any]) -> None:
        held = self._sums.get(key)
        if held is None:
            self._sums[key] = values
            return
        measures = self._measures.values()
        sums = [measure.sum(before, value) for measure, before, value in zip(measures, held, values, strict=True)]
        if all(measure.holds(value) for measure, value in zip(measures, sums, strict=True)):
            self._sums[key] = sums
        else:
            self._flushed.append((key, held))
            self._sums[key] = values

    def _flush_all(self) -> None:
        self._flushed += self._sums.items()
        self._sums = {}

    def _take_flushed(self) -> pa.RecordBatch | None:
        if not self._flushed:
            return None
        rows, self._flushed = self._flushed, []
        keys = {name: [key[at] for key, _ in rows] for at, name in enumerate(self._keys)}
        sums = {name: [values[at] for _, values in rows] for at, name in enumerate(self._measures)}
        columns = []
        for field in self._schema:
            if field.name in sums:
                columns.append(self._measures[field.name].array(sums[field.name]))
            else:
                columns.append(pa.array(keys[field.name], _hashable_type(field.type)).cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _hashable_type(kind: pa.DataType) -> pa.DataType:
    """An integer type for dates and times, because Python has no dates after the year 9999; else the type itself."""
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) else kind


def _hashable(column: pa.Array) -> pa.Array:
    return column.cast(_hashable_type(column.type))
