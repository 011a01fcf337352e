"""`epochline why` for rows that a transform, state or windows made, by real Spark jobs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochline import EventTime, Json, Pipeline, PostgresTable, StateTable, Text, Tumbling, Windowed
from tests.commands import Call
from tests.integration.spark.conftest import Runs, Servers

SUMMING = '''
"""Sums of the records, with and without what earlier epochs held."""

from pyspark.sql import functions as F


def once(records):
    return {"sums": records.groupBy("k").agg(F.sum("v").cast("bigint").alias("v"))}


def words(lines):
    return lines.select(F.explode(F.split("value", " ")).alias("k"))


def count(lines, state):
    return {"seen": lines.select("value"), "held": words(lines).groupBy("k").agg(F.count("*").cast("bigint").alias("v"))}


def on(records, state):
    new = records.groupBy("k").agg(F.sum("v").alias("more"))
    held = new.join(state["held"], "k", "left").select("k", (F.coalesce("v", F.lit(0)) + F.col("more")).cast("bigint").alias("v"))
    return {"sums": held, "held": held}
'''
KV = {"k": "text", "v": "bigint"}
RECORD = {"k": "text", "v": "bigint", "at": "timestamptz"}
SUMS = PostgresTable(table="sums", mode="upsert", key="k", columns=KV, aggregated=True)
HELD = StateTable(table="held", key="k", columns=KV)
WINDOWS = {"k": "text", "window_start": "timestamptz", "window_end": "timestamptz", "n": "bigint"}

Made = tuple[dict[str, Any], str, list[str], tuple[int, int], list[tuple[int, int]]]
"""What is declared; a table and a key; the epochs and the places of the records that must be told."""

KINDS: dict[str, Made] = {
    "a transform's epoch": (
        {"transform": "summing:once", "sinks": [SUMS]}, "sums", ["a"], (2, 2), [(0, 2)],
    ),
    "a transform with state": (
        {"transform": "summing:on", "sinks": [SUMS], "state": [HELD]}, "sums", ["a"], (1, 2), [(0, 2), (1, 0), (0, 0)],
    ),
    "a state table": (
        {"transform": "summing:on", "sinks": [SUMS], "state": [HELD]}, "held", ["k=a"], (1, 2), [(0, 2), (1, 0), (0, 0)],
    ),
    "a window": (
        {
            "windows": Windowed(
                time=EventTime(column="at"), window=Tumbling(size=10), key="k", aggregates={"n": "count(*)"}, into="hits"
            ),
            "sinks": [PostgresTable(
                table="hits", mode="upsert", key=("k", "window_start"), columns=WINDOWS, aggregated=True
            )],
        },
        "hits", ["k=a", "window_start=2026-03-01T00:00:00Z"], (1, 2), [(1, 0), (0, 0)],
    ),
    "an open window": (
        {
            "windows": Windowed(
                time=EventTime(column="at"), window=Tumbling(size=10), key="k", aggregates={"n": "count(*)"}, into="hits"
            ),
            "sinks": [PostgresTable(
                table="hits", mode="upsert", key=("k", "window_start"), columns=WINDOWS, aggregated=True
            )],
        },
        "hits_open", ["k=a", "window_start=2026-03-01T00:00:20Z"], (1, 2), [(0, 2)],
    ),
}  # fmt: skip


def record(k: str, v: int, second: int) -> bytes:
    return json.dumps({"k": k, "v": v, "at": f"2026-03-01T00:00:{second:02}Z"}).encode()


NewRun = Callable[..., Runs]


@pytest.fixture
def run(servers: Servers, on_servers: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewRun:
    (tmp_path / "summing.py").write_text(SUMMING)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(values: dict[int, list[bytes]], **declared: Any) -> Runs:
        declared = {"parse": Json(columns=RECORD)} | declared
        pipeline: Pipeline = servers.pipeline(servers.topic(values), **declared)
        return Runs(servers, pipeline)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_many_records_made_leads_to_the_epochs_and_records_that_are_in_it(
    kind: str, run: NewRun, on_servers: Call
) -> None:
    """U9."""
    declared, table, key, scope, expected = KINDS[kind]
    it = run({0: [record("a", 1, 1), record("b", 2, 2)], 1: [record("a", 3, 3)]}, **declared)
    it.epoch()
    it.epoch({0: [record("a", 4, 21)], 1: [record("c", 5, 21)]})

    [row] = on_servers.json("why", table, *key)["rows"]

    assert (row["record"], row["epoch"]["epoch_id"], row["epoch"]["run_id"]) == (None, 2, "run-2")
    assert (row["scope"]["first"], row["scope"]["last"]) == scope
    assert [(one["partition"], one["offset"]) for one in row["records"]] == expected
    assert (row["more_records"], row["notes"]) == (0, [])
    it.database.query(f"UPDATE {table} SET k = k WHERE k = 'a'")
    [row] = on_servers.json("why", table, *key)["rows"]
    assert [note[:31] for note in row["notes"]] == ["Another hand wrote the row last"]


def test_a_key_that_no_record_has_names_ranges_alone(run: NewRun, on_servers: Call) -> None:
    """Words of a line: the transform's own function makes the key."""
    held = HELD.model_copy(update={"keys": "summing:words"})
    seen = PostgresTable(table="seen", columns={"value": "text"}, aggregated=True)
    it = run({0: [b"a b"]}, parse=Text(), transform="summing:count", sinks=[seen], state=[held])
    it.epoch()

    [row] = on_servers.json("why", "held", "a")["rows"]

    assert row["records"] == []
    assert row["notes"] == [
        "The records are not told: k is no column of the record, so that records cannot be told by the row's key."
    ]
    assert [(one["start_offset"], one["until_offset"]) for one in row["scope"]["ranges"]] == [(0, 1)]
