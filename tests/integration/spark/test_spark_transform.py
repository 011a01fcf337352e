"""With a transform: parsed once, quarantine and counts by the first write, then a write per sink."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest
from pyspark.sql import functions as F  # noqa: N812

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import DeclarationError
from epochline.postgres.ledger.parts import PARSE, counts_of
from epochline.protocol.offsets import add_up
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run

RECORD = {"who": "text", "n": "integer", "at": "timestamp with time zone"}


def transform(parsed):
    return {
        "public.raw": parsed,
        "public.totals": parsed.groupBy("who").agg(F.sum("n").alias("n")),
        "public.latest": parsed.where("n >= 0"),
        "public.none": parsed.where("n < 0"),
    }


def misses_a_table(parsed):
    return {"public.raw": parsed}


@pytest.fixture(autouse=True)
def module(monkeypatch):
    """The functions as a pipeline's module: not importable where the executors look."""
    made = ModuleType("pipelines_of_tests")
    for function in (transform, misses_a_table):
        setattr(made, function.__name__, function)
    monkeypatch.setitem(sys.modules, made.__name__, made)


def _pipeline(name: str, topic: str, function: str) -> Pipeline:
    raw = {"who": "text", "n": "bigint"}
    body = {
        "name": name, "source": KafkaSource(topics=topic).model_dump(), "parse": Json(columns=RECORD).model_dump(),
        "bad_records": "quarantine", "transform": f"pipelines_of_tests:{function}",
        "sinks": [sink.model_dump() for sink in (
            PostgresTable(table="public.raw", columns=raw),
            PostgresTable(table="public.totals", columns=raw, mode="add", key="who", measures="n"),
            PostgresTable(table="public.latest", columns=raw, mode="upsert", key="who", order_by="at"),
            PostgresTable(table="public.none", columns=raw, aggregated=True),
        )],
    }  # fmt: skip
    return Pipeline.from_stored(json.dumps(body))


@pytest.fixture
def credentials(database, kafka_bootstrap):
    return JobCredentials(dsn=database.dsn, kafka={"bootstrap.servers": kafka_bootstrap})


def test_every_sink_gets_its_rows_and_the_first_write_carries_the_counts(spark, database, topic, name, credentials):
    def values(start):
        return [
            json.dumps({"who": f"w{i % 3}", "n": i, "at": f"2026-01-01T00:00:{i % 60:02}Z"}).encode()
            for i in range(start, start + 30)
        ]

    records = topic({0: values(0), 1: [*values(30), b"nope"]})
    ticket = database.attempt(_pipeline(name, records, "transform"), {(records, 0): (0, 30), (records, 1): (0, 31)})

    run(spark, name, 1, 1, credentials)

    assert [row[0] for row in database.rows(ticket, "public.raw", "n, _offset")] == list(range(60))
    totals: dict[object, int] = {}
    for who, n in database.rows(ticket, "public.totals", "who, n"):
        totals[who] = totals.get(who, 0) + n
    assert totals == {f"w{k}": sum(range(k, 60, 3)) for k in range(3)}
    latest = database.rows(ticket, "public.latest", "n, _order_at, _deleted")
    assert (len(latest), latest[7][1].isoformat(), latest[7][2]) == (60, "2026-01-01T00:00:07+00:00", False)
    assert [row[0] for row in database.rows(ticket, QUARANTINE, '"offset", partition')] == [30]
    manifests = database.manifests(ticket)
    assert {sink: rows for sink, (_, rows) in manifests.items()} == {
        "public.raw": 60, "public.totals": manifests["public.totals"][1], "public.latest": 60, "public.none": 0,
        QUARANTINE: 1,
    }  # fmt: skip
    parts = database.parts(ticket)
    assert {sink for sink, _ in parts} == set(manifests)
    assert PARSE not in manifests
    seen = add_up(counts_of(message) for (sink, _), (_, message) in parts.items() if sink == QUARANTINE)
    assert {key[1]: (c.received, c.passed, c.quarantined) for key, c in seen.items()} == {
        0: (30, 30, 0),
        1: (31, 30, 1),
    }
    assert database.ended(ticket)


def test_a_transform_that_misses_a_declared_table_fails_and_names_it(spark, database, topic, name, credentials):
    records = topic({0: [b'{"who": "a", "n": 1}']})
    ticket = database.attempt(_pipeline(name, records, "misses_a_table"), {(records, 0): (0, 1)})

    with pytest.raises(DeclarationError, match=r"no DataFrame for public\.totals"):
        run(spark, name, 1, 1, credentials)

    assert not database.ended(ticket)
    ((error,),) = database.query("SELECT error FROM epochline.attempt WHERE attempt_id = %s", (ticket.attempt_id,))
    assert "public.totals" in error
