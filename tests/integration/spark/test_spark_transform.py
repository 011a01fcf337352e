"""With a transform: parsed once, quarantine and counts by the first write, then a write per sink."""

import json
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from epochline import EventTime, PostgresTable, StateTable, Tumbling, Windowed
from epochline.declare.columns import STAGED_LINEAGE
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import DeclarationError, EpochlineError
from epochline.postgres.ledger.parts import PARSE, counts_of
from epochline.protocol.balances import add_up
from epochline.protocol.staging import StagingTicket
from tests.databases import query
from tests.integration.bench import IN_PUBLIC, LINEAGE
from tests.integration.kafka_topics import span_of_timestamps
from tests.integration.spark.conftest import Importable, Records, Runs, Servers

RECORD = {"who": "text", "n": "integer", "at": "timestamp with time zone"}


def transform(parsed: DataFrame) -> dict[str, DataFrame]:
    return {
        "public.raw": parsed, "public.totals": parsed.groupBy("who").agg(F.sum("n").alias("n")),
        "public.latest": parsed.where("n >= 0"), "public.none": parsed.where("n < 0"),
    }  # fmt: skip


def misses_a_table(parsed: DataFrame) -> dict[str, DataFrame]:
    return {"public.raw": parsed}


# The table's columns beside who, and what the transform gives; what is stored, or the reason.
GIVEN: dict[str, tuple[dict[str, str], dict[str, str], str | None, str]] = {
    "an exact value": ({"n": "numeric(6,2)"}, {"n": "CAST(1.500 AS DECIMAL(9,3))"}, "1.50", ""),
    "more digits after the point": (
        {"n": "numeric(6,2)"}, {"n": "CAST(1.505 AS DECIMAL(9,3))"}, None, "n: .*does not fit"),
    "more digits before the point": ({"n": "numeric(6,2)"}, {"n": "12345.67D"}, None, "n: .*does not fit"),
    "a scale that wraps around": (
        {"n": "numeric(38,32)"}, {"n": "CAST(3887946.501 AS DECIMAL(38,3))"}, None, "n: .*does not fit"),
    "a number beyond its integer": ({"n": "integer"}, {"n": "2147483648L"}, None, "n: .*does not fit"),
    "a fraction for an integer": ({"n": "integer"}, {"n": "1.5D"}, None, "n: .*does not fit"),
    "a text of another kind": ({"n": "uuid"}, {"n": "'soon'"}, None, "n: .*does not fit"),
    "a type of another kind": ({"n": "integer"}, {"n": "array(1)"}, None, "column n: Arrow's list"),
    "a missing column": ({"n": "integer"}, {}, None, "DataFrame has no n"),
    "a column that the table generates": (
        {"n": "integer GENERATED ALWAYS AS (7) STORED"}, {"n": "1"}, None, "has n, which the table generates"),
    "a column that the table has not": ({"n": "integer"}, {"n": "1", "more": "2"}, "1", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", GIVEN)
def test_what_a_transform_returns_is_stored_exactly_or_refused_by_its_column(
    servers: Servers, importable: Importable, case: str
) -> None:
    """INV-9, through Spark: no value is rounded, wrapped or replaced by one that the table generates."""
    columns, given, expected, reason = GIVEN[case]

    def gives(parsed: DataFrame) -> DataFrame:
        return parsed.select("who", *STAGED_LINEAGE, *(F.expr(text).alias(name) for name, text in given.items()))

    declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    query(servers.database.dsn, f"CREATE TABLE t (who text, {declared}{LINEAGE})", options=IN_PUBLIC)
    line = Runs(servers, servers.unchecked(
        servers.topic({0: [b'{"who": "a"}']}), parse=Json(columns=RECORD), transform=importable(gives),
        sinks=[PostgresTable(table="t")],
    ))  # fmt: skip

    if expected is not None:
        line.epoch()
    else:
        with pytest.raises(EpochlineError, match=reason):
            line.epoch()

    assert servers.database.query("SELECT n::text FROM t") == ([] if expected is None else [(expected,)])


ANY = {"who.is": "text", "a`b": "integer", 'c"d': "integer"}
TIMED = {**ANY, "at.t": "timestamptz"}


def of_any_name(servers: Servers, *records: tuple[object, ...], **declared: Any) -> Runs:
    values = [json.dumps(dict(zip(TIMED, record, strict=True))).encode() for record in records]
    return Runs(servers, servers.unchecked(servers.topic({0: values}), parse=Json(columns=TIMED), **declared))


def test_columns_of_any_name_go_through_a_transform_and_its_state(servers: Servers, importable: Importable) -> None:
    """SEC-1, through Spark, which takes a dot for the way to a field."""

    def counted(parsed: DataFrame, state: Any = None) -> dict[str, DataFrame]:
        held = state["s"].select("`who.is`", F.col("`n.n`").alias("held"))
        more = parsed.groupBy("`who.is`").agg(F.count("*").alias("more")).join(held, "who.is", "left")
        return {"t": parsed, "s": more.select("`who.is`", F.expr("more + coalesce(held, 0)").alias("n.n"))}

    line = of_any_name(
        servers, ("x", 1, 2, "2026-01-01T00:00:00Z"), transform=importable(counted),
        sinks=[PostgresTable(table="t", mode="upsert", key="who.is", order_by="a`b", columns=ANY)],
        state=[StateTable(table="s", key="who.is", columns={"who.is": "text", "n.n": "bigint"}).model_dump()],
    )  # fmt: skip

    for _ in range(2):
        line.epoch({0: [b'{"who.is": "x", "a`b": 3, "c\\"d": 4, "at.t": "2026-01-01T00:00:00Z"}']})

    assert servers.database.query('SELECT "who.is", "a`b", "c""d" FROM t') == [("x", 3, 4)]
    assert servers.database.query('SELECT "who.is", "n.n" FROM s') == [("x", 3)]


def test_windows_have_keys_times_and_aggregates_of_any_name(servers: Servers) -> None:
    """SEC-1, through Spark."""
    columns = {"who.is": "text", "window_start": "timestamptz", "window_end": "timestamptz", "most.`": "integer"}
    windows = Windowed(
        time=EventTime(column="at.t"), window=Tumbling(size=10), key="who.is", aggregates={"most.`": "max(a`b)"}, into="w",
    )  # fmt: skip

    of_any_name(
        servers, ("x", 1, 2, "2026-01-01T00:00:01Z"), ("x", 3, 2, "2026-01-01T00:00:02Z"), ("y", 1, 1, "2026-01-01T00:00:59Z"),
        windows=windows.model_dump(mode="json"),
        sinks=[
            PostgresTable(table="w", mode="upsert", key=("who.is", "window_start"), aggregated=True, columns=columns)
        ],
    ).epoch()  # fmt: skip

    assert servers.database.query('SELECT "who.is", "most.`" FROM w') == [("x", 3)]


def begun(servers: Servers, records: Records, function: str) -> StagingTicket:
    topic, raw = servers.topic(records), {"who": "text", "n": "bigint"}
    sinks = [
        PostgresTable(table="public.raw", columns=raw),
        PostgresTable(table="public.totals", columns=raw, mode="add", key="who", measures="n"),
        PostgresTable(table="public.latest", columns=raw, mode="upsert", key="who", order_by="at"),
        PostgresTable(table="public.none", columns=raw, aggregated=True),
    ]
    more = {"bad_records": "quarantine", "transform": function}
    ranges = {(topic, partition): (0, len(values)) for partition, values in records.items()}
    return servers.database.attempt(servers.unchecked(topic, parse=Json(columns=RECORD), sinks=sinks, **more), ranges)


def test_every_sink_gets_its_rows_and_the_first_write_carries_the_counts(
    servers: Servers, importable: Importable
) -> None:
    rows = [{"who": f"w{i % 3}", "n": i, "at": f"2026-01-01T00:00:{i:02}Z"} for i in range(60)]
    values = [json.dumps(row).encode() for row in rows]
    records, database = {0: values[:30], 1: [*values[30:], b"nope"]}, servers.database
    ticket = begun(servers, records, importable(transform))

    servers.run_job()

    assert database.ids(ticket, "public.raw", "n") == list(range(60))
    totals: Counter[str] = Counter()
    for who, n in database.rows(ticket, "public.totals", "who, n"):
        totals[who] += n
    assert totals == {f"w{k}": sum(range(k, 60, 3)) for k in range(3)}
    latest = database.rows(ticket, "public.latest", "n, _order_at, _deleted")
    assert (len(latest), latest[7][1].isoformat(), latest[7][2]) == (60, "2026-01-01T00:00:07+00:00", False)
    assert database.rows(ticket, QUARANTINE, '"offset", partition') == [(30, 1)]
    manifests = database.manifests(ticket)
    assert {sink: rows for sink, (_, rows) in manifests.items()} == {
        "public.raw": 60, "public.totals": manifests["public.totals"][1], "public.latest": 60, "public.none": 0,
        QUARANTINE: 1,
    }  # fmt: skip
    parts = database.parts(ticket)
    assert {sink for sink, _ in parts} == set(manifests)
    assert PARSE not in manifests
    seen = add_up(counts_of(message) for (sink, _), (_, message) in parts.items() if sink == QUARANTINE)
    counts = {key[1]: (one.received, one.passed, one.quarantined) for key, one in seen.items()}
    assert counts == {0: (30, 30, 0), 1: (31, 30, 1)}
    spans = {key[1]: (one.oldest_timestamp, one.newest_timestamp) for key, one in seen.items()}
    (topic,) = {topic for topic, _ in seen}
    assert spans == span_of_timestamps(servers.bootstrap, topic, {0: (0, 30), 1: (0, 31)})
    assert database.ended(ticket)


def test_a_transform_that_misses_a_declared_table_fails_and_names_it(servers: Servers, importable: Importable) -> None:
    ticket = begun(servers, {0: [b'{"who": "a", "n": 1}']}, importable(misses_a_table))

    with pytest.raises(DeclarationError, match=r"no DataFrame for public\.totals"):
        servers.run_job()

    assert not servers.database.ended(ticket)
    assert "public.totals" in servers.database.error(ticket)
