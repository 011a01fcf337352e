"""Summing the rows of an ``add`` sink before they are staged, so that a busy key is one row per part."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochline.arrow.cast.exact import Measure
from epochline.arrow.cast.types import column_type, record_schema
from epochline.declare.specs import TableSpec
from epochline.protocol.staging import StagedTable

Key = tuple[Any, ...]


class PartialSums:
    """Partial sums per key of one part.

    What comes out, and in which order, follows from the rows that went in and their order: sums are given up
    when a new key finds ``max_keys`` of them held, never for memory or time, and wherever batches begin or
    end. A second try of the part therefore stages as many rows.

    A sum that its column cannot hold is not lost: the sum so far is given up as a row of its own and a new one
    begun. Whether the total fits is for the commit to find.

    Args:
        staged: the sink's staging table.
        sink: of mode ``add``.
        max_keys: so many keys are held at most.
    """

    def __init__(self, staged: StagedTable, sink: TableSpec, max_keys: int = 100_000) -> None:
        self._schema = record_schema(staged.columns)
        self._keys = [name for name in staged.columns if name not in sink.measures]
        self._measures = {
            name: Measure(column_type(text)) for name, text in staged.columns.items() if name in sink.measures
        }
        self._max_keys = max_keys
        self._sums: dict[Key, list[Any]] = {}
        self._given_up: list[tuple[Key, list[Any]]] = []

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take in rows, cast to the staging columns; gives the sums that were given up, if any."""
        while batch.num_rows:
            batch = self._take(batch)
        return self._given()

    def flush(self) -> pa.RecordBatch | None:
        """Give up every sum that is held; None if there is none."""
        self._give_up_all()
        return self._given()

    def _take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take in rows up to the one whose key finds no room; what is left of the batch."""
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
                self._give_up_all()
                return batch
            else:
                self._take(batch.slice(0, row))
                return batch.slice(row)
        for key, values, _ in groups:
            self._merge(key, values)
        return batch.slice(batch.num_rows)

    def _grouped(self, batch: pa.RecordBatch) -> list[tuple[Key, list[Any], int]] | None:
        """Per key of the batch, in the order of first rows: key, sums and first row; None where Arrow cannot.

        A sum over the batch that its column cannot hold is such a case.
        """
        columns = {name: _hashable(batch.column(name)) for name in self._keys}
        for name, measure in self._measures.items():
            summable = measure.summable(batch.column(name))
            if summable is None:
                return None
            columns[name] = summable
        columns["#row"] = pa.array(range(batch.num_rows), pa.int64())
        wanted = [("#row", "min"), *((name, "sum") for name in self._measures)]
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
        firsts = grouped.column("#row_min").to_pylist()
        return [(key, list(row), first) for key, row, first in zip(keys, rows, firsts, strict=True)]

    def _single_rows(self, batch: pa.RecordBatch) -> list[tuple[Key, list[Any], int]]:
        keys = zip(*(_hashable(batch.column(name)).to_pylist() for name in self._keys), strict=True)
        rows = zip(*(m.values(batch.column(name)) for name, m in self._measures.items()), strict=True)
        return [(key, list(row), at) for at, (key, row) in enumerate(zip(keys, rows, strict=True))]

    def _merge(self, key: Key, values: list[Any]) -> None:
        held = self._sums.get(key)
        if held is None:
            self._sums[key] = values
            return
        measures = self._measures.values()
        sums = [m.sum(one, other) for m, one, other in zip(measures, held, values, strict=True)]
        if all(m.holds(value) for m, value in zip(measures, sums, strict=True)):
            self._sums[key] = sums
        else:
            self._given_up.append((key, held))
            self._sums[key] = values

    def _give_up_all(self) -> None:
        self._given_up += self._sums.items()
        self._sums = {}

    def _given(self) -> pa.RecordBatch | None:
        if not self._given_up:
            return None
        rows, self._given_up = self._given_up, []
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
    """Python has no dates beyond the year 9999, so what counts days or microseconds is held as integers."""
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) else kind


def _hashable(column: pa.Array) -> pa.Array:
    return column.cast(_hashable_type(column.type))
