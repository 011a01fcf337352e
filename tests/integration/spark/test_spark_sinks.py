"""Topics and files from Spark itself: in one pass, after a transform, and when its tasks run again (E6, P5, P12)."""

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import DataFrame, functions

from epochline import Files, KafkaTopic, PostgresTable
from epochline.declare.parsers import Json
from epochline.sinks.file_manifest import committed_files
from tests.integration.sinks_world import new_topics, seen
from tests.integration.spark.conftest import Importable, Runs, Servers
from tests.reading import rows_in_folder

RECORD = {"who": "text", "n": "bigint"}


def lines(start: int, until: int) -> list[bytes]:
    return [json.dumps({"who": f"w{n % 3}", "n": n}).encode() for n in range(start, until)]


@pytest.fixture
def out(kafka_bootstrap: str) -> str:
    return new_topics(kafka_bootstrap, names=("out",))[0]


def declared(servers: Servers, topic: str, sinks: list[Any], transform: str | None = None) -> Runs:
    return Runs(servers, servers.unchecked(topic, parse=Json(columns=RECORD), sinks=sinks, transform=transform))


def test_one_pass_fills_table_topic_and_files_with_the_same_rows(
    servers: Servers, out: str, tmp_path: Path, importable: Importable
) -> None:
    """E6, N4: three kinds of sinks, two epochs; every sink holds each record once. Executors get a user's function."""

    def packed(rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        values = [f"{n:03}".encode() for n in rows.column("n").to_pylist()]
        return pyarrow.record_batch({"key": rows.column("who"), "value": values})

    path, (other,) = str(tmp_path / "rows"), new_topics(servers.bootstrap, names=("other",))
    runs = declared(servers, servers.topic({0: lines(0, 40), 1: lines(40, 70)}), [
        PostgresTable(table="rows", columns=RECORD),
        KafkaTopic(topic=out, value=Json(columns={"n": "bigint"}), key="who", columns={"who": "text"}),
        # No file has the function, as a declaration that is checked would want.
        KafkaTopic(topic=other, value=Json(columns=RECORD)).model_copy(
            update={"value": importable(packed), "columns": RECORD}
        ),
        Files(path=path, columns=RECORD),
    ])  # fmt: skip

    runs.epoch()
    assert seen(servers.bootstrap, out) == []
    assert rows_in_folder(path) == []
    names = [f"files:{path}", *sorted([f"kafka:{out}", f"kafka:{other}"])]
    assert [(one.epoch_id, one.sink) for one in runs.publish()] == [(1, name) for name in names]
    runs.epoch({1: lines(70, 80)})
    runs.publish()

    assert sorted(n for (n,) in servers.database.query("SELECT n FROM rows")) == list(range(80))
    records = seen(servers.bootstrap, out)
    assert sorted(json.loads(one.value or "")["n"] for one in records) == list(range(80))
    assert {one.key for one in records} == {"w0", "w1", "w2"}
    packed_records = sorted((one.value, one.key) for one in seen(servers.bootstrap, other))
    assert packed_records == [(f"{n:03}", f"w{n % 3}") for n in range(80)]
    found = rows_in_folder(path)
    assert sorted(row["n"] for row in found) == list(range(80))
    assert {(row["_partition"], row["_offset"]) for row in found} == set(itertools.product((0, 1), range(40)))


def test_after_a_transform_each_sink_gets_its_own_frame(
    servers: Servers, out: str, tmp_path: Path, importable: Importable
) -> None:
    """P7: totals to a table and, as the same, to a topic; the parsed rows to files. One receipt per sink."""
    path, database = str(tmp_path / "rows"), servers.database

    def named(parsed: DataFrame) -> dict[str, DataFrame]:
        totals = parsed.groupBy("who").agg(functions.sum("n").alias("n"))
        return {"totals": totals, f"kafka:{out}": totals, f"files:{path}": parsed}

    runs = declared(servers, servers.topic({0: lines(0, 30)}), [
        PostgresTable(table="totals", columns=RECORD, mode="add", key="who", measures="n"),
        KafkaTopic(topic=out, value=Json(columns=RECORD), key="who", aggregated=True, order_by="n"),
        Files(path=path, columns=RECORD, format="csv"),
    ], importable(named))  # fmt: skip

    runs.epoch()
    runs.publish()

    totals = {f"w{k}": sum(range(k, 30, 3)) for k in range(3)}
    assert dict(database.query("SELECT who, n FROM totals")) == totals
    assert {one.key: json.loads(one.value or "")["n"] for one in seen(servers.bootstrap, out)} == totals
    (epoch,) = committed_files(path)
    text = "".join(Path(file).read_text() for file in epoch.files)
    assert sorted(int(line.split(",")[1]) for line in text.splitlines() if "who" not in line) == list(range(30))
    states = database.query("SELECT sink, state, rows FROM epochline.receipts ORDER BY sink")
    assert states == [(f"files:{path}", "SHOWN", 30), (f"kafka:{out}", "SHOWN", 3), ("totals", "SHOWN", 3)]


def test_a_deleted_row_is_a_record_without_a_value(servers: Servers, out: str, importable: Importable) -> None:
    """A transform's ``_deleted`` makes a tombstone: the key without a value."""

    def latest(parsed: DataFrame) -> DataFrame:
        return parsed.select("who", "n", (functions.col("n") % 2 == 0).alias("_deleted"))

    who, value = {"who": "text"}, Json(columns={"n": "bigint"})
    sink = KafkaTopic(topic=out, value=value, key="who", columns=who, aggregated=True)
    runs = declared(servers, servers.topic({0: lines(0, 6)}), [sink], importable(latest))

    runs.epoch()
    runs.publish()

    records = seen(servers.bootstrap, out)
    assert {one.key: one.value for one in records if one.value} == {"w0": '{"n":3}', "w1": '{"n":1}', "w2": '{"n":5}'}
    assert [one.value for one in records].count(None) == 3
    assert len(records) == 6
