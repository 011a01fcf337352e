"""A value that a record does not give: an upsert table keeps the column, or the record is bad. Never a placeholder."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from epochline import Json, PostgresTable
from epochline.protocol.offsets import PlannedRange
from tests.contract.worlds import orders
from tests.databases import query
from tests.in_memory.kafka import FakeKafka
from tests.integration.bench import IN_PUBLIC, LINEAGE, Row
from tests.integration.in_process import InProcess, over_records
from tests.reading import source_batch

P = "__debezium_unavailable_value"
COLUMNS = {"k": "text", "a": "text", "b": "bytea", "n": "integer"}
SINK: dict[str, Any] = {"table": "t", "mode": "upsert", "key": "k", "columns": COLUMNS, "keep_unavailable": True}


class Job:
    """One pipeline with records in two partitions, whose epochs go on until the seal takes them."""

    def __init__(self, dsn: str, **sink: Any) -> None:
        self.records: dict[int, list[Any]] = {0: [], 1: []}
        self.kafka = FakeKafka()
        for partition in self.records:
            self.kafka.produce("orders", partition, 0)
        pipeline = orders(parse=Json(columns=COLUMNS, unavailable=P), sinks=PostgresTable(**SINK | sink))
        self.one = InProcess(dsn, pipeline, self.kafka, lambda one: [self.batch(one)]).create()

    def batch(self, one: PlannedRange) -> pa.RecordBatch:
        """A record without any column but the key and its order is a tombstone."""
        offsets = range(one.range.start, one.range.until)
        records = [self.records[one.tp.partition][offset] for offset in offsets]
        texts = [json.dumps(record).encode() for record in records]
        is_tombstone = [set(record) == {"k", "n"} for record in records]
        values = [None if gone else text for text, gone in zip(texts, is_tombstone, strict=True)]
        keys = [text if gone else None for text, gone in zip(texts, is_tombstone, strict=True)]
        return source_batch(one.tp, offsets, values, key=keys)

    def send(self, *records: Row, partition: int = 0) -> None:
        self.records[partition] += records
        self.kafka.produce("orders", partition, len(records))

    def epoch(self, **options: Any) -> None:
        self.one.attempts(*self.one.planned(**options), most=99)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.one.sql("SELECT k, a, encode(b, 'escape'), n FROM t ORDER BY k")

    def bad(self) -> dict[tuple[int, int], str]:
        found = self.one.sql('SELECT partition, "offset", reason FROM epochline.quarantine')
        return {(partition, offset): reason for partition, offset, reason in found}


def row(k: str, a: Any, b: Any, n: int) -> Row:
    return {"k": k, "a": a, "b": b, "n": n}


B1, B2, NO_BYTES = "eA==", "eQ==", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="


def gone(k: str, n: int) -> Row:
    return {"k": k, "n": n}


# What is committed before, what the next epoch reads (both by partition), and the row of x with the offset that is bad.
ONE, KEPT = row("x", "one", B1, 1), ("x", "one", "x", 3)
LATE: dict[str, tuple[dict[int, list[Row]], dict[int, list[Row]], tuple[Any, ...] | None, set[tuple[int, int]]]] = {
    "the first row of a key": ({}, {0: [row("x", P, B1, 3)]}, None, {(0, 0)}),
    "an earlier record of the epoch": ({}, {0: [ONE, row("x", P, B1, 3)]}, KEPT, set()),
    "an older order that is read later": ({}, {0: [row("x", P, B1, 3), ONE]}, KEPT, set()),
    "a deletion before it in the epoch": (
        {}, {0: [ONE, gone("x", 2), row("x", P, B1, 3)]}, None, {(0, 2)}),
    "a row, a deletion and a whole row before it": (
        {0: [row("x", "old", B2, 0)]}, {0: [gone("x", 0), ONE, row("x", P, B1, 3)]}, KEPT, set()),
    "a deletion after it": ({0: [ONE]}, {0: [row("x", P, B1, 3), gone("x", 4)]}, None, set()),
    "a deletion in the table": ({0: [ONE, gone("x", 2)]}, {0: [row("x", P, B1, 3)]}, None, {(0, 2)}),
    "a deletion that is older than the row": ({0: [ONE]}, {0: [gone("x", 0), row("x", P, B1, 3)]}, KEPT, set()),
    "no value, and a newer whole row": (
        {}, {0: [row("x", P, B1, 2), row("x", "two", B1, 3)]}, ("x", "two", "x", 3), {(0, 0)}),
    "a value of another partition in the epoch": ({0: [ONE]}, {0: [row("x", P, B1, 3)], 1: [row("x", "two", B1, 2)]},
                                                  ("x", "two", "x", 2), {(0, 1)}),
    # The order of a key goes back: the late record changes nothing, also not the value that the newer row has kept.
    "a late record of another partition": (
        {0: [ONE, row("x", P, B1, 3)]}, {1: [row("x", "two", B2, 2)]}, KEPT, set()),
    "a late record of the same partition": (
        {0: [ONE, row("x", P, B1, 3)]}, {0: [row("x", "two", B2, 2)]}, KEPT, set()),
    "a late record without the value": ({0: [ONE, row("x", "one", B1, 3)]}, {1: [row("x", P, B2, 2)]}, KEPT, set()),
    "a repeat of what was read": (
        {0: [ONE, row("x", P, B1, 3)]}, {0: [ONE, row("x", P, B1, 3)]}, KEPT, set()),
}  # fmt: skip


@pytest.mark.parametrize("case", LATE)
def test_a_kept_value_is_that_of_the_newest_older_record_of_its_partition(postgres_dsn: str, case: str) -> None:
    before, then, x, bad = LATE[case]
    job = Job(postgres_dsn, order_by="n")
    for part in filter(None, (before, then)):
        for partition, records in part.items():
            job.send(*records, partition=partition)
        job.epoch()

    assert job.rows() == ([] if x is None else [x])
    assert set(job.bad()) == bad
    for reason in job.bad().values():
        assert "a is unavailable" in reason
        assert "no older row of its key in the same partition" in reason


def reference(history: Sequence[Row]) -> tuple[dict[str, tuple[Any, ...]], set[int]]:
    """The rows, and the offsets of the bad records, of a history in one partition."""
    rows: dict[str, tuple[Any, ...]] = {}
    bad = set()
    for offset, one in enumerate(history):
        if set(one) == {"k", "n"}:
            rows.pop(one["k"], None)
            continue
        before = rows.get(one["k"])
        kept = [one["a"] == P, one["b"] == NO_BYTES]
        if any(kept) and before is None:
            bad.add(offset)
            continue
        a = before[0] if kept[0] and before else one["a"]
        b = before[1] if kept[1] and before else {None: None, B1: "x", B2: "y"}[one["b"]]
        rows[one["k"]] = (a, b, one["n"])
    return rows, bad


@pytest.mark.fault("F28")
@pytest.mark.parametrize("order_by", [(), "n"], ids=["by offset", "by a column"])
@pytest.mark.parametrize("seed", range(4))
def test_every_division_into_epochs_gives_the_same_rows_and_bad_records(
    postgres_dsn: str, seed: int, order_by: Any
) -> None:
    rng = random.Random(seed)
    job = Job(postgres_dsn, order_by=order_by)
    history = [
        gone(rng.choice("xyz"), number) if rng.random() < 0.15 else
        row(rng.choice("xyz"), rng.choice(["one", "two", None, P, P]), rng.choice([B1, B2, None, NO_BYTES]), number)
        for number in range(40)
    ]  # fmt: skip
    job.send(*history)

    while job.one.sql("SELECT max(next_offset) FROM epochline.heads") != [(len(history),)]:
        job.epoch(record_limit=rng.randint(1, 15))

    rows, bad = reference(history)
    assert {k: rest for k, *rest in job.rows()} == {k: list(values) for k, values in rows.items()}
    assert set(job.bad()) == {(0, offset) for offset in bad}


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_missing_member_has_its_default_in_a_table_that_refuses_null(postgres_dsn: str, mode: str) -> None:
    """A member that is null stays NULL and is bad; an update takes the default too, because a record is the whole row."""
    table = f"CREATE TABLE t (id int PRIMARY KEY, plan text NOT NULL DEFAULT 'free'{LINEAGE})"
    query(postgres_dsn, table, options=IN_PUBLIC)
    again, keyed = ([{"id": 2}], {"mode": mode, "key": "id"}) if mode == "upsert" else ([], {})
    records = [{"id": 1}, {"id": 2, "plan": "gold"}, {"id": 3, "plan": None}, *again]
    parse = Json(columns={"id": "integer", "plan": "text"}, defaults={"plan": "basic"})
    one = over_records(postgres_dsn, orders(parse=parse, sinks=PostgresTable(table="t", **keyed)), records)

    one.epoch()

    assert one.sql("SELECT id, plan FROM t ORDER BY 1") == [(1, "basic"), (2, "basic" if mode == "upsert" else "gold")]
    [(offset, reason)] = one.sql('SELECT "offset", reason FROM epochline.quarantine')
    assert (offset, "NULL in plan" in reason) == (2, True)
