"""From source batches to staged rows: every record in every sink, or in none and quarantined."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.stage.rows import cast_rows
from epochline.declare.aggregation import Windowed
from epochline.declare.event_time import EventTime, Tumbling
from epochline.declare.parsers import Json, Text
from epochline.declare.specs import TableSpec
from epochline.declare.table import PostgresTable
from epochline.declare.topic import KafkaTopic
from epochline.errors import (
    BadRecordError,
    BatchContractError,
    ColumnMismatchError,
    EpochlineError,
    ValueDoesNotFitError,
)
from epochline.protocol.staging_tables import staged_tables
from tests.declaring import pipeline
from tests.unit.flows import COLUMNS, flow, records

Functions = Callable[..., None]


def doc(**members: Any) -> bytes:
    return json.dumps(members).encode()


def returning(**columns: Any) -> Callable[[object], pa.RecordBatch]:
    return lambda _: pa.record_batch(columns)


NAMED = {"id": "bigint", "name": "text"}
ALL = PostgresTable(table="everything", columns=COLUMNS)
SMALL = PostgresTable(table="small", columns={"id": "smallint"})


def test_a_record_that_one_sink_cannot_take_is_in_none_and_quarantined_once() -> None:
    done = flow(ALL, SMALL).process(records(doc(id=1), doc(id=40000), doc(id=3, name="x", status=5)))

    assert done.rows["small"].to_pylist() == [
        {"id": 1, "_topic": "t", "_partition": 0, "_offset": 100, "_row": 0},
        {"id": 3, "_topic": "t", "_partition": 0, "_offset": 102, "_row": 0},
    ]
    assert done.rows["everything"].column("id").to_pylist() == [1, 3]
    assert done.quarantine.column("offset").to_pylist() == [101]
    assert done.quarantine.column("reason").to_pylist() == ["small: id: 40000 does not fit smallint"]
    counts = done.counts["t", 0]
    assert (counts.received, counts.passed, counts.quarantined, counts.skipped) == (3, 2, 1, 0)
    assert (counts.first_offset, counts.last_offset) == (100, 102)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (b"{", "JSON"), (b"", "JSON"), (b'{"id":1} {"id":2}', "JSON"), (b"[]", "not a JSON object"), (b"\xff", "UTF-8"),
        (b'{"id":"1"}', "id: "), (b'{"id":1.5}', "id: "), (b'{"id":9223372036854775808}', "id: "),
        (b'{"status":32768}', "status: "), (b'{"name":"a\\u0000b"}', "NUL"), (b'{"name":"\\ud800"}', "surrogate"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("others", [1, 700])
def test_poison_is_one_records_error(value: bytes, word: str, others: int) -> None:
    good = [doc(id=n, name=f"n{n}") for n in range(others)]

    done = flow(ALL).process(records(*good, value, *good))

    assert done.rows["everything"].num_rows == 2 * others
    (row,) = done.quarantine.to_pylist()
    assert row["offset"] == 100 + others
    assert row["value"] == value
    assert word in row["reason"]


def test_the_quarantine_keeps_the_record_as_it_came() -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"\xff"}, {"key": "a\0", "value": None}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )

    done = flow(ALL).process(records(b"\x00\xff", doc(id=1), keys=[b"\xfe", None], headers=headers))

    (row,) = done.quarantine.to_pylist()
    assert (row["topic"], row["partition"], row["key"], row["value"]) == ("t", 0, b"\xfe", b"\x00\xff")
    assert json.loads(row["headers"]) == [["h", base64.b64encode(b"\xff").decode()], ["a␀", None]]
    assert done.quarantine.schema.names[3] == "record_timestamp"


def test_policy_fail_names_the_first_bad_record() -> None:
    with pytest.raises(BadRecordError, match=r"t-0 offset 101: .*not JSON"):
        flow(ALL, bad_records="fail").process(records(doc(id=1), b"x", b"y"))


@pytest.mark.parametrize(
    ("kinds", "dropped"),
    [
        ({"topic": pa.large_string(), "value": pa.large_binary(), "key": pa.large_binary()}, []),
        ({"topic": pa.string_view(), "value": pa.binary_view()}, []),
        ({"topic": pa.dictionary(pa.int32(), pa.string())}, []),
        ({}, ["key", "timestamp"]),
    ],
    ids=["large", "view", "dictionary", "no key, no timestamp"],
)
def test_variants_of_arrow_types_are_taken(kinds: dict[str, pa.DataType], dropped: list[str]) -> None:
    batch = records(doc(id=1))
    kept = batch.drop_columns(dropped)

    done = flow(ALL).process(kept.cast(pa.schema({f.name: kinds.get(f.name, f.type) for f in kept.schema})))

    assert done.rows["everything"].column("id").to_pylist() == [1]
    assert done.counts["t", 0].digest == flow(ALL).process(batch).counts["t", 0].digest


BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 24 * 3600 * 1_000_000


@pytest.mark.parametrize(
    ("timestamps", "days"),
    [
        ([5, 2, 9], (2, 9)), ([None, 3, None], (3, 3)), ([None, None, None], None),
        # Kafka stores -1 ms for a record without a timestamp, and takes any other number from a producer.
        ([-1, 3, 4], (3, 4)), ([7, 3_000_000, 8], (7, 8)), ([-1, -1, 3_000_000], None),
    ],
    ids=["all", "some missing", "none", "without", "after the year 9999", "nothing usable"],
)  # fmt: skip
def test_the_span_of_kafkas_timestamps_is_that_of_the_usable_ones(
    timestamps: list[int | None], days: tuple[int, int] | None
) -> None:
    """G7: bad and skipped records waited as well."""
    column = pa.array([None if at is None else at * DAY for at in timestamps], pa.timestamp("us", "UTC"))
    batch = records(doc(id=1), b"not JSON", doc(id=3), timestamp=column)

    counts = flow(ALL).process(batch).counts["t", 0]

    found = (counts.oldest_timestamp, counts.newest_timestamp)
    assert found == ((None, None) if days is None else tuple(BEGIN + timedelta(days=at) for at in days))


def test_counts_are_kept_per_topic_and_partition_and_sum_over_batches() -> None:
    batch = records(
        *[doc(id=n) for n in range(5)], b"x",
        topic=pa.array(["t", "t", "u", "u", "t", "u"]), partition=pa.array([0, 1, 0, 0, 1, 0], pa.int32()),
    )  # fmt: skip
    one = flow(ALL)

    whole = one.process(batch).counts
    first, rest = one.process(batch.slice(0, 3)).counts, one.process(batch.slice(3)).counts

    received = {key: (counts.received, counts.quarantined) for key, counts in whole.items()}
    assert received == {("t", 0): (1, 0), ("t", 1): (2, 0), ("u", 0): (3, 1)}
    assert first["t", 1] + rest["t", 1] == whole["t", 1]
    assert first["u", 0] + rest["u", 0] == whole["u", 0]
    nothing = one.process(records())
    assert (nothing.rows["everything"].num_rows, nothing.quarantine.num_rows, nothing.counts) == (0, 0, {})


UPSERT = {"table": "u", "mode": "upsert", "key": "id", "columns": COLUMNS}


@pytest.mark.parametrize(
    ("tombstone", "staged", "quarantined"),
    [
        ("delete", [(1, "a", False), (2, None, True)], 0),
        ("ignore", [(1, "a", False)], 0),
        ("quarantine", [(1, "a", False)], 1),
    ],
)
def test_a_tombstone_does_what_the_sink_declares(
    tombstone: Literal["delete", "ignore", "quarantine"], staged: list[tuple[int, str | None, bool]], quarantined: int
) -> None:
    done = flow(PostgresTable(**UPSERT, tombstone=tombstone), ALL).process(
        records(doc(id=1, name="a"), None, keys=[None, doc(id=2, name="b")])
    )

    rows = done.rows["u"].to_pylist()
    assert [(row["id"], row["name"], row["_deleted"]) for row in rows] == staged
    assert done.quarantine.num_rows == quarantined
    assert done.rows["everything"].num_rows == 2 - quarantined
    assert done.counts["t", 0].passed == 2 - quarantined


def test_a_null_in_a_key_or_order_column_is_quarantined() -> None:
    sink = PostgresTable(**UPSERT, order_by="status")

    done = flow(sink).process(records(doc(id=1, status=7), doc(name="x", status=1), doc(id=2), None))

    (row,) = done.rows["u"].select(["id", "_order_status", "_deleted"]).to_pylist()
    assert row == {"id": 1, "_order_status": 7, "_deleted": False}
    assert done.quarantine.column("reason").to_pylist() == [
        "u: NULL in the key column id",
        "u: NULL in status, by which the newest row is chosen",
        "u: NULL in the key column id",
    ]


def test_skipped_records_are_counted_and_an_error_wins_over_a_skip(functions: Functions) -> None:
    skip, error = [False, True, True, None], [None, None, "no\0good", None]
    functions(parse=returning(id=[1, None, None, 4], _skip=skip, _error=error))

    done = flow(SMALL, parse="user_code:parse", record={"id": "bigint"}).process(records(*[b""] * 4))

    counts = done.counts["t", 0]
    assert (counts.received, counts.passed, counts.skipped, counts.quarantined) == (4, 2, 1, 1)
    assert done.quarantine.column("reason").to_pylist() == ["no\\0good"]
    assert done.rows["small"].column("id").to_pylist() == [1, 4]


def test_a_record_that_the_parse_skips_now_is_not_set_aside_for_what_a_target_said(functions: Functions) -> None:
    functions(parse=returning(id=[1, 2], _skip=[True, False]))
    refused = {("t", 0): {100: "refused", 101: "refused"}}
    made = flow(SMALL, parse="user_code:parse", record={"id": "bigint"}, refused=refused)

    counts = made.process(records(b"", b"")).counts["t", 0]

    assert (counts.skipped, counts.quarantined, counts.passed) == (1, 1, 0)


def test_a_row_that_the_parse_calls_deleted_deletes_its_key_and_nothing_else(functions: Functions) -> None:
    """A tombstone that is ignored leaves such a row alone, and a table that only takes rows gets it whole."""
    functions(parse=returning(id=[1, 2, 3, None], name=["a", "b", "c", None], _deleted=[None, True, False, None]))
    upserted = PostgresTable(table="u", mode="upsert", key="id", columns=NAMED, tombstone="ignore")
    appended = PostgresTable(table="a", columns=NAMED)

    done = flow(upserted, appended, parse="user_code:parse", record=NAMED).process(records(b"", b"", b"", None))

    rows = done.rows["u"].select(["id", "name", "_deleted"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "a", False), (2, None, True), (3, "c", False)]
    assert done.rows["a"].column("name").to_pylist() == ["a", "b", "c", None]
    assert done.quarantine.num_rows == 0


WINDOWS = Windowed(
    time=EventTime(column="at"), window=Tumbling(size=60), key="city", aggregates={"n": "count(*)"}, into="hits"
)
HITS = PostgresTable(
    table="hits", mode="upsert", key=("city", "window_start"), aggregated=True,
    columns={"city": "text", "window_start": "timestamptz", "window_end": "timestamptz", "n": "bigint"},
)  # fmt: skip
HIT = {"city": "text", "at": "timestamptz"}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_deletion_is_counted_in_no_window_and_the_reason_says_so(functions: Functions) -> None:
    """INV-9: whether or not its columns would place it in a window, it is quarantined and names the deletion."""
    functions(parse=returning(city=["a", "b", None, None], at=[NOON] * 4, _deleted=[None, True, True, False]))

    rows, kept, counts = flow(HITS, parse="user_code:parse", record=HIT, windows=WINDOWS).parse_only(
        records(b"1", b"2", b"3", b"4")
    )

    deletion = "the parse marked the record with _deleted, and a deletion cannot be counted in a window."
    assert rows.column("city").to_pylist() == ["a"]
    assert kept.column("offset").to_pylist() == [101, 102, 103]
    reasons = list(map(str, kept.column("reason").to_pylist()))
    assert [reason.startswith(deletion) for reason in reasons] == [True, True, False]
    assert reasons[2] == "city is NULL, so the record belongs to no window"
    assert (counts["t", 0].passed, counts["t", 0].quarantined) == (1, 3)


def test_a_deletion_that_a_transform_would_not_see_is_quarantined(functions: Functions) -> None:
    """INV-9: the mark is no column of the record, so the transform would take the row for an insert."""
    functions(parse=returning(city=["a", "b", "c"], at=[NOON] * 3, _deleted=[None, True, False]))
    sink = PostgresTable(table="hits", mode="upsert", key="city", columns=HIT)

    rows, kept, counts = flow(sink, parse="user_code:parse", record=HIT, transform="user_code:parse").parse_only(
        records(b"1", b"2", b"3")
    )

    assert rows.column("city").to_pylist() == ["a", "c"]
    assert kept.column("offset").to_pylist() == [101]
    assert "which does not reach the transform" in str(kept.column("reason")[0])
    assert (counts["t", 0].passed, counts["t", 0].quarantined) == (2, 1)


def test_a_tombstone_is_counted_in_no_window_although_its_key_gives_a_time() -> None:
    value = b'{"city": "a", "at": "2026-03-01T12:00:00Z"}'

    rows, kept, _ = flow(HITS, parse=Json(columns=HIT), windows=WINDOWS).parse_only(
        records(value, None, None, b"{}", keys=[None, b'{"city": "b"}', value, None])
    )

    assert rows.column("_offset").to_pylist() == [100]
    assert [str(reason).partition(".")[0] for reason in kept.column("reason").to_pylist()] == [
        "the record has no value, and a deletion cannot be counted in a window",
        "the record has no value, and a deletion cannot be counted in a window",
        "at is NULL, so the record belongs to no window",
    ]


def test_a_function_may_make_a_row_of_a_record_without_a_value_for_a_window(functions: Functions) -> None:
    functions(parse=returning(city=["a", "b"], at=[NOON, None]))

    rows, kept, _ = flow(HITS, parse="user_code:parse", record=HIT, windows=WINDOWS).parse_only(records(None, None))

    assert rows.column("_offset").to_pylist() == [100]
    (reason,) = kept.column("reason").to_pylist()
    assert str(reason).startswith("the record has no value, and a deletion cannot be counted in a window")


def test_policy_fail_names_the_deletion_that_a_window_cannot_count(functions: Functions) -> None:
    functions(parse=returning(city=["a"], at=[NOON], _deleted=[True]))

    with pytest.raises(BadRecordError, match=r"t-0 offset 100: .*a deletion cannot be counted in a window"):
        flow(HITS, parse="user_code:parse", record=HIT, windows=WINDOWS, bad_records="fail").parse_only(records(b"1"))


def newest_of(functions: Functions, kind: str, **columns: Any) -> tuple[float | None, list[Any]]:
    """Seconds after noon that the partition's newest event time counts as, and why records are bad."""
    functions(parse=returning(**columns))
    windows = WINDOWS.model_copy(
        update={"time": EventTime(column="at", out_of_orderness=timedelta(seconds=10), punctuation="mark")}
    )
    rows = len(columns["at"])
    made = flow(HITS, parse="user_code:parse", record={**HIT, "mark": kind}, windows=windows)
    _, kept, counts = made.parse_only(records(*[b""] * rows))
    newest = counts["t", 0].newest
    return (None if newest is None else (newest - NOON).total_seconds()), kept.column("reason").to_pylist()


def after_noon(*seconds: float | None) -> pa.Array[Any]:
    moments = [None if one is None else NOON + timedelta(seconds=one) for one in seconds]
    return pa.array(moments, pa.timestamp("us", "UTC"))


def test_a_carried_watermark_counts_as_a_record_that_is_newer_by_the_disorder(functions: Functions) -> None:
    """N6: the watermark of a partition is its newest time less the disorder, and at least what a record carried."""
    city, at = ["a", "b", "c"], after_noon(1, 30, 2)
    none = pa.nulls(3, pa.bool_())

    assert newest_of(functions, "timestamptz", city=city, at=at, mark=after_noon(None, None, None)) == (30, [])
    assert newest_of(functions, "timestamptz", city=city, at=at, mark=after_noon(25, None, 5)) == (35, [])
    assert newest_of(functions, "timestamptz", city=city, at=at, mark=after_noon(15, None, 5)) == (30, [])
    assert newest_of(functions, "boolean", city=city, at=at, mark=none) == (30, [])
    assert newest_of(functions, "boolean", city=city, at=at, mark=[True, None, False]) == (30, [])
    assert newest_of(functions, "boolean", city=city, at=at, mark=[True, True, False]) == (40, [])


def test_a_skipped_record_may_carry_a_watermark_and_its_own_time_does_not_count(functions: Functions) -> None:
    city, at, skip = ["a", None], after_noon(1, 50), [None, True]
    marks = pa.array([None, True], pa.bool_())

    assert newest_of(functions, "boolean", city=city, at=at, _skip=skip, mark=[None, False]) == (1, [])
    assert newest_of(functions, "boolean", city=city, at=at, _skip=skip, mark=marks) == (60, [])
    assert newest_of(
        functions, "timestamptz", city=city, at=after_noon(1, None), _skip=skip, mark=after_noon(None, 9)
    ) == (19, [])
    assert newest_of(functions, "timestamptz", city=[None], at=after_noon(None), _skip=[True], mark=after_noon(9)) == (
        19,
        [],
    )


def test_a_skipped_record_whose_watermark_is_no_time_is_bad(functions: Functions) -> None:
    """INV-9: a watermark is not lost silently."""
    late, (reason,) = newest_of(functions, "timestamptz", city=[None], at=after_noon(5), _skip=[True], mark=["soon"])
    assert (late, reason) == (None, "mark: 'soon' does not fit timestamp with time zone (not a timestamp in ISO 8601)")

    late, (reason,) = newest_of(functions, "boolean", city=[None], at=after_noon(None), _skip=[True], mark=[True])
    assert (late, reason) == (None, "mark is true, but at is NULL: the record carries no watermark")


def test_a_watermark_at_the_end_of_time_is_one(functions: Functions) -> None:
    last = pa.array([datetime(9999, 12, 30, 23, 59, 59, tzinfo=UTC)], pa.timestamp("us", "UTC"))

    newest, _ = newest_of(functions, "timestamptz", city=["a"], at=after_noon(5), mark=last)

    assert newest == (datetime(9999, 12, 31, tzinfo=UTC) - NOON).total_seconds()


def test_a_row_that_a_boolean_of_the_parse_calls_deleted_is_sent_without_a_value(functions: Functions) -> None:
    functions(parse=returning(id=[1, 2, 3, 4], name=[None] * 4, _deleted=[None, True, False, False]))
    topic = KafkaTopic(topic="out", value=Json(columns=NAMED), key="id")
    made = flow(topic, parse="user_code:parse", record=NAMED)

    rows = made.process(records(b"", b"", b"", None)).rows[topic.outbox("p").table]

    assert rows["key"].to_pylist() == [b"1", b"2", b"3", b"4"]
    assert rows["value"].to_pylist() == [b'{"id":1,"name":null}', None, b'{"id":3,"name":null}', None]
    functions(parse=returning(id=[1], name=[None], _deleted=["no"]))
    with pytest.raises(BatchContractError, match="the parse returned _deleted with type string; it must be boolean"):
        flow(topic, parse="user_code:parse", record=NAMED).process(records(b""))


def test_a_list_column_multiplies_rows(functions: Functions) -> None:
    items = [[{"sku": "a", "n": 1}, {"sku": "b", "n": 2}], [], None, [{"sku": "c", "n": 70000}], [{"sku": "d", "n": 4}]]
    functions(parse=returning(id=range(5), items=items))
    record = {"id": "bigint", "sku": "text", "n": "smallint"}
    sink = PostgresTable(table="lines", columns=record)
    done = flow(sink, parse="user_code:parse", record=record, explode="items").process(records(*[b""] * 5))

    assert [tuple(row.values()) for row in done.rows["lines"].to_pylist()] == [
        (0, "a", 1, "t", 0, 100, 0),
        (0, "b", 2, "t", 0, 100, 1),
        (4, "d", 4, "t", 0, 104, 0),
    ]
    assert done.counts["t", 0].passed == 4
    assert done.quarantine.column("offset").to_pylist() == [103]


def test_a_list_of_scalars_becomes_the_column_itself(functions: Functions) -> None:
    functions(parse=returning(tag=pa.array([["x", "y"], ["z"]], pa.large_list(pa.string()))))
    sink = PostgresTable(table="tags", columns={"tag": "text"})

    done = flow(sink, parse="user_code:parse", record={"tag": "text"}, explode="tag").process(records(b"", b""))

    rows = done.rows["tags"]
    assert list(zip(rows["tag"].to_pylist(), rows["_offset"].to_pylist(), rows["_row"].to_pylist(), strict=True)) == [
        ("x", 100, 0),
        ("y", 100, 1),
        ("z", 101, 0),
    ]


@pytest.mark.parametrize(
    ("given", "error", "word"),
    [
        (lambda batch: batch.slice(1).select(["value"]), BatchContractError, "1 rows for 2"),
        (lambda batch: batch.to_pylist(), BatchContractError, "list"),
        (lambda batch: batch.select(["key"]), ColumnMismatchError, "no column id"),
        (returning(id=[[1], [2]]), ColumnMismatchError, "cannot be cast to bigint"),
        (returning(id=[1, 2], _skip=[1, 2]), BatchContractError, "_skip"),
        (returning(id=[1, 2], _error=[1, 2]), BatchContractError, "_error"),
    ],
)
def test_a_parse_that_breaks_its_contract_fails_the_attempt(
    functions: Functions, given: Callable[..., object], error: type[EpochlineError], word: str
) -> None:
    functions(parse=given)

    with pytest.raises(error, match=word):
        flow(SMALL, parse="user_code:parse", record={"id": "bigint"}).process(records(b"", b""))


def test_a_select_gives_its_sink_other_columns(functions: Functions) -> None:
    functions(
        twice=lambda batch: pa.record_batch({"client": batch["name"], "n": pc.multiply(batch["id"], 2)}),
        short=lambda batch: batch.slice(1),
    )
    columns = {"client": "text", "n": "bigint"}
    add = PostgresTable(table="a", mode="add", key="client", measures="n", columns=columns, select="user_code:twice")
    short = PostgresTable(table="s", columns=columns, select="user_code:short")

    done = flow(ALL, add).process(records(doc(id=4, name="x"), doc(name="y"), doc(id=1)))

    assert done.rows["a"].to_pylist() == [{"client": "x", "n": 8}, {"client": "y", "n": 0}]
    assert done.quarantine.column("reason").to_pylist() == ["a: NULL in the key column client"]
    with pytest.raises(BatchContractError, match="select user_code:short of s"):
        flow(short).process(records(doc(id=4), doc(id=5)))


@pytest.mark.parametrize("kind", ["smallint", "bigint", "numeric(3,2)", "numeric(12,2)", "numeric(50,3)", "numeric"])
def test_a_measure_without_a_value_counts_as_zero(kind: str) -> None:
    columns = {"name": "text", "amount": kind}
    add = PostgresTable(table="a", mode="add", key="name", measures="amount", columns=columns)

    done = flow(add, parse=Json(columns=columns)).process(records(doc(name="x", amount=2), doc(name="y")))

    assert [Decimal(row["amount"]) for row in done.rows["a"].to_pylist()] == [2, 0]


def test_with_a_transform_rows_carry_their_record_and_its_tombstone(functions: Functions) -> None:
    functions(transform=lambda frame: frame)
    sink = PostgresTable(**UPSERT, order_by="status")
    declared = pipeline(sink, parse=Json(columns=COLUMNS), transform="user_code:transform", bad_records="quarantine")
    tables = staged_tables(declared, {"u": COLUMNS}, 1, 1)
    one = BatchRows(declared.spec, tables)

    rows, quarantine, counts = one.parse_only(
        records(doc(id=1, name="a", status=2), b"x", None, keys=[None, None, doc(id=1, status=3)])
    )

    assert rows.schema.equals(one.parsed_schema)
    assert rows.column("_tombstone").to_pylist() == [False, True]
    assert quarantine.column("offset").to_pylist() == [101]
    assert counts["t", 0].passed == 2
    spec = sink.spec
    assert isinstance(spec, TableSpec)
    staged = cast_rows(tables[0], spec, rows)
    assert staged.select(["id", "name", "status", "_order_status", "_deleted"]).to_pylist() == [
        {"id": 1, "name": "a", "status": 2, "_order_status": 2, "_deleted": False},
        {"id": 1, "name": None, "status": None, "_order_status": 3, "_deleted": True},
    ]
    too_big = rows.set_column(rows.schema.get_field_index("status"), "status", pa.array([1, 99999]))
    with pytest.raises(ValueDoesNotFitError, match="status: a value does not fit smallint"):
        cast_rows(tables[0], spec, too_big)
    with pytest.raises(ColumnMismatchError, match="no column status"):
        cast_rows(tables[0], spec, rows.drop_columns(["status"]))


def test_text_refuses_what_postgresql_has_no_room_for() -> None:
    sink = PostgresTable(table="lines", columns={"value": "text"})

    done = flow(sink, parse=Text()).process(records(b"a", b"\xc3(", b"a\0", None, "ä".encode()))

    assert done.rows["lines"].column("value").to_pylist() == ["a", None, "ä"]
    assert done.quarantine.column("offset").to_pylist() == [101, 102]
