"""Partial sums: nothing is lost, and what comes out follows from the rows alone."""

from collections import Counter
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.arrow.cast.types import record_schema
from epochline.arrow.stage.summing import PartialSums
from epochline.declare.specs import TableSpec
from epochline.declare.table import PostgresTable
from epochline.protocol.staging import StagedTable

COLUMNS = {"client": "text", "day": "date", "n": "bigint", "amount": "numeric(12,2)"}
SINK = PostgresTable(table="a", mode="add", key=("client", "day"), measures=("n", "amount"), columns=COLUMNS)

Row = tuple[str, int, int, str]
Sum = tuple[str, int, int, Decimal]


def sums(columns: dict[str, str] = COLUMNS, sink: PostgresTable = SINK, max_keys: int = 100_000) -> PartialSums:
    spec = sink.spec
    assert isinstance(spec, TableSpec)
    return PartialSums(StagedTable(sink="a", table="stg", columns=columns), spec, max_keys)


def rows(*given_rows: Row) -> pa.RecordBatch:
    columns = list(zip(*given_rows, strict=True)) or [()] * 4
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.record_batch(arrays, list(COLUMNS)).cast(record_schema(COLUMNS))


def staged(summing: PartialSums, *batches: pa.RecordBatch) -> list[Sum]:
    given_up = [*map(summing.add, batches), summing.flush()]
    return [
        (client.as_py(), day.cast(pa.int32()).as_py(), n.as_py(), amount.as_py())
        for batch in given_up
        if batch is not None
        for client, day, n, amount in zip(*batch.columns, strict=True)
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


def totals(summed: list[Sum]) -> Counter[tuple[str, int, str]]:
    found: Counter[tuple[str, int, str]] = Counter()
    for client, day, n, amount in summed:
        found[client, day, "n"] += n
        found[client, day, "amount in cents"] += int(amount * 100)
    return found


@given(ROWS, st.integers(0, 30), st.integers(1, 10))
def test_no_row_is_lost_however_sums_are_given_up(given_rows: list[Row], cut: int, max_keys: int) -> None:
    batch = rows(*given_rows)

    found = staged(sums(max_keys=max_keys), batch.slice(0, cut), batch.slice(cut))

    wanted = [(client, day, n, Decimal(amount)) for client, day, n, amount in given_rows]
    assert totals(found) == totals(wanted)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.just(0), st.integers(-5, 5), st.just("0.01")), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.integers(1, 9),
)
def test_where_batches_begin_and_end_changes_nothing(given_rows: list[Row], cuts: list[int], max_keys: int) -> None:
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
    measures = pa.array(["10", "20", "12"]).cast(schema.field("m").type)
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "x", "y"]), measures], schema=schema)
    summing = sums(columns, sink)

    assert summing.add(batch) is None
    flushed = summing.flush()
    assert flushed is not None
    assert [Decimal(str(value)) for value in flushed.column("m").to_pylist()] == [30, 12]
    assert summing.flush() is None
