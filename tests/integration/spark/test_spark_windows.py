"""Windows over epochs: however the same records are cut into epochs, the results are those of one batch over all."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from epochline.event_time import EventTime, PartitionTime, watermark
from epochline.layout import DELETED
from epochline.spark.windowing import windowed
from epochline.windowed import END, START, Windowed
from epochline.windows import Session, Sliding, Tumbling

T0 = datetime(2026, 3, 1, tzinfo=UTC)
CASES = 180
"""Of each kind of window: more than 500 in all."""

WINDOWS = {"tumbling": Tumbling(size=10), "sliding": Sliding(size=10, slide=4), "session": Session(gap=7)}
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


def made_up(chance: random.Random, number: int, epochs: int) -> Case:
    """Records of some keys in some partitions, about in order, cut into epochs, some of them empty."""
    partitions = range(chance.randint(1, 3))
    disorder = chance.randint(0, 15)
    rows: list[Row] = []
    for second in sorted(chance.randrange(120) for _ in range(chance.randint(0, 25))):
        key, partition = chance.choice("abc"), chance.choice(partitions)
        rows.append((number, key, partition, max(0, second - chance.randint(0, disorder)), chance.randint(0, 100)))
    cuts = sorted(chance.randint(0, len(rows)) for _ in range(epochs - 1))
    cut = [rows[start:until] for start, until in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    declared = EventTime(column="at", out_of_orderness=timedelta(seconds=chance.choice([0, 2, 5])))
    return Case(number, cut, declared, dict.fromkeys(partitions, PartitionTime()))


Result = tuple[int, int, int, int]


def by_hand(rows: Iterable[Row], declared: Windowed) -> dict[tuple[int, str, datetime, datetime], Result]:
    """Every window of all records at once."""
    amounts: dict[tuple[int, str, datetime, datetime], list[int]] = defaultdict(list)
    if isinstance(declared.window, Session):
        by_key: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        for case, key, _, second, amount in rows:
            by_key[case, key].append((second, amount))
        for (case, key), some in by_key.items():
            session: list[tuple[int, int]] = []
            for second, amount in [*sorted(some), (10**6, 0)]:
                if session and at(second) >= at(session[-1][0]) + declared.window.gap:
                    window = (at(session[0][0]), at(session[-1][0]) + declared.window.gap)
                    amounts[case, key, *window] = [amount for _, amount in session]
                    session = []
                session.append((second, amount))
    else:
        for case, key, _, second, amount in rows:
            for window in declared.window.of(at(second)):
                amounts[case, key, window.start, window.end].append(amount)
    return {key: (len(some), sum(some), min(some), max(some)) for key, some in amounts.items()}


def epoch_by_epoch(spark: Any, cases: list[Case], declared: Windowed, epochs: int) -> tuple[dict[Any, Any], int]:
    """The result table after all epochs, as an upsert target holds it; and how many records came too late."""
    state: dict[Any, Any] = {}
    target: dict[Any, Any] = {}
    late = 0
    names = ["case", "key", START, END, *AGGREGATES]
    kinds = f"case int, key string, {START} timestamp, {END} timestamp, " + ", ".join(f"{n} bigint" for n in AGGREGATES)
    for epoch in range(epochs):
        marks = spark.createDataFrame(
            [(case.number, *case.read(epoch)) for case in cases], "case int, before timestamp, after timestamp"
        )
        rows = spark.createDataFrame(
            [(c, k, at(second), amount) for case in cases for c, k, _, second, amount in case.epochs[epoch]],
            "case int, key string, at timestamp, amount bigint",
        )
        kept = spark.createDataFrame([(*key, *rest) for key, rest in state.items()], kinds)
        out = windowed(
            rows.join(F.broadcast(marks), "case"), kept.join(F.broadcast(marks), "case"), declared,
            before=F.col("before"), after=F.col("after"),
        )  # fmt: skip
        for frame, into in ((out.results, target), (out.state, state)):
            got = [(*tuple(row[name] for name in names), row[DELETED]) for row in frame.collect()]
            ends = {}
            for row in sorted(got, key=lambda row: not row[-1]):
                case, key, start, end, *aggregates, deleted = row
                place = (case, key, start.astimezone(UTC))
                assert place not in ends or ends[place], f"two rows for {place}"
                ends[place] = deleted
                for old in [one for one in into if one[:3] == place]:
                    del into[old]
                if not deleted:
                    into[(*place, end.astimezone(UTC))] = tuple(aggregates)
        late += out.too_late.count()
    return target, late


@pytest.mark.parametrize("kind", WINDOWS)
def test_any_cutting_into_epochs_gives_the_results_of_one_batch(spark: Any, kind: str) -> None:
    """E5, E11, X21: nothing comes too late here, so that every closed window holds every record of it."""
    epochs = 4
    declared = Windowed(
        time=EventTime(column="at"),
        window=WINDOWS[kind],
        key=("case", "key"),
        aggregates=AGGREGATES,
        into="r",
        lateness=timedelta(hours=1),
    )
    cases = [made_up(random.Random(f"{kind} {number}"), number, epochs) for number in range(CASES)]

    target, late = epoch_by_epoch(spark, cases, declared, epochs)

    marks = {case.number: case.mark for case in cases}
    everything = by_hand((row for case in cases for epoch in case.epochs for row in epoch), declared)
    expected = {
        key: result for key, result in everything.items()
        if (mark := marks[key[0]]) is not None and key[3] <= mark
    }  # fmt: skip
    assert late == 0
    assert len(expected) > CASES
    assert target == expected
