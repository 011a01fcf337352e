"""`epochline audit` of rows that transforms, state and windows made, by running them again in a real Spark."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from epochline import (
    EventTime,
    Files,
    Input,
    Json,
    KafkaSource,
    KafkaTopic,
    Pipeline,
    PostgresTable,
    Sources,
    StateTable,
    Tumbling,
    Windowed,
    WindowedQuery,
)
from epochline.errors import StackError
from epochline.kafka.source import KafkaOffsets
from epochline.sinks.file_manifest import committed_files
from epochline.sources.several import SeveralOffsets
from tests.commands import COMMAND, Call
from tests.integration import kafka_topics
from tests.integration.auditing import Said, said_by_audit
from tests.integration.sinks_world import new_topics
from tests.integration.spark.conftest import Runs, Servers

MAKING = '''
"""Rows of every kind of target, with and without what earlier epochs held."""

from pyspark.sql import functions as F


def all_kinds(records, state):
    new = records.groupBy("k").agg(F.sum("v").alias("more"), F.sum("f").alias("g"))
    held = new.join(state["held"], "k", "left").select("k", (F.coalesce("v", F.lit(0)) + F.col("more")).cast("bigint").alias("v"))
    sums = new.select("k", F.col("more").cast("bigint").alias("v"))
    twice = records.select("k", "v", "_topic", "_partition", "_offset", "_row")
    return {
        "each": twice.unionAll(twice.withColumn("v", F.col("v") * 10)),
        "per_epoch": new.select("k", F.col("more").cast("bigint").alias("v"), "g"),
        "bare": sums, "newest": sums, "last": held, "added": sums, "held": held.where("v <> 0").withColumn("_deleted", F.lit(False)).unionByName(
            held.where("v = 0").withColumn("_deleted", F.lit(True))
        ),
    }


def once(records):
    return {"each": records.select("k", "v", "_topic", "_partition", "_offset", "_row")}


def hostile(records, state):
    held = records.groupBy('k"%é').agg(F.sum("`v'%w;`").cast("bigint").alias("v'%w;"))
    return {"hostile": records, 'st"ate %s': held.unionByName(state['st"ate %s']).groupBy('k"%é').agg(F.sum("`v'%w;`").cast("bigint").alias("v'%w;"))}


def at_random(records):
    return {"per_epoch": records.select("k", (F.rand() * 1e15).cast("bigint").alias("v"), F.col("f").alias("g"))}


def joined(records):
    names = records["names"].select("k", "name")
    return {"named": records["values"].join(names, "k").select("k", "name", "v")}
'''
RECORD = {"k": "text", "v": "bigint", "f": "double precision", "at": "timestamptz"}
KV = {"k": "text", "v": "bigint"}
EACH = PostgresTable(table="each", columns=KV)
PER_EPOCH = PostgresTable(table="per_epoch", columns={**KV, "g": "double precision"}, aggregated=True)
KINDS = (
    EACH, PER_EPOCH,
    PostgresTable(table="bare", columns=KV, aggregated=True, lineage=False),
    PostgresTable(table="newest", columns=KV, aggregated=True, mode="replace"),
    PostgresTable(table="last", columns=KV, aggregated=True, mode="upsert", key="k"),
    PostgresTable(table="added", columns=KV, mode="add", key="k", measures="v"),
)  # fmt: skip
HELD = StateTable(table="held", key="k", columns=KV)
FLOATS = "values not compared: g: floating-point numbers of a transform"


def record(k: str, v: int, second: int = 0, **more: Any) -> bytes:
    return json.dumps({"k": k, "v": v, "f": 0.1 * v, "at": f"2026-03-01T00:00:{second:02}Z", **more}).encode()


NewRun = Callable[..., Runs]
Audit = Callable[..., Said]


@pytest.fixture
def run(servers: Servers, on_servers: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewRun:
    (tmp_path / "making_again.py").write_text(MAKING)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(values: dict[int, list[bytes]], **declared: Any) -> Runs:
        declared = {"parse": Json(columns=RECORD), "bad_records": "quarantine"} | declared
        pipeline: Pipeline = servers.pipeline(servers.topic(values), **declared)
        return Runs(servers, pipeline)

    return make


@pytest.fixture
def audit(servers: Servers, on_servers: Call, monkeypatch: pytest.MonkeyPatch) -> Audit:
    """The command with the session of these tests; exit code, differences, epochs and the summary."""
    monkeypatch.setattr("epochline.cli.execution.start_spark", lambda *_: servers.spark)

    return partial(said_by_audit, on_servers, servers.name, place="epoch_id")


@pytest.mark.slow
def test_rows_of_a_transform_with_state_are_those_of_another_run_and_a_change_of_any_is_named(
    run: NewRun, audit: Audit
) -> None:
    """INV-9: every mode of a target, after a crash and a record that was set aside; then one row of each is altered."""
    it = run(
        {0: [record("a", 1), record("b", 2), b"{"], 1: [record("a", 3)]},
        transform="making_again:all_kinds", sinks=KINDS, state=[HELD],
    )  # fmt: skip
    it.epoch()
    it.produce({0: [record("a", 4), record("b", -2)], 1: [record("c", 5)]})
    it.crash()
    it.epoch()

    code, differences, epochs, summary = audit()

    assert (code, differences) == (3, [])
    said = {sink["sink"]: sink["said"] for sink in epochs[1]["sinks"]}
    assert (said["each"], said["per_epoch"]) == (None, FLOATS)
    assert (summary["not_judged_targets"], summary["not_judged"]) == ([], 2)

    it.database.query(
        "UPDATE each SET v = 11 WHERE k = 'a' AND v = 10; DELETE FROM per_epoch WHERE k = 'b' AND _epoch = 1;"
        " INSERT INTO per_epoch (k, v, _epoch) VALUES ('z', 1, 3); INSERT INTO bare VALUES ('z', 1), ('c', 5);"
        " UPDATE newest SET v = 6 WHERE k = 'c'; UPDATE last SET v = 9 WHERE k = 'a'; DELETE FROM added WHERE k = 'c';"
        " UPDATE held SET v = 9 WHERE k = 'a'"
    )

    code, differences, _, summary = audit()

    assert code == 1
    assert sorted(differences, key=str) == sorted(
        [
            ("each", "changed", 1, 0, "v"), ("per_epoch", "missing", 1, None, "1 rows"),
            ("per_epoch", "extra", 3, None, "1 rows"), ("bare", "extra", None, None, "1 rows"),
            ("bare", "doubled", None, None, "1 rows"), ("newest", "missing", 3, None, "1 rows"),
            ("newest", "extra", 3, None, "1 rows"), ("last", "changed", None, None, "1 rows: v"),
            ("added", "missing", None, None, "1 rows"), ("held", "changed", None, None, "1 rows: v"),
            ("held", "changed", 3, None, "epoch 3 left 2 keys, it now holds the same number of keys with other values"),
        ],
        key=str,
    )  # fmt: skip
    assert summary["notes"][-1].startswith("rows of a transform also differ if its code is another one today")


@pytest.mark.slow
def test_topics_and_files_of_a_transform_are_those_of_another_run(
    run: NewRun, audit: Audit, servers: Servers, tmp_path: Path
) -> None:
    """INV-9: one record, and one row of a file, that no run gives. Sums of floating-point numbers are not compared."""
    out, floats = new_topics(servers.bootstrap, names=("out", "floats"))
    path = str(tmp_path / "rows")
    (tmp_path / "following_again.py").write_text(
        "from pyspark.sql import functions as F\n\n\ndef made(records):\n"
        "    sums = records.groupBy('k').agg(F.sum('v').cast('bigint').alias('v'), F.sum('f').alias('g'))\n"
        f"    return {{'kafka:{out}': sums.select('k', 'v'), 'kafka:{floats}': sums.select('k', 'g'),"
        f" 'files:{path}': records}}\n"
    )
    sinks = [
        KafkaTopic(topic=out, value=Json(columns={"v": "bigint"}), key="k", columns={"k": "text"}, aggregated=True),
        KafkaTopic(topic=floats, value=Json(columns={"k": "text", "g": "double precision"}), aggregated=True),
        Files(path=path, columns=KV, format="csv"),
    ]
    it = run({0: [record("a", 1), record("b", 2)]}, transform="following_again:made", sinks=sinks)
    it.epoch()
    it.produce({0: [record("a", 4)]})
    it.crash()
    it.epoch()
    it.publish()

    code, differences, epochs, summary = audit()

    assert (code, differences) == (3, [])
    assert summary["not_judged_targets"] == [f"kafka:{floats}"]
    said = {one["sink"]: one["said"] for one in epochs[0]["sinks"]}
    assert (said[f"kafka:{out}"], said[f"files:{path}"]) == ("compared after the last epoch", None)
    assert said[f"kafka:{floats}"] == "not compared: g: floating-point numbers of a transform"
    kafka_topics.produce(servers.bootstrap, out, [b'{"v":3}'], key=b"a")
    file = next(file for one in committed_files(path) for file in one.files if '"a",1,' in Path(file).read_text())
    Path(file).write_text(Path(file).read_text().replace('"a",1,', '"a",7,'))

    code, differences, _, summary = audit()

    assert (code, differences) == (1, [(f"files:{path}", "changed", 1, 0, "v")])
    assert any(note.startswith(f"kafka:{out}: ") and "another program" in note for note in summary["notes"])


@pytest.mark.slow
def test_windows_are_closed_again_by_the_recorded_watermarks(run: NewRun, audit: Audit) -> None:
    """E5: results, records that came too late, and windows that are still open."""
    hits = {"k": "text", "window_start": "timestamptz", "window_end": "timestamptz", "n": "bigint"}
    windows = Windowed(
        time=EventTime(column="at", out_of_orderness=2), window=Tumbling(size=5), key="k", lateness=5,
        aggregates={"n": "count(*)"}, into="hits", too_late="late",
    )  # fmt: skip
    result = PostgresTable(table="hits", mode="upsert", key=("k", "window_start"), columns=hits, aggregated=True)
    it = run(
        {0: [record("a", 1, 1), record("a", 1, 3), record("b", 1, 9)], 1: [record("a", 1, 8)]},
        windows=windows, sinks=[result, PostgresTable(table="late", columns=RECORD)],
    )  # fmt: skip
    it.epoch()
    it.produce({0: [record("a", 1, 4)]})
    it.crash()
    it.epoch()
    it.epoch({0: [record("b", 1, 20)], 1: [record("a", 1, 21)]})
    it.epoch({1: [record("a", 2, 3)]})
    assert it.database.query("SELECT count(*) FROM hits") + it.database.query("SELECT count(*) FROM late") == [
        (3,),
        (1,),
    ]

    code, differences, epochs, _ = audit()

    assert (code, differences, len(epochs)) == (0, [], 4)
    it.database.query("UPDATE hits SET n = 5 WHERE k = 'b'; UPDATE late SET v = 3; DELETE FROM hits_open WHERE k = 'a'")
    code, differences, _, _ = audit()
    assert code == 1
    assert [one[:2] + one[3:] for one in differences] == [
        ("late", "changed", 2, "v"), ("hits", "changed", None, "1 rows: n"), ("hits_open", "missing", None, "1 rows"),
        ("hits_open", "changed", None, "epoch 5 left 2 keys, it now holds 1 key"),
    ]  # fmt: skip


@pytest.mark.slow
def test_an_idle_epoch_and_a_correction_of_its_result_are_run_again(run: NewRun, audit: Audit) -> None:
    columns = {
        "k": "text", "window_start": "timestamptz", "window_end": "timestamptz", "n": "bigint", "added": "boolean"
    }  # fmt: skip
    windows = Windowed(
        time=EventTime(column="at", idle_after=1), window=Tumbling(size=2), key="k", aggregates={"n": "count(*)"},
        into="changes", lateness=60, retractions="added",
    )  # fmt: skip
    changes = PostgresTable(table="changes", columns=columns, aggregated=True)
    it = run({0: [record("a", 1, 1)]}, windows=windows, sinks=[changes])
    it.epoch()
    time.sleep(1.5)  # by the database's clock the source is idle after one second, and the window over
    it.committed(*it.planned())
    it.epoch({0: [record("a", 1, 1)]})
    assert it.database.query("SELECT _epoch, n, added FROM changes ORDER BY 1, 2") == [
        (2, 1, True), (3, 1, False), (3, 2, True),
    ]  # fmt: skip

    assert audit()[:2] == (0, [])
    it.database.query("DELETE FROM changes WHERE NOT added")
    assert audit()[:2] == (1, [("changes", "missing", 3, None, "1 rows")])


@pytest.mark.slow
def test_streaming_sql_is_run_again(run: NewRun, audit: Audit) -> None:
    """E4: HAVING takes results back that an earlier epoch wrote."""
    query = WindowedQuery(
        query="SELECT k, window.start AS window_start, sum(v) AS n FROM {records} GROUP BY window(at, '5 seconds'), k"
        " HAVING sum(v) > 1",
        time=EventTime(column="at"), lateness=60, into="hits",
    )  # fmt: skip
    columns = {"k": "text", "window_start": "timestamptz", "n": "bigint"}
    result = PostgresTable(table="hits", mode="upsert", key=("k", "window_start"), columns=columns, aggregated=True)
    it = run({0: [record("a", 2, 1), record("b", 3, 1), record("a", 1, 6)]}, windows=query, sinks=[result])
    it.epoch()
    it.epoch({0: [record("b", -3, 2), record("a", 1, 12)]})
    assert it.database.query("SELECT k, n FROM hits") == [("a", 2)]

    assert audit()[:2] == (0, [])
    it.database.query("INSERT INTO hits SELECT 'b', window_start, n, _epoch FROM hits")
    assert audit()[:2] == (1, [("hits", "extra", None, None, "1 rows")])


def test_what_cannot_be_run_again_is_not_accused(run: NewRun, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transform that is not deterministic, a state that is not held, and a machine without Spark: exit code 3."""
    it = run({0: [record("a", 1)]}, transform="making_again:at_random", sinks=PER_EPOCH)
    it.epoch()

    code, differences, epochs, _ = audit()

    assert (code, differences) == (3, [])
    assert (
        "values not compared: two runs with the records in another order gave different rows of per_epoch"
        in (epochs[0]["sinks"][0]["said"])
    )
    it.database.query("DELETE FROM per_epoch")
    assert audit()[1] == [("per_epoch", "count", 1, None, "1 rows were sealed, 0 are there")]

    def no_java(*_: object) -> None:
        raise StackError("no Java")

    monkeypatch.setattr("epochline.cli.execution.start_spark", no_java)
    code, differences, epochs, _ = audit()
    assert epochs[0]["sinks"][0]["said"] == "values not compared: Spark does not start: no Java"


def test_epochs_in_the_middle_are_compared_unless_they_need_a_state(run: NewRun, audit: Audit) -> None:
    it = run({0: [record("a", 1)]}, transform="making_again:all_kinds", sinks=KINDS, state=[HELD])
    it.epoch()
    it.epoch({0: [record("a", 4)]})
    assert audit()[:2] == (3, [])

    code, differences, (epoch,), summary = audit("--epochs", "2")

    assert (code, differences) == (3, [])
    assert epoch["sinks"][0]["said"] == "values not compared: the state before epoch 2 is not held"
    assert "newest: rows not compared: the state before epoch 2 is not held" in summary["notes"]
    it.database.query("DELETE FROM each WHERE v = 1")
    code, differences, _, summary = audit("--epochs", "..1")
    assert (code, differences) == (1, [("each", "missing", 1, 0, None)])
    assert "newest: rows not compared: its rows are the newest epoch's; let --epochs end there" in summary["notes"]


def test_the_command_reads_several_sources_and_joins_them_again(run: NewRun, audit: Audit, servers: Servers) -> None:
    """N7: two topics."""
    columns = {"values": {"k": "text", "v": "bigint"}, "names": {"k": "text", "name": "text"}}
    topics = {"values": servers.topic({0: [record("a", 1)]}), "names": servers.topic({0: [b'{"k": "a", "name": "A"}']})}
    inputs = {
        name: Input(source=KafkaSource(topics=topics[name]), parse=Json(columns=columns[name])) for name in columns
    }
    declared = Pipeline(
        name=servers.name, source=Sources(inputs=inputs), transform="making_again:joined", bad_records="quarantine",
        sinks=PostgresTable(table="named", columns={"k": "text", "name": "text", "v": "bigint"}, aggregated=True),
    )  # fmt: skip
    it = Runs(servers, declared, create=False)
    assert isinstance(declared.source, Sources)
    kafka = {"bootstrap.servers": servers.bootstrap}
    it.source = SeveralOffsets(declared.source, {name: KafkaOffsets(kafka) for name in columns})
    it.create()
    it.epoch()
    servers.produce(topics["values"], {0: [record("a", 2), b"{"]})
    servers.produce(topics["names"], {0: [b'{"k": "a", "name": "AA"}']})
    it.epoch()

    code, differences, epochs, _ = audit()

    assert (code, differences, [len(one["partitions"]) for one in epochs]) == (0, [], [2, 2])
    assert it.database.query("SELECT name, v FROM named ORDER BY v") == [("A", 1), ("AA", 2)]
    it.database.query("UPDATE named SET name = 'A' WHERE v = 2")
    assert audit()[:2] == (1, [("named", "extra", 2, None, "1 rows"), ("named", "missing", 2, None, "1 rows")])


@pytest.mark.slow
def test_hostile_names_of_columns_and_of_state_tables_change_nothing(run: NewRun, audit: Audit) -> None:
    columns = {'k"%é': "text", "v'%w;": "bigint"}
    state = StateTable(table='st"ate %s', key='k"%é', columns=columns)
    hostile = PostgresTable(table="hostile", columns=columns)
    value = json.dumps({'k"%é': "a'\\%s", "v'%w;": 1}).encode()
    it = run({0: [value]}, parse=Json(columns=columns), transform="making_again:hostile", sinks=hostile, state=[state])
    it.epoch()
    it.epoch({0: [value, value]})

    assert audit()[:2] == (0, [])
    it.database.query("""UPDATE hostile SET "v'%w;" = 2 WHERE _offset = 2""")
    assert audit()[:2] == (1, [("hostile", "changed", 2, 2, "v'%w;")])


@pytest.mark.slow
def test_the_command_starts_a_spark_of_its_own(run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = run({0: [record("a", 1)]}, transform="making_again:once", sinks=EACH)
    it.epoch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")

    done = subprocess.run([*COMMAND, "audit", it.name], capture_output=True, text=True, check=False)

    assert (done.returncode, "  each: rows compared" in done.stdout) == (0, True), done.stdout + done.stderr
