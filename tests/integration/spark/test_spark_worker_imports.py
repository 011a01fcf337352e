"""What fresh Python workers of Spark import: neither the declarations' library nor what reads Avro or serves drivers."""

import json
from pathlib import Path
from typing import Any

import pytest

from epochline import EventTime, Files, Json, KafkaTopic, PostgresTable, StateTable, Tumbling, Windowed
from tests.integration.sinks_world import new_topics
from tests.integration.spark.conftest import Runs, Servers

NEEDLESS = {
    "airflow", "alembic", "authlib", "fastavro", "httpx", "kafka", "pydantic", "pydantic_core",
    "rich", "sqlalchemy", "typer",
}  # fmt: skip

HOOK = """
import os, sys
file = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(lambda event, given: event == "import" and given[0] and os.write(file, given[0].encode() + b"\\n"))
"""

FUNCTIONS = """
from pyspark.sql import functions as F


def count(parsed, state):
    new = parsed.groupBy("who").agg(F.count("*").alias("more"))
    counted = new.join(state["seen"], "who", "left").select("who", (F.coalesce("n", F.lit(0)) + F.col("more")).alias("n"))
    return {"totals": counted, "seen": counted, "rows": parsed}
"""

RECORD = {"who": "text", "n": "bigint", "at": "timestamptz"}
TOTALS = {"who": "text", "n": "bigint"}
HITS = {"who": "text", "window_start": "timestamptz", "window_end": "timestamptz", "hits": "bigint"}
RECORDS = [json.dumps({"who": f"w{n % 3}", "n": n, "at": f"2026-01-01T00:00:{n:02}Z"}).encode() for n in range(60)]

ROWS = PostgresTable(table="rows", columns=TOTALS)
KINDS: dict[str, dict[str, Any]] = {
    "one pass": {
        "sinks": [
            ROWS, PostgresTable(table="sums", mode="add", columns=TOTALS, key="who", measures="n"),
            PostgresTable(table="latest", mode="upsert", columns=TOTALS, key="who", order_by="at"),
        ]
    },
    "a transform with state": {
        "sinks": [ROWS, PostgresTable(table="totals", mode="upsert", key="who", columns=TOTALS, aggregated=True)],
        "transform": "imports_of_tests:count", "state": [StateTable(table="seen", key="who", columns=TOTALS)],
    },
    "windows": {
        "sinks": [PostgresTable(table="hits", mode="upsert", key=("who", "window_start"), columns=HITS, aggregated=True)],
        "windows": Windowed(
            time=EventTime(column="at"), window=Tumbling(size=5), key="who", aggregates={"hits": "count(*)"}, into="hits"
        ),
    },
}  # fmt: skip


@pytest.fixture
def imported(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What workers import from now on is written here; another environment makes Spark start new ones."""
    log, site = tmp_path / "imported", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HOOK.format(log=str(log)))
    monkeypatch.setitem(servers.spark.sparkContext.environment, "PYTHONPATH", str(site))
    return log


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_imports_neither_pydantic_nor_what_reads_avro(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: Path, kind: str
) -> None:
    (tmp_path / "imports_of_tests.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    declared = dict(KINDS[kind])
    if kind == "one pass":
        (out,) = new_topics(servers.bootstrap, names=("out",))
        sink = KafkaTopic(topic=out, value=Json(columns=TOTALS), key="who")
        declared["sinks"] = [*declared["sinks"], sink, Files(path=str(tmp_path / "files"), columns=TOTALS)]
    topic = servers.topic({0: RECORDS[:40], 1: RECORDS[40:]})

    epoch = Runs(servers, servers.pipeline(topic, parse=Json(columns=RECORD), **declared)).epoch()

    assert epoch.counts.read == 60
    modules = set(imported.read_text().split())
    assert {"epochline.spark.staging", "epochline.arrow.stage.batch_rows"} <= modules
    assert NEEDLESS.intersection(module.partition(".")[0] for module in modules) == set()
