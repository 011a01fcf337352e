"""However the same records are cut into epochs, windows, streaming SQL and keyed aggregation end as one batch over all.

Spark costs seconds per epoch, however little it reads; so one example is many cases side by side, each with its own
records and its own cuts.
"""

import json
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from epochline import EventTime, Json, PostgresTable, StateTable, WindowedQuery
from epochline.arrow.cast.types import record_schema
from epochline.declare.aggregation import Windowed
from epochline.declare.columns import DELETED, END, START
from epochline.declare.event_time import PartitionTime, Session, Sliding, Tumbling, Windows, watermark
from epochline.declare.sql_dialect import ROW_WISE
from epochline.declare.windowed_query import QueryWindows
from epochline.errors import DeclarationError
from epochline.spark.windowing import query_results, query_rows, require_same_query, windowed
from tests.integration.spark.conftest import Records, Runs, Servers

T0 = datetime(2026, 3, 1, tzinfo=UTC)
CASES, OF_A_QUERY = 180, 60
"""Of each kind of window, where each case has a watermark of its own: more than 500 in all; of a query, which is dearer."""
KEYS = 520
"""Of an example of a whole pipeline, where every key is a case."""
EPOCHS = 3
RECORD = {
    "run": "integer", "number": "integer", "key": "text", "partition": "integer", "at": "timestamptz",
    "amount": "bigint", "price": "numeric(12,2)", "ok": "boolean",
}  # fmt: skip
WINDOWS: dict[str, tuple[Windows, str, timedelta]] = {
    "tumbling": (Tumbling(size=10), "window(at, '10 seconds')", timedelta(seconds=5)),
    "sliding": (Sliding(size=10, slide=4), "window(at, '10 seconds', '4 seconds')", timedelta(0)),
    "session": (Session(gap=7), "session_window(at, '7 seconds')", timedelta(seconds=3)),
}
"""As an aggregation declares it, as a query says it, and the lateness of the query."""
TEXT = """
SELECT run, key, window.start AS begins, window.end AS ends, count(*) AS records, sum(price) AS total,
       min(amount) AS least, max(amount) - min(amount) AS spread, sum(price) / count(price) AS mean, avg(price) AS average,
       bool_or(ok) AS some, every(ok) AS all_of_them, count_if(amount > 50) AS large,
       sum(amount) FILTER (WHERE ok) AS amount_ok, sum(CAST(amount * price AS decimal(20,2))) AS worth,
       max(CAST(price AS string)) AS longest, CASE WHEN count(price) > 1 THEN sum(price) / (count(price) - 1) END AS more
FROM {records}
WHERE amount % 7 <> 0 AND amount < :most AND key IS NOT NULL
GROUP BY run, :window, key
HAVING count(*) % 3 <> 2
"""
AGGREGATES = {"records": "count(*)", "total": "sum(amount)", "least": "min(amount)", "most": "max(amount)"}
SUMS = dict.fromkeys(AGGREGATES, "bigint")
BATCH = f"SELECT run, key, window.start AS {START}, window.end + INTERVAL :more MICROSECOND AS {END}, " + ", ".join(
    f"{call} AS {name}" for name, call in AGGREGATES.items()
)
BATCH += " FROM {records} GROUP BY run, :window, key"
SINK = PostgresTable(
    table="cut", mode="upsert", key=("run", "key", START), aggregated=True,
    columns={"run": "integer", "key": "text", START: "timestamptz", END: "timestamptz", **SUMS},
)  # fmt: skip


class Row(NamedTuple):
    run: int
    number: int
    key: str
    partition: int
    at: datetime
    amount: int
    price: Decimal | None
    ok: bool | None


@dataclass
class Case:
    """Records of some keys in some partitions, in the order of their arrival, cut into epochs."""

    number: int
    epochs: list[list[Row]]
    event_time: EventTime
    partitions: dict[int, PartitionTime]
    mark: datetime | None = None
    marks: list[datetime | None] = field(default_factory=list)
    """The watermark before each epoch."""

    def read(self, epoch: int) -> tuple[datetime | None, datetime | None]:
        """The watermarks before and after an epoch."""
        self.marks.append(self.mark)
        for partition, known in self.partitions.items():
            newest = max((row.at for row in self.epochs[epoch] if row.partition == partition), default=None)
            self.partitions[partition] = known.and_then(newest, T0)
        self.mark = watermark(self.event_time, self.partitions, self.mark, T0)
        return self.marks[-1], self.mark


def made_up(seed: object, number: int) -> Case:
    """A few records come long after the others of their time."""
    chance = random.Random(f"{seed} {number}")
    partitions = range(chance.randint(1, 2))
    rows: list[Row] = []
    for second in sorted(chance.randrange(90) for _ in range(chance.randint(5, 30))):
        late = chance.random() < 0.15
        at = T0 + timedelta(seconds=chance.randint(0, second) if late else max(0, second - chance.randint(0, 2)))
        rows.append(
            Row(
                number, len(rows), chance.choice("ab"), chance.choice(partitions), at, chance.randint(0, 100),
                chance.choice([None, Decimal(chance.randint(-(10**9), 10**9)).scaleb(-2)]),
                chance.choice([True, False, None]),
            )
        )  # fmt: skip
    cuts = sorted(chance.randint(0, len(rows)) for _ in range(EPOCHS - 1))
    cut = [rows[start:until] for start, until in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    declared = EventTime(column="at", out_of_orderness=timedelta(seconds=chance.choice([0, 2, 5])))
    return Case(number, cut, declared, dict.fromkeys(partitions, PartitionTime()))


Table = dict[tuple[Any, ...], tuple[Any, ...]]


def frame_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]], columns: dict[str, str]) -> DataFrame:
    return spark.createDataFrame(list(rows), from_arrow_schema(record_schema(columns)))


def epoch_by_epoch(spark: SparkSession, cases: list[Case], declared: Windowed) -> tuple[Table, set[tuple[int, int]]]:
    """The result table after all epochs, as its target holds it; and case and number of records too late."""
    query = declared if isinstance(declared, QueryWindows) else None
    names = list(query.results) if query else list(SINK.columns or {})
    key = (query.result_key or ()) if query else SINK.key
    opened, before = declared.open_windows([SINK]), F.col("before")
    held_columns = {
        name: (opened.columns or {})[name] for name in dict.fromkeys((*opened.key, *(opened.columns or {})))
    }
    state: Table = {}
    target: Table = {}
    too_late: set[tuple[int, int]] = set()
    for epoch in range(EPOCHS):
        marks = F.broadcast(
            spark.createDataFrame(
                [(case.number, *case.read(epoch)) for case in cases], "run int, before timestamp, after timestamp"
            )
        )
        rows = frame_of(spark, [row for case in cases for row in case.epochs[epoch]], RECORD)
        held = frame_of(spark, [(*place, *rest) for place, rest in state.items()], held_columns)
        out = windowed(
            (query_rows(rows, query) if query else rows).join(marks, "run"), held.join(marks, "run"), declared,
            before=before, after=F.col("after"),
        )  # fmt: skip
        results = query_results(out.results.join(marks, "run"), query, before=before) if query else out.results
        # One job: each costs seconds, however little it reads.
        made = {
            "target": results.select(*names, declared.retractions or DELETED),
            "state": out.state.select(*held_columns, DELETED), "late": out.too_late.select("run", "number"),
        }  # fmt: skip
        frames = [frame.select(F.struct(*frame.columns).alias(name)) for name, frame in made.items()]
        got = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames).collect()
        apply(target, [row.target for row in got if row.target], key, declared.retractions)
        apply(state, [row.state for row in got if row.state], opened.key)
        too_late |= {(row.late["run"], row.late["number"]) for row in got if row.late}
    return target, too_late


def apply(table: Table, rows: list[Any], key: tuple[str, ...], retractions: str | None = None) -> None:
    """What is taken away goes first, with retractions as it is held; then one row comes for a key."""
    flag = retractions or DELETED
    written: set[object] = set()
    for row in sorted(rows, key=lambda row: row[flag] is not (retractions is None)):
        place = tuple(row[name] for name in key)
        values = tuple(value for name, value in row.asDict().items() if name not in (*key, flag))
        if row[flag] is (retractions is None):
            assert table.pop(place, None) == values or not retractions, f"{place} never had this result"
        else:
            assert place not in (table if retractions else written), f"two rows for {place}"
            written.add(place)
            table[place] = values


def batch_text(kind: str, *, as_query: bool = False) -> str:
    """What Spark is to compute of all records at once."""
    said = WINDOWS[kind][1]
    text = TEXT if as_query else BATCH.replace(":more", "1" if kind == "session" else "0")
    # Spark's session takes a record at its very end; that of an aggregation does not.
    text = text.replace(":window", said if as_query else said.replace("'7 seconds'", "'6999999 microseconds'"))
    return text.replace("window.", "session_window.") if kind == "session" else text


def aggregation(kind: str, key: tuple[str, ...], retractions: str | None = None) -> Windowed:
    return Windowed(
        time=EventTime(column="at"), window=WINDOWS[kind][0], key=key, aggregates=AGGREGATES, into="cut",
        lateness=timedelta(hours=1), retractions=retractions,
    )  # fmt: skip


HOW = ("declared", "declared, with retractions", "as a query")


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        # A tumbling window is a sliding one whose slide is its size.
        pytest.param(kind, how, marks=[pytest.mark.slow] if kind == "tumbling" and how != HOW[2] else [])
        for kind in WINDOWS
        for how in HOW
        if (kind, how) != ("sliding", HOW[1])
    ],
)
def test_any_cutting_into_epochs_gives_what_one_spark_batch_gives(spark: SparkSession, kind: str, how: str) -> None:
    """E5, E11, I10, X21, N5: made-up records in made-up epochs.

    A query has the text of the batch. Some records come too late for it, and HAVING takes results that it later refuses.
    """
    as_query = how == "as a query"
    text, arguments = batch_text(kind, as_query=as_query), {"most": "97"} if as_query else {}
    declared = aggregation(kind, ("run", "key"), "added" if how == HOW[1] else None)
    if as_query:
        asked = WindowedQuery(
            query=text, parameters=arguments, time=EventTime(column="at"), into="cut", lateness=WINDOWS[kind][2]
        )
        declared = asked.compiled(RECORD)
        require_same_query(frame_of(spark, [], RECORD), declared)
    cases = [made_up(kind, number) for number in range(OF_A_QUERY if as_query else CASES)]

    table, too_late = epoch_by_epoch(spark, cases, declared)

    taken = [row for case in cases for rows in case.epochs for row in rows if (row.run, row.number) not in too_late]
    batch = spark.sql(text, args=arguments, records=frame_of(spark, taken, RECORD))
    expected: Table = {}
    apply(expected, batch.withColumn(DELETED, F.lit(False)).collect(), tuple(batch.columns[:3]))
    behind = set(_behind(cases, too_late)) if as_query and kind != "tumbling" else set()
    marks = {case.number: case.mark for case in cases}

    def closed(table: Table) -> Table:
        # A record at the end of a query's session still belongs to it.
        end = timedelta(microseconds=1 if as_query and kind == "session" else 0)
        return {
            place: (ends, *rest) for place, (ends, *rest) in table.items()
            if (mark := marks[place[0]]) is not None and ends.astimezone(UTC) + end <= mark and place[:2] not in behind
        }  # fmt: skip

    assert len(too_late) > len(cases) // 4 if as_query else too_late == set()
    assert len(closed(expected)) > len(cases)
    assert closed(table) == closed(expected)


def _behind(cases: list[Case], too_late: set[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """Keys with a record that came behind the watermark and yet counts in some of its windows."""
    for case in cases:
        for mark, rows in zip(case.marks, case.epochs, strict=True):
            for row in rows:
                if mark is not None and row.at < mark and (row.run, row.number) not in too_late:
                    yield row.run, row.key


TRANSFORM = """
from pyspark.sql import functions as F


def aggregated(records, state):
    held = state["cut_state"].select(*(F.col(name).alias(f"held_{name}") for name in ("key", *NAMES)))
    new = records.groupBy("key").agg(
        F.count("*").alias("records"), F.sum("amount").alias("total"), F.min("amount").alias("least"),
        F.max("amount").alias("most"),
    )
    made = new.join(held, F.col("key") == F.col("held_key"), "left").select(
        "key", F.expr("coalesce(held_records, 0) + records").alias("records"),
        F.expr("coalesce(held_total, 0) + total").alias("total"), F.least("held_least", "least").alias("least"),
        F.greatest("held_most", "most").alias("most"),
    )
    return {"cut": made, "cut_state": made}


NAMES = ("records", "total", "least", "most")
"""
FAILURES = ("none", "before the seal", "after the seal", "between seal and commit")


def _run(runs: Runs, failure: str) -> None:
    """One epoch to its commit, through one failure."""
    planned, who = runs.planned()
    if failure == "between seal and commit":
        runs.sealed(planned, who)
        runs.planned()  # another run finds it sealed, and commits it
    else:
        if failure != "none":
            (runs.staged if failure == "before the seal" else runs.sealed)(planned, who)
            runs.crashed(planned, who)
            planned, who = runs.planned()
        runs.committed(planned, who)


one_example = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate), max_examples=1,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
"""hypothesis names the seed that fails, and keeps it for the next run."""


def through_failures(servers: Servers, seed: int, **declared: Any) -> list[Row]:
    """The records of many keys, through PostgreSQL, Kafka and failed attempts; the last of them close every window."""
    # Every example of a test has the same database, and hypothesis runs one that fails again.
    servers.database.query("DROP TABLE IF EXISTS cut, cut_state, cut_open; DELETE FROM epochline.target")
    servers = replace(servers, name=f"p-{uuid.uuid4().hex[:12]}")
    parse = Json(columns={"key": "text", "at": "timestamptz", "amount": "bigint"})
    runs = Runs(servers, servers.pipeline(servers.topic({0: [], 1: []}), parse=parse, **declared))
    chance = random.Random(seed)
    cases = [made_up(seed, number) for number in range(KEYS)]
    epochs = [[row for case in cases for row in case.epochs[epoch]] for epoch in range(EPOCHS)]
    epochs[-1] += [Row(KEYS, at, "end", at, T0 + timedelta(days=1), 0, None, None) for at in (0, 1)]
    for rows in epochs:
        chance.shuffle(rows)
        by_partition = defaultdict(list)
        for row in rows:
            value = {"key": f"{row.run} {row.key}", "at": row.at.isoformat(), "amount": row.amount}
            by_partition[row.partition].append(json.dumps(value).encode())
        runs.produce(by_partition)
        _run(runs, chance.choice(FAILURES))
    return [row for rows in epochs for row in rows]


@one_example
@given(seed=st.integers(0, 2**32 - 1))
def test_any_cutting_into_epochs_gives_the_aggregates_of_one_batch_although_epochs_fail(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """C1, C8, S14, INV-2: records by key, counted on from the state, through PostgreSQL, Kafka and failed attempts."""
    (tmp_path / "cut_anyhow.py").write_text(TRANSFORM)
    monkeypatch.syspath_prepend(str(tmp_path))
    columns, amounts = {"key": "text", **SUMS}, defaultdict(list)

    for row in through_failures(
        servers, seed, transform="cut_anyhow:aggregated",
        state=[StateTable(table="cut_state", key="key", columns=columns)],
        sinks=[PostgresTable(table="cut", mode="upsert", key="key", columns=columns, aggregated=True)],
    ):  # fmt: skip
        amounts[f"{row.run} {row.key}"].append(row.amount)

    expected = {(key, len(some), sum(some), min(some), max(some)) for key, some in amounts.items()}
    for table in ("cut", "cut_state"):
        assert set(servers.database.query(f"SELECT key, records, total, least, most FROM {table}")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sliding", "session"])
@one_example
@given(seed=st.integers(0, 2**32 - 1))
def test_any_cutting_into_epochs_gives_the_windows_of_one_batch_although_epochs_fail(
    spark: SparkSession, servers: Servers, kind: str, seed: int
) -> None:
    """E5, E11, INV-2: the same windows through PostgreSQL, Kafka and failed attempts; the last records close them all."""
    columns = {"key": "text", START: "timestamptz", END: "timestamptz", **SUMS}
    sink = PostgresTable(table="cut", mode="upsert", key=("key", START), columns=columns, aggregated=True)

    rows = through_failures(servers, seed, windows=aggregation(kind, ("key",)), sinks=[sink])

    closed = frame_of(spark, [row for row in rows if row.run < KEYS], RECORD)
    expected = {
        (f"{run} {key}", start.astimezone(UTC), end.astimezone(UTC), *sums)
        for run, key, start, end, *sums in spark.sql(batch_text(kind), records=closed).collect()
    }
    assert len(expected) > KEYS
    assert set(servers.database.query(f"SELECT key, {START}, {END}, records, total, least, most FROM cut")) == expected


MORE = {"day": "date", "ratio": "double precision"}
CALLS = {
    # Each allowed function, as a value that count() takes.
    "abs": "abs(amount)", "ceil": "ceil(price)", "ceiling": "ceiling(price)", "floor": "floor(price)",
    "round": "round(price, 1)", "bround": "bround(price, 1)", "sign": "sign(price)", "signum": "signum(price)",
    "mod": "mod(amount, 3)", "pmod": "pmod(amount, 3)", "greatest": "greatest(amount, 3)",
    "least": "least(amount, 3)", "try_add": "try_add(amount, 1)", "try_subtract": "try_subtract(amount, 1)",
    "try_multiply": "try_multiply(amount, 2)", "try_divide": "try_divide(amount, 2)", "coalesce": "coalesce(key, 'a')",
    "nullif": "nullif(key, 'a')", "ifnull": "ifnull(key, 'a')", "nvl": "nvl(key, 'a')", "nvl2": "nvl2(key, 1, 2)",
    "if": "if(ok, 1, 2)", "isnull": "isnull(key)", "isnotnull": "isnotnull(key)", "isnan": "isnan(ratio)",
    "nanvl": "nanvl(ratio, CAST(0 AS double))", "upper": "upper(key)", "lower": "lower(key)", "ucase": "ucase(key)",
    "lcase": "lcase(key)", "trim": "trim(key)", "ltrim": "ltrim(key)", "rtrim": "rtrim(key)", "btrim": "btrim(key)",
    "length": "length(key)", "char_length": "char_length(key)", "character_length": "character_length(key)",
    "substring": "substring(key, 1, 2)", "substr": "substr(key, 1, 2)", "left": "left(key, 2)",
    "right": "right(key, 2)", "concat": "concat(key, 'a')", "concat_ws": "concat_ws('-', key, 'a')",
    "replace": "replace(key, 'a', 'b')", "translate": "translate(key, 'a', 'b')",
    "split_part": "split_part(key, '-', 1)", "lpad": "lpad(key, 5, '-')", "rpad": "rpad(key, 5, '-')",
    "reverse": "reverse(key)", "repeat": "repeat(key, 2)", "initcap": "initcap(key)", "instr": "instr(key, 'a')",
    "startswith": "startswith(key, 'a')", "endswith": "endswith(key, 'a')", "contains": "contains(key, 'a')",
    "regexp_extract": r"regexp_extract(key, '(\\d+)', 1)", "regexp_replace": "regexp_replace(key, 'a+', 'b')",
    "regexp_like": "regexp_like(key, 'a+')", "ascii": "ascii(key)", "md5": "md5(key)", "sha1": "sha1(key)",
    "sha2": "sha2(key, 256)", "crc32": "crc32(key)", "hex": "hex(key)",
    "get_json_object": "get_json_object(key, '$.a')", "year": "year(day)", "quarter": "quarter(day)",
    "month": "month(day)", "day": "day(day)", "dayofmonth": "dayofmonth(day)", "dayofweek": "dayofweek(day)",
    "dayofyear": "dayofyear(day)", "weekday": "weekday(day)", "weekofyear": "weekofyear(day)", "hour": "hour(at)",
    "minute": "minute(at)", "second": "second(at)", "date_trunc": "date_trunc('hour', at)",
    "trunc": "trunc(day, 'MM')", "date_add": "date_add(day, 1)", "date_sub": "date_sub(day, 1)",
    "datediff": "datediff(day, day)", "last_day": "last_day(day)", "to_date": "to_date(key, 'yyyy-MM-dd')",
    "to_timestamp": "to_timestamp(key, 'yyyy-MM-dd')", "unix_seconds": "unix_seconds(at)",
    "unix_millis": "unix_millis(at)", "unix_micros": "unix_micros(at)",
    "timestamp_seconds": "timestamp_seconds(amount)", "timestamp_millis": "timestamp_millis(amount)",
    "timestamp_micros": "timestamp_micros(amount)", "cast": "CAST(key AS decimal(12,3))", "try_cast": "try_cast(key AS bigint)",
}  # fmt: skip


@pytest.fixture(scope="module")
def empty(spark: SparkSession) -> DataFrame:
    return frame_of(spark, [], RECORD | MORE)


def select(what: str, rest: str = "") -> WindowedQuery:
    text = f"SELECT key, window.start AS begins, {what} FROM {{records}} {rest}"
    return WindowedQuery(query=text, time=EventTime(column="at"), into="cut")


GROUPED = "GROUP BY window(at, '10 seconds'), key"


def test_spark_reads_every_function_that_a_query_may_call_as_it_was_read_when_declared(empty: DataFrame) -> None:
    assert CALLS.keys() == ROW_WISE
    counted = ", ".join(f"count({call}) AS `of {name}`" for name, call in CALLS.items())
    declared = select(counted, f"WHERE {' AND '.join(f'{call} IS NOT NULL' for call in CALLS.values())} {GROUPED}")

    types = require_same_query(empty, declared.compiled(RECORD | MORE))

    assert [types[f"of {name}"].dataType.simpleString() for name in ROW_WISE] == ["bigint"] * len(ROW_WISE)


def order(shop: str, second: int, price: str, *, paid: bool = True) -> bytes:
    at = (T0 + timedelta(seconds=second)).isoformat()
    return json.dumps({"shop": shop, "at": at, "price": price, "paid": paid}).encode()


RESULT = {"shop": "text", "begins": "timestamptz", "orders": "bigint", "mean": "numeric(38,17)"}
ORDERS = """
SELECT shop, window.start AS begins, count(*) AS orders, sum(price) / count(price) AS mean
FROM {records}
WHERE paid
GROUP BY window(at, '5 seconds'), shop
HAVING count(*) < 3
"""


@pytest.fixture
def shops(servers: Servers) -> Callable[..., Runs]:
    def make(query: str = ORDERS, *, records: Records) -> Runs:
        columns = {"shop": "text", "at": "timestamptz", "price": "numeric(10,2)", "paid": "boolean"}
        declared = WindowedQuery(
            query=query, time=EventTime(column="at"), into="per_shop", lateness=10, too_late="late_orders"
        )
        results = PostgresTable(
            table="per_shop", mode="upsert", key=("shop", "begins"), columns=RESULT, aggregated=True, before_images=10
        )
        sinks = [results, PostgresTable(table="late_orders", columns=columns)]
        given = {"parse": Json(columns=columns), "windows": declared, "sinks": sinks, "bad_records": "quarantine"}
        return Runs(servers, servers.pipeline(servers.topic(records), **given))

    return make


def test_a_query_is_corrected_by_late_records_and_a_result_that_having_no_longer_takes_is_deleted(
    shops: Callable[..., Runs],
) -> None:
    """E11, X21, INV-6: from Kafka into PostgreSQL; an aborted attempt leaves nothing; partial results are exact."""
    first = [order("a", 1, "0.10"), order("a", 2, "0.20", paid=False), order("b", 1, "1"), order("b", 2, "2")]
    run = shops(records={0: [*first, order("b", 3, "3"), b'{"at": null}', order("c", 6, "7")]})

    def results() -> list[tuple[Any, ...]]:
        found = run.database.query("SELECT shop, begins, orders, mean FROM per_shop ORDER BY 1, 2")
        return [(shop, (begins - T0).seconds, orders, mean) for shop, begins, orders, mean in found]

    assert run.epoch().counts.quarantined == 1
    assert results() == [("a", 0, 1, Decimal("0.1"))]

    run.produce({0: [order("a", 3, "0.40")]})
    run.crash()
    assert results() == [("a", 0, 1, Decimal("0.1"))]
    run.epoch()
    assert results() == [("a", 0, 2, Decimal("0.25"))]

    run.epoch({0: [order("a", 4, "0.40"), order("c", 21, "1")]})
    assert results() == [("c", 5, 1, Decimal(7))]

    run.epoch({0: [order("a", 2, "5", paid=False), order("a", 2, "5")]})
    assert results() == [("c", 5, 1, Decimal(7))]
    assert run.database.query("SELECT shop, price, paid FROM late_orders") == [("a", Decimal(5), True)]
    assert run.database.query("SELECT shop FROM per_shop_open") == [("c",)]


def test_a_session_that_having_does_not_take_has_no_result_and_one_that_grows_loses_it(
    shops: Callable[..., Runs],
) -> None:
    """E11: a deletion of a result that was never written changes nothing, and is accounted for."""
    text = ORDERS.replace("window.", "session_window.").replace("window(at", "session_window(at")
    run = shops(text, records={0: [order("a", 1, "1"), order("b", 1, "1")]})

    def results() -> list[tuple[Any, ...]]:
        found = run.database.query("SELECT shop, begins, orders FROM per_shop ORDER BY 1, 2")
        return [(shop, (begins - T0).seconds, orders) for shop, begins, orders in found]

    run.epoch({0: [order("a", 2, "1"), order("a", 3, "1"), order("b", 6, "1"), order("c", 14, "1")]})
    assert results() == [("b", 1, 2)]

    # This epoch does not read the session of b because it closes or drops it: only the new record asks for it.
    run.epoch({0: [order("b", 7, "1"), order("c", 20, "1")]})
    assert results() == [("c", 14, 1)]


def test_a_query_that_spark_reads_otherwise_is_refused_before_anything_is_staged(shops: Callable[..., Runs]) -> None:
    """E11: sqlglot takes one interval for two, which Spark would add."""
    longer = "WHERE at + INTERVAL 1 HOUR 2 MINUTES > at"
    run = shops(ORDERS.replace("WHERE paid", longer), records={0: [order("a", 1, "1"), order("a", 9, "1")]})
    planned, who = run.planned()

    with pytest.raises(DeclarationError, match="Spark reads it otherwise than Epochline") as refused:
        run.staged(planned, who)

    assert "INTERVAL '1' HOUR + INTERVAL '2' MINUTES" in str(refused.value)
    assert run.database.query("SELECT count(*) FROM epochline.part") == [(0,)]
