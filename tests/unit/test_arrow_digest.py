"""The source digest, and sums of a batch: the same for the same records in any order and any batches."""

from collections import Counter
from decimal import Decimal
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.arrow.cast.batches import source_batch
from epochline.arrow.cast.types import record_schema
from epochline.arrow.stage.counts import digest, record_hashes
from epochline.arrow.stage.summing import PartialSums
from epochline.declare.specs import TableSpec
from epochline.declare.table import PostgresTable
from epochline.protocol.staging import StagedTable

Record = tuple[str, int, int, bytes | None, bytes | None]

RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["t", "u"]),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=40) | st.binary(min_size=1020, max_size=1030),
    ),
    max_size=12,
)


def batch(records: list[Record]) -> pa.RecordBatch:
    names = ("topic", "partition", "offset", "key", "value")
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.binary(), pa.binary())
    columns = list(zip(*records, strict=True)) or [()] * 5
    return source_batch(pa.record_batch({n: pa.array(c, k) for n, c, k in zip(names, columns, kinds, strict=True)}))


def digest_of(records: list[Record]) -> int:
    return digest(record_hashes(batch(records)))


@given(RECORDS, st.randoms(), st.integers(0, 12))
def test_the_digest_knows_no_order_and_no_batches(records: list[Record], random: Random, cut: int) -> None:
    whole = batch(records)
    parts = [digest(record_hashes(part)) for part in (whole.slice(0, cut), whole.slice(cut))]

    assert digest_of(random.sample(records, len(records))) == digest(record_hashes(whole)) == sum(parts) % 2**64


@given(RECORDS.filter(bool), st.data(), st.sampled_from(["topic", "partition", "offset", "key", "value"]))
def test_another_record_gives_another_digest(records: list[Record], data: st.DataObject, what: str) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    topic, partition, offset, key, value = records[at]
    changed = {
        "topic": (topic + "0", partition, offset, key, value),
        "partition": (topic, partition ^ 1, offset, key, value),
        "offset": (topic, partition, offset ^ 1, key, value),
        "key": (topic, partition, offset, (key or b"") + b"\0", value),
        "value": (topic, partition, offset, key, None if value == b"" else b"" if value is None else value[:-1]),
    }[what]

    assert digest_of([*records[:at], changed, *records[at + 1 :]]) != digest_of(records)


def test_key_and_value_do_not_run_into_each_other() -> None:
    assert digest_of([("t", 0, 0, b"ab", b"c")]) != digest_of([("t", 0, 0, b"a", b"bc")])


def test_the_digest_is_what_it_was_in_earlier_processes_and_versions() -> None:
    """An attempt may be tried again by another process and version; a change of the digest would fail it."""
    assert digest_of([]) == 0
    records: list[Record] = [("t", 3, 7, b"key", b"a value longer than a word"), ("u", 0, 0, None, b"x" * 2000)]
    assert digest_of(records) == 16325215890746047749


@pytest.mark.parametrize("long", [b"x" * 1024, b"x" * 1025])
def test_long_and_short_values_stand_side_by_side(long: bytes) -> None:
    together = digest_of([("t", 0, 0, None, long), ("t", 0, 1, None, b"short")])

    assert together == (digest_of([("t", 0, 0, None, long)]) + digest_of([("t", 0, 1, None, b"short")])) % 2**64


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
