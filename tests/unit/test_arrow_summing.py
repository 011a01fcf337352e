"""Partial sums: nothing is lost, and what comes out follows from the rows alone."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.arrow.cast.types import record_schema
from epochline.arrow.stage.summing import PartialSums
from epochline.declare.table import PostgresTable
from epochline.protocol.staging import StagedTable

COLUMNS = {"client": "text", "day": "date", "n": "bigint", "amount": "numeric(12,2)"}
SINK = PostgresTable(table="a", mode="add", key=("client", "day"), measures=("n", "amount"), columns=COLUMNS)


def sums(columns: dict[str, str] = COLUMNS, sink: PostgresTable = SINK, **more: Any) -> PartialSums:
    return PartialSums(StagedTable(sink="a", table="stg", columns=columns), sink.spec, **more)


def rows(*given_rows: tuple[Any, ...]) -> pa.RecordBatch:
    days = [(client, day, n, Decimal(amount)) for client, day, n, amount in given_rows]
    arrays = [
        pa.array([row[at] for row in days], pa.int32() if field.name == "day" else field.type).cast(field.type)
        for at, field in enumerate(record_schema(COLUMNS))
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=record_schema(COLUMNS))


def staged(summing: PartialSums, *batches: pa.RecordBatch) -> list[tuple[Any, ...]]:
    given_up = [summing.add(batch) for batch in batches] + [summing.flush()]
    return [
        (row[0].as_py(), row[1].cast(pa.int32()).as_py(), row[2].as_py(), row[3].as_py())
        for batch in given_up
        if batch is not None
        for row in zip(*batch.columns, strict=True)
    ]


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", ""]),
        st.sampled_from([0, 1, 2_000_000_000]),
        st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5),
        st.integers(-(10**11), 10**11).map(lambda n: str(Decimal(n) / 100)),
    ),
    max_size=30,
)


@given(ROWS, st.integers(0, 30), st.integers(1, 10))
def test_no_row_is_lost_however_sums_are_given_up(given_rows: list[Any], cut: int, max_keys: int) -> None:
    batch = rows(*given_rows)

    found = staged(sums(max_keys=max_keys), batch.slice(0, cut), batch.slice(cut))

    expected: Counter[Any] = Counter()
    got: Counter[Any] = Counter()
    for client, day, n, amount in given_rows:
        expected[client, day, "n"] += n
        expected[client, day, "amount"] += Decimal(amount)
    for client, day, n, amount in found:
        got[client, day, "n"] += n
        got[client, day, "amount"] += amount
    assert got == expected


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.just(0), st.integers(-5, 5), st.just("0.01")), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.integers(1, 9),
)
def test_where_batches_begin_and_end_changes_nothing(given_rows: list[Any], cuts: list[int], max_keys: int) -> None:
    batch = rows(*given_rows)
    bounds = [0, *sorted(cuts), len(given_rows)]
    batches = [batch.slice(a, b - a) for a, b in pairwise(bounds) if b > a]

    assert staged(sums(max_keys=max_keys), *batches) == staged(sums(max_keys=max_keys), batch)


def test_a_busy_key_is_one_row() -> None:
    batch = rows(*[("a", 0, 1, "0.10")] * 1000)

    assert staged(sums(), batch, batch) == [("a", 0, 2000, Decimal("200.00"))]


def test_a_sum_that_its_column_cannot_hold_is_given_up_apart() -> None:
    most = 2**63 - 1

    assert staged(sums(), rows(("a", 0, most, "1")), rows(("a", 0, 1, "1"), ("a", 0, 1, "1"))) == [
        ("a", 0, most, Decimal("1.00")),
        ("a", 0, 2, Decimal("2.00")),
    ]
    assert staged(sums(), rows(("a", 0, most, "1"), ("a", 0, most, "9999999999.99"))) == [
        ("a", 0, most, Decimal("1.00")),
        ("a", 0, most, Decimal("9999999999.99")),
    ]


@pytest.mark.parametrize("kind", ["numeric", "numeric(70,2)", "smallint"])
def test_other_measures_are_summed_exactly(kind: str) -> None:
    columns = {"k": "uuid", "m": kind}
    sink = PostgresTable(table="a", mode="add", key="k", measures="m", columns=columns)
    schema = record_schema(columns)
    text = pa.array(["10", "20", "12"])
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "x", "y"]), text.cast(schema.field("m").type)], schema=schema)
    summing = sums(columns, sink)

    assert summing.add(batch) is None
    flushed = summing.flush()
    assert flushed is not None
    assert [Decimal(str(value)) for value in flushed.column("m").to_pylist()] == [30, 12]
    assert summing.flush() is None
