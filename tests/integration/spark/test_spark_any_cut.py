"""However the same records are cut into epochs, windows, streaming SQL and keyed aggregation end as one batch over all.

Spark costs seconds per epoch, however little it reads; so one example is many cases side by side, each with its own
records and its own cuts.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
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

from epochline import Json, KafkaSource, Pipeline, PostgresTable, StateTable, WindowedQuery
from epochline.arrow.cast.types import record_schema
from epochline.declare.aggregation import Windowed
from epochline.declare.columns import DELETED, END, START
from epochline.declare.event_time import EventTime, PartitionTime, Session, Sliding, Tumbling, Windows, watermark
from epochline.declare.windowed_query import QueryWindows
from epochline.spark.windowing import query_results, query_rows, require_same_query, windowed
from tests.integration.spark.conftest import Runs, Servers

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


def frame_of(spark: SparkSession, rows: list[tuple[Any, ...]], columns: dict[str, str]) -> DataFrame:
    return spark.createDataFrame(rows, from_arrow_schema(record_schema(columns)))


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
    flag, written = retractions or DELETED, set()
    for row in sorted(rows, key=lambda row: row[flag] is not (retractions is None)):
        place = tuple(row[name] for name in key)
        values = tuple(value for name, value in row.asDict().items() if name not in (*key, flag))
        if row[flag] is (retractions is None):
            assert table.pop(place, None) == values or not retractions, f"{place} never had this result"
        else:
            assert place not in (table if retractions else written), f"two rows for {place}"
            written.add(place)
            table[place] = values


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
    window, said, lateness = WINDOWS[kind]
    as_query = how == "as a query"
    text = TEXT if as_query else BATCH.replace(":more", "1" if kind == "session" else "0")
    # Spark's session takes a record at its very end; that of an aggregation does not.
    text = text.replace(":window", said if as_query else said.replace("'7 seconds'", "'6999999 microseconds'"))
    if kind == "session":
        text = text.replace("window.", "session_window.")
    time, arguments = EventTime(column="at"), {"most": "97"} if as_query else {}
    declared: Windowed = Windowed(
        time=time, window=window, key=("run", "key"), aggregates=AGGREGATES, into="cut", lateness=timedelta(hours=1),
        retractions="added" if how == HOW[1] else None,
    )  # fmt: skip
    if as_query:
        asked = WindowedQuery(query=text, parameters=arguments, time=time, into="cut", lateness=lateness)
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


@settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate), max_examples=1,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(seed=st.integers(0, 2**32 - 1))
def test_any_cutting_into_epochs_gives_the_aggregates_of_one_batch_although_epochs_fail(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """C1, C8, S14, INV-2: records by key, counted on from the state, through PostgreSQL, Kafka and failed attempts.

    hypothesis names the seed that fails, and keeps it for the next run.
    """
    (tmp_path / "cut_anyhow.py").write_text(TRANSFORM)
    monkeypatch.syspath_prepend(str(tmp_path))
    servers.database.query("DROP TABLE IF EXISTS cut, cut_state; DELETE FROM epochline.target")
    chance, columns = random.Random(seed), {"key": "text", **SUMS}
    pipeline = Pipeline(
        name=f"{servers.name}-{seed}", source=KafkaSource(topics=servers.topic({0: [], 1: [], 2: []})),
        parse=Json(columns={"key": "text", "amount": "bigint"}), transform="cut_anyhow:aggregated",
        state=[StateTable(table="cut_state", key="key", columns=columns)],
        sinks=[PostgresTable(table="cut", mode="upsert", key="key", columns=columns, aggregated=True)],
    )  # fmt: skip
    cases, runs, amounts = [made_up(seed, number) for number in range(KEYS)], Runs(servers, pipeline), defaultdict(list)

    for epoch in range(EPOCHS):
        rows = [row for case in cases for row in case.epochs[epoch]]
        chance.shuffle(rows)
        by_partition = defaultdict(list)
        for row in rows:
            key = f"{row.run} {row.key}"
            amounts[key].append(row.amount)
            by_partition[row.partition].append(json.dumps({"key": key, "amount": row.amount}).encode())
        runs.produce(by_partition)
        _run(runs, chance.choice(FAILURES))

    expected = {(key, len(some), sum(some), min(some), max(some)) for key, some in amounts.items()}
    for table in ("cut", "cut_state"):
        assert set(servers.database.query(f"SELECT key, records, total, least, most FROM {table}")) == expected
