"""How long millions of JSON records take from nothing: processes that start, take everything that is there, and end.

- *Epochline* is ``epochline run NAME --once``: its start, Spark's start, plan, staging, seal and commit.
- *Structured Streaming, recipe* is a program of `bench.recipe`, with its own Spark.
- *a plain consumer* is a program of `bench.plain_consumer`.

Every contestant takes the same records, one after the other in each round, into new tables. After each timed run the
bench compares the table's count and sum with what was produced.
"""

import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.epochs import Bench, counted_rounds, timed
from bench.plain_consumer import PlainConsumer
from bench.recipe import Recipe
from bench.records import COLUMNS, PARTITIONS, PLAIN, SPARK_COLUMNS, STREAMING, value
from bench.report import ROOT, measured_table, run, spread
from bench.servers import servers
from epochline.local.stack import Stack
from tests.commands import environment_of

RECORDS, ROUNDS = 2_000_000, 5
TOPIC = "bench-cold"
OURS = "Epochline, `epochline run --once`"

DECLARED = """
from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

for number in range({rounds}):
    globals()[f"cold_{{number}}"] = epoch_dag(Pipeline(
        name=f"cold_{{number}}",
        source=KafkaSource(topics="{topic}", records_per_epoch=100_000_000, startup="earliest"),
        parse=Json(columns={columns}), sinks=PostgresTable(table=f"by_epochline_{{number}}", columns={columns}),
    ))
"""


class Cold:
    """The servers, the records, and the seconds of every process."""

    def __init__(self, stack: Stack, records: int, rounds: int) -> None:
        self.folder = stack.home.root / "cold"
        self.folder.mkdir()
        self.records = records
        self.times: dict[str, list[float]] = defaultdict(list)
        self._bench = Bench(stack, None)
        self._bench.make(TOPIC, partitions=PARTITIONS)
        self._bench.produce(TOPIC, map(value, range(records)), PARTITIONS)
        declared = DECLARED.format(rounds=rounds, topic=TOPIC, columns=COLUMNS)
        (self.folder / "cold.py").write_text(declared)
        kafka = self._bench.kafka["bootstrap.servers"]
        self._environment = environment_of(self.folder, postgres=self._bench.dsn, kafka=kafka)
        self._epochline("migrate")

    def run(self, number: int) -> None:
        """One round: every contestant takes all records."""
        dsn, kafka = self._bench.dsn, self._bench.kafka
        recipe = Recipe(
            dsn=dsn, kafka=kafka, topic=TOPIC, table=f"by_recipe_{number}", columns=COLUMNS, schema=SPARK_COLUMNS,
            checkpoint=str(self.folder / f"recipe_{number}"),
        )  # fmt: skip
        consumer = PlainConsumer(dsn=dsn, kafka=kafka, topic=TOPIC, table=f"by_consumer_{number}", columns=COLUMNS)
        recipe.make()
        consumer.make()
        ends = dict.fromkeys(range(PARTITIONS), self.records // PARTITIONS)
        with timed(self.times, OURS):
            self._epochline("run", f"cold_{number}", "--once", "--master", "local[2]")
        stored = str(recipe.stored(self.folder / "recipe.json"))
        with timed(self.times, STREAMING):
            self._process(sys.executable, "-m", "bench.recipe", stored)
        stored = str(consumer.stored(self.folder / "consumer.json", ends))
        with timed(self.times, PLAIN):
            self._process(sys.executable, "-m", "bench.plain_consumer", stored)
        for taken in (f"{name}_{number}" for name in ("by_epochline", "by_recipe", "by_consumer")):
            self._bench.check(taken, self.records)
            self._bench.sql(f"DROP TABLE {taken}")

    def _epochline(self, *arguments: str) -> None:
        self._process(str(Path(sys.executable).with_name("epochline")), *arguments)

    def _process(self, *command: str) -> None:
        with (self.folder / "processes.log").open("ab") as log:
            subprocess.run(command, env=self._environment, cwd=ROOT, stdout=log, stderr=log, check=True)


def measured(records: int, rounds: int) -> Mapping[str, Sequence[float]]:
    """Seconds of every contestant; raises `RuntimeError` if a record is missing, doubled or changed."""
    with servers("postgres", "kafka") as stack:
        cold = Cold(stack, records, rounds + 1)
        for number in counted_rounds(cold.times, rounds):
            cold.run(number)
    return cold.times


def section(records: int, rounds: int) -> str:
    """The table, as ratios to the recipe."""
    if records % PARTITIONS:
        raise SystemExit(f"--records must be a multiple of {PARTITIONS}")
    times = measured(records, rounds)
    first = statistics.median(times[STREAMING])
    rows = [
        [name, f"{statistics.median(seconds) / first:.2f}", spread(seconds, 1)] for name, seconds in times.items()
    ]  # fmt: skip
    headings = ["process", "time, ratio to the recipe", "seconds: median, least, most"]
    intro = f"{records:,} records of about 115 bytes; medians of {rounds} rounds."
    return measured_table("bench.cold", intro, headings, rows)


if __name__ == "__main__":
    run("bench.cold", __doc__, section, records=(RECORDS, "records"), rounds=(ROUNDS, "rounds that count"))
