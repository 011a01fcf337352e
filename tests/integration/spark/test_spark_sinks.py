"""Topics and files from Spark itself: in one pass, after a transform, and when its tasks run again (E6, P5, P12)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from epochline import Files, KafkaSource, KafkaTopic, Pipeline, PostgresTable
from epochline.declare.parsers import Json
from epochline.sinks.file_manifest import committed_files
from tests.integration.sinks_world import new_topics, seen
from tests.integration.spark.conftest import Runs
from tests.reading import rows_in_folder

RECORD = {"who": "text", "n": "bigint"}


def twice(parsed):
    raise AssertionError("each test puts its own in the place of this")


@pytest.fixture(autouse=True)
def module(monkeypatch):
    made = ModuleType("pipelines_of_tests")
    made.twice = twice
    monkeypatch.setitem(sys.modules, made.__name__, made)


def lines(start, until):
    return [json.dumps({"who": f"w{n % 3}", "n": n}).encode() for n in range(start, until)]


@pytest.fixture
def out(kafka_bootstrap):
    return new_topics(kafka_bootstrap, names=("out",))[0]


def declared(name, topic, sinks, transform=None) -> Pipeline:
    body = {
        "name": name, "source": KafkaSource(topics=topic).model_dump(), "parse": Json(columns=RECORD).model_dump(),
        "sinks": [sink.model_dump(mode="json") for sink in sinks], "transform": transform,
    }  # fmt: skip
    return Pipeline.from_stored(json.dumps(body))


def test_one_pass_fills_a_table_a_topic_and_files_with_the_same_rows(
    spark, database, topic, produce, name, kafka_bootstrap, out, tmp_path
):
    """E6: three kinds of sinks, two epochs; every sink holds each record once."""
    source = topic({0: lines(0, 40), 1: lines(40, 70)})
    runs = Runs(spark, database, declared(name, source, [
        PostgresTable(table="rows", columns=RECORD),
        KafkaTopic(topic=out, value=Json(columns={"n": "bigint"}), key="who", columns={"who": "text"}),
        Files(path=str(tmp_path / "rows"), columns=RECORD),
    ]), kafka_bootstrap)  # fmt: skip

    runs.epoch()
    assert seen(kafka_bootstrap, out) == []
    assert rows_in_folder(str(tmp_path / "rows")) == []
    assert runs.publish() == [(1, f"files:{tmp_path / 'rows'}"), (1, f"kafka:{out}")]
    produce(source, {1: lines(70, 80)})
    runs.epoch()
    runs.publish()

    assert sorted(n for (n,) in database.query("SELECT n FROM rows")) == list(range(80))
    assert sorted(json.loads(one.value)["n"] for one in seen(kafka_bootstrap, out)) == list(range(80))
    assert {one.key for one in seen(kafka_bootstrap, out)} == {"w0", "w1", "w2"}
    found = rows_in_folder(str(tmp_path / "rows"))
    assert sorted(row["n"] for row in found) == list(range(80))
    assert {(row["_partition"], row["_offset"]) for row in found} == {
        *((0, offset) for offset in range(40)), *((1, offset) for offset in range(40)),
    }  # fmt: skip


def test_after_a_transform_each_sink_gets_its_own_frame(
    spark, database, topic, name, kafka_bootstrap, out, tmp_path, monkeypatch
):
    """P7: totals to a table and, as the same, to a topic; the parsed rows to files. One receipt per sink."""
    source, path = topic({0: lines(0, 30)}), str(tmp_path / "rows")
    made = sys.modules["pipelines_of_tests"]

    def named(parsed, out=out, path=path):
        from pyspark.sql import functions

        totals = parsed.groupBy("who").agg(functions.sum("n").alias("n"))
        return {"totals": totals, f"kafka:{out}": totals, f"files:{path}": parsed}

    monkeypatch.setattr(made, "twice", named)
    runs = Runs(spark, database, declared(name, source, [
        PostgresTable(table="totals", columns=RECORD, mode="add", key="who", measures="n"),
        KafkaTopic(topic=out, value=Json(columns=RECORD), key="who", aggregated=True, order_by="n"),
        Files(path=path, columns=RECORD, format="csv"),
    ], "pipelines_of_tests:twice"), kafka_bootstrap)  # fmt: skip

    runs.epoch()
    runs.publish()

    totals = {f"w{k}": sum(n for n in range(30) if n % 3 == k) for k in range(3)}
    assert dict(database.query("SELECT who, n FROM totals")) == totals
    assert {one.key: json.loads(one.value)["n"] for one in seen(kafka_bootstrap, out)} == totals
    (epoch,) = committed_files(path)
    text = "".join(Path(file).read_text() for file in epoch.files)
    assert sorted(int(line.split(",")[1]) for line in text.splitlines() if "who" not in line) == list(range(30))
    states = database.query("SELECT sink, state, rows FROM epochline.receipts ORDER BY sink")
    assert states == [(f"files:{path}", "SHOWN", 30), (f"kafka:{out}", "SHOWN", 3), ("totals", "SHOWN", 3)]


def test_a_deleted_row_is_a_record_without_a_value(spark, database, topic, name, kafka_bootstrap, out, monkeypatch):
    """A transform's ``_deleted`` makes a tombstone: the key without a value."""
    source = topic({0: lines(0, 6)})
    made = sys.modules["pipelines_of_tests"]

    def latest(parsed):
        from pyspark.sql import functions

        return parsed.select("who", "n", (functions.col("n") % 2 == 0).alias("_deleted"))

    monkeypatch.setattr(made, "twice", latest)
    runs = Runs(spark, database, declared(name, source, [
        KafkaTopic(topic=out, value=Json(columns={"n": "bigint"}), key="who", columns={"who": "text"}, aggregated=True),
    ], "pipelines_of_tests:twice"), kafka_bootstrap)  # fmt: skip

    runs.epoch()
    runs.publish()

    assert sorted((one.key, one.value) for one in seen(kafka_bootstrap, out) if one.value) == [
        ("w0", '{"n":3}'), ("w1", '{"n":1}'), ("w2", '{"n":5}'),
    ]  # fmt: skip
    assert sum(1 for one in seen(kafka_bootstrap, out) if one.value is None) == 3
