"""What exactly once costs, for what you have: a whole epoch of each kind of pipeline beside a recipe for the same.

The kinds and the recipes are in `bench.kind_list`. A recipe is what a user of Structured Streaming writes for exactly
once: ``foreachBatch`` writes a batch into a staging table by JDBC, then one transaction takes it into the target with
the batch's id (`bench.recipe`). Spark parses by ``from_json``, ``regexp_extract`` or ``from_avro``. In place of
state the recipe adds the sums of a batch to the target. Windows are in Spark's own state.

Both take the same records, one after the other, in one Spark session that already runs. The start of a query is not
counted. After each round every row of both is compared with what was produced.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from bench.chart import cells
from bench.epochs import Bench, Epochs, counted_rounds, in_spark, timed
from bench.kind_list import KINDS, OURS, RECIPES, TRANSFORM, Kind, Target
from bench.recipe import Recipe, jars
from bench.records import SPARK_COLUMNS
from bench.report import measured_table, run, table
from bench.servers import servers
from epochline.config.registry import with_header
from tests.integration.registry import SchemaRegistry
from tests.ports import free_port

RECORDS, ROUNDS, PARTITIONS = 200_000, 3, 4
MULTIPLE = 1_000
"""Records of a round are a multiple of it: partitions and divisors need one, and no window ends as a round does."""

TYPED = KINDS[0].name
"""The kind that the others are compared with."""

PHASES = ("stage", "seal", "commit")
Sql = Callable[[str], list[tuple[Any, ...]]]


class Contest:
    """A kind's pipeline and its recipe, and the seconds of both by `OURS` and `RECIPES`."""

    def __init__(self, bench: Bench, kind: Kind, folder: Path, header: bytes) -> None:
        self.kind = kind
        self.times: dict[str, list[float]] = defaultdict(list)
        self.phases: dict[str, float] = {}
        """Median seconds of an epoch's phases."""
        self._bench, self._header, self._produced = bench, header, 0
        self._topic = f"bench-{kind.name}"
        bench.make(self._topic, partitions=PARTITIONS)
        self._epochs = Epochs(bench, kind.pipeline(self._topic))
        stream: dict[str, Any] = {"dsn": bench.dsn, "kafka": bench.kafka, "topic": self._topic}
        stream |= {"table": f"{RECIPES}_{kind.name}", "columns": kind.targets[0].columns, "schema": SPARK_COLUMNS}
        self._recipe = Recipe(**{**stream, **kind.recipe}, checkpoint=str(folder / kind.name))
        self._recipe.make()

    def run(self, records: int) -> None:
        """One round: both take the same records. Raises as `check`."""
        kind, numbers = self.kind, range(self._produced, self._produced + records // self.kind.divisor)
        values = (body if body is None else self._header + body for body in map(kind.value, numbers))
        self._bench.produce(self._topic, values, PARTITIONS, map(kind.key, numbers))
        self._produced = numbers.stop
        with timed(self.times, OURS):
            self._epochs.run()
        self.times[RECIPES].append(self._recipe.take(self._bench.spark))
        for target in kind.targets:
            for whose in (OURS, RECIPES):
                check(self._bench.sql, f"{whose}_{kind.name}{target.suffix}", target, self._produced)

    def ask_phases(self) -> None:
        """Keep the phases of the epochs that count."""
        medians = self._bench.phases(self._epochs.pipeline.name, PHASES)
        self.phases = dict(zip(PHASES, medians, strict=True))


def check(sql: Sql, name: str, target: Target, produced: int) -> None:
    """Compare a table with what it must hold after so many records, by the number and a digest of its rows.

    Raises:
        RuntimeError: a row is missing, doubled or changed.
    """
    # Spark's decimals have one scale: such a number is compared by its value.
    columns = [f"trim_scale({name})" if kind == "numeric" else name for name, kind in target.columns.items()]
    numbers = f"WITH produced AS (SELECT n FROM generate_series(0, {produced - 1}) n)"  # noqa: S608 - numbers
    held, expected = (
        sql(f"{numbers} SELECT count(*), coalesce(sum(hashtextextended(r::text, 0)), 0) FROM ({rows}) r")[0]  # noqa: S608
        for rows in (f"SELECT {', '.join(columns)} FROM {name}", target.rows)  # noqa: S608 - names of ours
    )
    if held != expected:
        raise RuntimeError(f"{name}: number and digest of its rows are {held}, and must be {expected}")


def measured(records: int, rounds: int, names: Sequence[str]) -> list[Contest]:
    """The kinds of these names, after one round that is not counted. A round has every kind once."""
    with servers("postgres", "kafka") as stack, in_spark(stack, **{"spark.jars": jars()}) as bench, ExitStack() as left:
        folder = stack.home.root
        (folder / "bench_kinds.py").write_text(TRANSFORM)
        sys.path.insert(0, str(folder))
        contests = [
            Contest(bench, kind, folder, _registered(bench, kind, folder, left) if kind.schema else b"")
            for kind in KINDS
            if kind.name in names
        ]
        of_all = {f"{one.kind.name} {whose}": one.times[whose] for one in contests for whose in (OURS, RECIPES)}
        for _ in counted_rounds(of_all, rounds):
            for contest in contests:
                contest.run(records)
        for contest in contests:
            contest.ask_phases()
    return contests


def _registered(bench: Bench, kind: Kind, folder: Path, left: ExitStack) -> bytes:
    """Start a registry with the schema of a kind's values; returns what stands before each value."""
    registry = SchemaRegistry(free_port(), folder)
    left.callback(registry.stop)
    registry.start()
    bench.registries["epochline_registry"] = {"url": registry.url}
    schema = Schema(json.dumps(kind.schema), "AVRO")
    return with_header(SchemaRegistryClient({"url": registry.url}).register_schema(f"{kind.name}-value", schema), b"")


def section(records: int, rounds: int, kinds: list[str]) -> str:
    """Measure, and render the table."""
    if strangers := set(kinds) - {kind.name for kind in KINDS}:
        raise SystemExit(f"--kinds: there is no {', '.join(strangers)}")
    if records % MULTIPLE:
        raise SystemExit(f"--records must be a multiple of {MULTIPLE:,}")
    contests = measured(records, rounds, [TYPED, *kinds])
    rates = {one.kind.name: records / one.kind.divisor / statistics.median(one.times[OURS]) for one in contests}
    rows = []
    for contest in contests:
        kind, times, rate = contest.kind, contest.times, rates[contest.kind.name]
        fewer = f", {records // kind.divisor:,} records" if kind.divisor > 1 else ""
        rows.append([
            f"{kind.label}{fewer}", f"{rate:,.0f}",
            f"{statistics.median(times[RECIPES]) / statistics.median(times[OURS]):.2f}", f"{rate / rates[TYPED]:.2f}",
            ", ".join(f"{contest.phases[phase]:.2f}" for phase in PHASES),
        ])  # fmt: skip
    headings = [
        "kind of pipeline", "records per second", "rate, ratio to the recipe", "rate, ratio to typed append",
        "seconds: stage, seal, commit",
    ]  # fmt: skip
    intro = f"Epochs of {records:,} records; medians of {rounds} rounds."
    return measured_table("bench.kinds", intro, headings, rows)


def short(section: str) -> str:
    """The kinds, their rates and ratios to the recipe, for a page with little room."""
    rows = [cells(line) for line in section.splitlines() if line.startswith("|")][2:]
    headings = ["What you have", "records per second", "times the rate of the recipe"]
    return "\n".join(table(headings, [row[:3] for row in rows]))


if __name__ == "__main__":
    names = [kind.name for kind in KINDS]
    sizes = {"records": (RECORDS, "records of a round"), "rounds": (ROUNDS, "rounds that count")}
    run("bench.kinds", __doc__, section, short, **sizes, kinds=(names, "kinds to measure, beside typed append"))
