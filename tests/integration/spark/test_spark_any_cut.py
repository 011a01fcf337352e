"""However the same records are cut into epochs, windows and keyed aggregation end as one batch over all of them does.

Spark costs seconds per epoch, however little it reads; so one example is many cases side by side, each with its own
records and its own cuts, and none is made smaller: hypothesis names the seed that fails, and keeps it for the next run.
"""

import json
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from epochline import Json, KafkaSource, Pipeline, PostgresTable, StateTable
from epochline.declare.aggregation import Windowed
from epochline.declare.columns import DELETED, END, START
from epochline.declare.event_time import EventTime, PartitionTime, Session, Sliding, Tumbling, Windows, watermark
from epochline.spark.windowing import windowed
from tests.integration.spark.conftest import Database, Runs, Servers

T0 = datetime(2026, 3, 1, tzinfo=UTC)
CASES = 180
"""Of each kind of window, where each case has a watermark of its own: more than 500 in all."""
KEYS = 520
"""Of an example of a whole pipeline, where every key is a case."""
EPOCHS = 3
SEEDS = st.integers(0, 2**32 - 1)
SLOW = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

WINDOWS: dict[str, Windows] = {
    "tumbling": Tumbling(size=10),
    "sliding": Sliding(size=10, slide=4),
    "session": Session(gap=7),
}
AGGREGATES = {"records": "count(*)", "total": "sum(amount)", "least": "min(amount)", "most": "max(amount)"}

Key = tuple[int, str]
Row = tuple[int, str, int, int, int]
"""Case, key, partition, second, amount."""


@dataclass
class Case:
    """One input and one way to cut it."""

    number: int
    epochs: list[list[Row]]
    event_time: EventTime
    partitions: dict[int, PartitionTime] = field(default_factory=dict)
    mark: datetime | None = None

    def read(self, epoch: int) -> tuple[datetime | None, datetime | None]:
        """The watermarks before and after an epoch."""
        before = self.mark
        for partition in self.partitions:
            newest = max((second for _, _, p, second, _ in self.epochs[epoch] if p == partition), default=None)
            moment = None if newest is None else at(newest)
            self.partitions[partition] = self.partitions[partition].and_then(moment, T0)
        self.mark = watermark(self.event_time, self.partitions, before, T0)
        return before, self.mark


def at(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


def made_up(chance: random.Random, number: int) -> Case:
    """Records of some keys in some partitions, about in order, cut into epochs, some of them empty."""
    partitions = range(chance.randint(1, 3))
    disorder = chance.randint(0, 15)
    rows: list[Row] = []
    for second in sorted(chance.randrange(120) for _ in range(chance.randint(0, 25))):
        key, partition = chance.choice("abc"), chance.choice(partitions)
        rows.append((number, key, partition, max(0, second - chance.randint(0, disorder)), chance.randint(0, 100)))
    cuts = sorted(chance.randint(0, len(rows)) for _ in range(EPOCHS - 1))
    cut = [rows[start:until] for start, until in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    declared = EventTime(column="at", out_of_orderness=timedelta(seconds=chance.choice([0, 2, 5])))
    return Case(number, cut, declared, dict.fromkeys(partitions, PartitionTime()))


Result = tuple[int, int, int, int]
KeyAndWindow = tuple[int, str, datetime, datetime]
Cut = Callable[..., list[Case]]
Table = dict[Any, Any]


def rows_of(cases: Iterable[Case]) -> list[Row]:
    return [row for case in cases for epoch in case.epochs for row in epoch]


def by_hand(rows: Iterable[Row], declared: Windowed) -> dict[KeyAndWindow, Result]:
    """Every window of all records at once."""
    amounts: dict[KeyAndWindow, list[int]] = defaultdict(list)
    if isinstance(declared.window, Session):
        by_key: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        for case, key, _, second, amount in rows:
            by_key[case, key].append((second, amount))
        for (case, key), some in by_key.items():
            session: list[tuple[int, int]] = []
            for second, amount in [*sorted(some), (10**6, 0)]:
                if session and at(second) >= at(session[-1][0]) + declared.window.gap:
                    start, end = at(session[0][0]), at(session[-1][0]) + declared.window.gap
                    amounts[case, key, start, end] = [amount for _, amount in session]
                    session = []
                session.append((second, amount))
    else:
        for case, key, _, second, amount in rows:
            for window in declared.window.of(at(second)):
                amounts[case, key, window.start, window.end].append(amount)
    return {key: (len(some), sum(some), min(some), max(some)) for key, some in amounts.items()}


def epoch_by_epoch(spark: SparkSession, cases: list[Case], declared: Windowed) -> tuple[Table, int]:
    """The result table after all epochs, as an upsert target holds it; and how many records came too late."""
    tables: dict[str, Table] = {"state": {}, "target": {}}
    names = ["case", "key", START, END, *AGGREGATES]
    kinds = f"case int, key string, {START} timestamp, {END} timestamp, " + ", ".join(f"{n} bigint" for n in AGGREGATES)
    late = 0
    for epoch in range(EPOCHS):
        marks = spark.createDataFrame(
            [(case.number, *case.read(epoch)) for case in cases], "case int, before timestamp, after timestamp"
        )
        rows = spark.createDataFrame(
            [(c, k, at(second), amount) for case in cases for c, k, _, second, amount in case.epochs[epoch]],
            "case int, key string, at timestamp, amount bigint",
        )
        kept = spark.createDataFrame([(*key, *rest) for key, rest in tables["state"].items()], kinds)
        out = windowed(
            rows.join(F.broadcast(marks), "case"), kept.join(F.broadcast(marks), "case"), declared,
            before=F.col("before"), after=F.col("after"),
        )  # fmt: skip
        got = defaultdict(list)
        for into, *row in _together(out, names, declared.retractions or DELETED).collect():
            got[into].append(row)
        late += len(got["late"])
        (_upsert if declared.retractions is None else _take)(tables["target"], got["target"])
        _upsert(tables["state"], got["state"])
    return tables["target"], late


def _together(out: Any, names: list[str], flag: str) -> DataFrame:
    """Everything in one job: the table that a row is for, and the row."""
    results = out.results.select(F.lit("target").alias("into"), *names, F.col(flag).alias("flag"))
    state = out.state.select(F.lit("state").alias("into"), *names, F.col(DELETED).alias("flag"))
    late = out.too_late.select(F.lit("late").alias("into"), "case", "key")
    rows: DataFrame = results.unionByName(state).unionByName(late, allowMissingColumns=True)
    return rows


def _upsert(table: Table, rows: list[Any]) -> None:
    written: dict[object, bool] = {}
    held = {one[:3]: one for one in table}
    for row in sorted(rows, key=lambda row: not row[-1]):
        case, key, start, end, *aggregates, deleted = row
        place = (case, key, start.astimezone(UTC))
        assert place not in written or written[place], f"two rows for {place}"
        written[place] = deleted
        table.pop(held.pop(place, None), None)
        if not deleted:
            held[place] = (*place, end.astimezone(UTC))
            table[held[place]] = tuple(aggregates)


def _take(table: Table, rows: list[Any]) -> None:
    """Apply an epoch's changes: first what is taken back, which the table must hold as it is, then what is added."""
    held = {one[:3] for one in table}
    for row in sorted(rows, key=lambda row: row[-1]):
        case, key, start, end, *aggregates, added = row
        window = (case, key, start.astimezone(UTC), end.astimezone(UTC))
        if added:
            assert window[:3] not in held, f"two results of {window}"
            held.add(window[:3])
            table[window] = tuple(aggregates)
        else:
            assert table.pop(window, None) == tuple(aggregates), f"{window} never had this result"
            held.discard(window[:3])


@pytest.mark.parametrize(
    ("kind", "retractions"),
    [
        ("sliding", None), ("session", None), ("session", "added"),
        # A tumbling window is a sliding one whose slide is its size.
        *(pytest.param("tumbling", one, marks=pytest.mark.slow) for one in (None, "added")),
    ],
)  # fmt: skip
def test_any_cutting_into_epochs_gives_the_windows_of_one_batch(
    spark: SparkSession, kind: str, retractions: str | None
) -> None:
    """E5, E11, I10, X21, N5: nothing comes too late here, so that every closed window holds every record of it."""
    declared = _windows(WINDOWS[kind], ("case", "key")).model_copy(update={"retractions": retractions})
    cases = [made_up(random.Random(f"{kind} {number}"), number) for number in range(CASES)]

    target, late = epoch_by_epoch(spark, cases, declared)

    marks = {case.number: case.mark for case in cases}
    expected = {
        key: result for key, result in by_hand(rows_of(cases), declared).items()
        if (mark := marks[key[0]]) is not None and key[3] <= mark
    }  # fmt: skip
    assert late == 0
    assert len(expected) > CASES
    assert target == expected


def _windows(window: Windows, key: tuple[str, ...]) -> Windowed:
    return Windowed(
        time=EventTime(column="at"), window=window, key=key, aggregates=AGGREGATES, into="cut",
        lateness=timedelta(hours=1),
    )  # fmt: skip


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
SUMS = dict.fromkeys(AGGREGATES, "bigint")
WINDOW = {START: "timestamptz", END: "timestamptz"}
FAILURES = ("none", "before the seal", "after the seal", "between seal and commit")


@pytest.fixture
def cut(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cut:
    """Run a pipeline over the epochs of many cases, each attempt with a failure of its own."""
    (tmp_path / "cut_anyhow.py").write_text(TRANSFORM)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(seed: int, **declared: Any) -> list[Case]:
        # Every example of a test has the same database.
        servers.database.query("DROP TABLE IF EXISTS cut, cut_state, cut_open; DELETE FROM epochline.target")
        chance = random.Random(seed)
        cases = [made_up(chance, number) for number in range(KEYS)]
        name, source = f"p-{uuid.uuid4().hex[:12]}", KafkaSource(topics=servers.topic({0: [], 1: [], 2: []}))
        record = {"key": "text", "at": "timestamptz", "amount": "bigint"}
        runs = Runs(servers, Pipeline(name=name, source=source, parse=Json(columns=record), **declared))
        for epoch in range(EPOCHS):
            rows = [row for case in cases for row in case.epochs[epoch]]
            if epoch == EPOCHS - 1:
                rows += [(KEYS, "end", partition, 10**6, 0) for partition in range(3)]
            chance.shuffle(rows)
            by_partition = defaultdict(list)
            for number, key, partition, second, amount in rows:
                value = {"key": f"{number} {key}", "at": at(second).isoformat(), "amount": amount}
                by_partition[partition].append(json.dumps(value).encode())
            runs.produce(by_partition)
            _run(runs, chance.choice(FAILURES))
        return cases

    return make


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


@settings(SLOW, max_examples=1)
@given(seed=SEEDS)
def test_any_cutting_into_epochs_gives_the_aggregates_of_one_batch_although_epochs_fail(
    database: Database, cut: Cut, seed: int
) -> None:
    """C1, C8, S14, INV-2: records by key, counted on from the state, through PostgreSQL, Kafka and failed attempts."""
    columns = {"key": "text", **SUMS}

    cases = cut(
        seed,
        transform="cut_anyhow:aggregated",
        state=[StateTable(table="cut_state", key="key", columns=columns)],
        sinks=[PostgresTable(table="cut", mode="upsert", key="key", columns=columns, aggregated=True)],
    )

    amounts = defaultdict(list)
    for number, key, _, _, amount in rows_of(cases):
        amounts[f"{number} {key}"].append(amount)
    expected = {(key, len(some), sum(some), min(some), max(some)) for key, some in amounts.items()}
    expected.add((f"{KEYS} end", 3, 0, 0, 0))
    for table in ("cut", "cut_state"):
        assert set(database.query(f"SELECT key, records, total, least, most FROM {table}")) == expected


@pytest.mark.slow
@settings(SLOW, max_examples=2)
@given(seed=SEEDS, kind=st.sampled_from(sorted(WINDOWS)))
def test_any_cutting_into_epochs_gives_the_windows_of_one_batch_although_epochs_fail(
    database: Database, cut: Cut, seed: int, kind: str
) -> None:
    """E5, E11, INV-2: the same windows through PostgreSQL, Kafka and failed attempts; the last records close them all."""
    declared = _windows(WINDOWS[kind], ("key",))
    columns = {"key": "text", **WINDOW, **SUMS}

    cases = cut(
        seed,
        windows=declared,
        sinks=[PostgresTable(table="cut", mode="upsert", key=("key", START), columns=columns, aggregated=True)],
    )

    windows = by_hand(rows_of(cases), declared)
    expected = {(f"{case} {key}", start, end, *sums) for (case, key, start, end), sums in windows.items()}
    assert len(expected) > KEYS
    assert set(database.query(f"SELECT key, {START}, {END}, records, total, least, most FROM cut")) == expected
