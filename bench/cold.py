"""How long millions of JSON records take from nothing: processes that start, take everything that is there, and end.

- *Epochline* is ``epochline run NAME --once``: its start, Spark's start, plan, staging, seal and commit.
- *Structured Streaming, recipe* is a program of `bench.recipe`, with its own Spark.
- *a plain consumer* is a program of `bench.plain_consumer`.

Every contestant takes the same records, one after the other in each round, into new tables. After each timed run the
bench compares the table's count and sum with what was produced.
"""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg2

from bench.epochs import Bench, timed
from bench.plain_consumer import PlainConsumer
from bench.recipe import Recipe
from bench.records import COLUMNS, PARTITIONS, PLAIN, SPARK_COLUMNS, STREAMING, value
from bench.report import measured_by, run
from bench.servers import servers
from epochline.local.home import project_root
from epochline.local.stack import Stack

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
        self._bench.make(TOPIC, PARTITIONS)
        self._bench.produce(TOPIC, map(value, range(records)), PARTITIONS)
        declared = DECLARED.format(rounds=rounds, topic=TOPIC, columns=COLUMNS)
        (self.folder / "cold.py").write_text(declared)
        to = psycopg2.extensions.parse_dsn(self._bench.dsn)
        postgres = {"conn_type": "postgres", "host": to["host"], "port": int(to["port"]), "schema": to["dbname"]}
        self._environment = {
            **os.environ, "EPOCHLINE_HOME": str(self.folder / "no stack"), "EPOCHLINE_DAGS": str(self.folder),
            "AIRFLOW_CONN_EPOCHLINE_POSTGRES": json.dumps(
                postgres | {"login": to["user"], "password": to["password"]}
            ),
            "AIRFLOW_CONN_EPOCHLINE_KAFKA": json.dumps({"conn_type": "kafka", "extra": self._bench.kafka}),
        }  # fmt: skip
        self._epochline("migrate")

    def run(self, number: int) -> None:
        """One round: every contestant takes all records."""
        dsn, kafka = self._bench.dsn, self._bench.kafka
        recipe = Recipe(
            dsn=dsn, kafka=kafka, topic=TOPIC, table=f"by_recipe_{number}", columns=COLUMNS, schema=SPARK_COLUMNS,
            checkpoint=str(self.folder / f"recipe_{number}"),
        )  # fmt: skip
        consumer = PlainConsumer(
            dsn=dsn, kafka=kafka, topic=TOPIC, table=f"by_consumer_{number}", columns=COLUMNS
        )  # fmt: skip
        recipe.make()
        consumer.make()
        ends = dict.fromkeys(range(PARTITIONS), self.records // PARTITIONS)
        with timed(self.times, OURS):
            self._epochline("run", f"cold_{number}", "--once", "--master", "local[2]")
        stored = recipe.stored(self.folder / "recipe.json")
        with timed(self.times, STREAMING):
            self._program("bench.recipe", stored)
        stored = consumer.stored(self.folder / "consumer.json", ends)
        with timed(self.times, PLAIN):
            self._program("bench.plain_consumer", stored)
        for table in ("by_epochline", "by_recipe", "by_consumer"):
            self._check(f"{table}_{number}")

    def _epochline(self, *arguments: str) -> None:
        self._process(str(Path(sys.executable).with_name("epochline")), *arguments)

    def _program(self, module: str, file: Path) -> None:
        self._process(sys.executable, "-m", module, str(file))

    def _process(self, *command: str) -> None:
        with (self.folder / "processes.log").open("ab") as log:
            subprocess.run(
                command, env=self._environment, cwd=project_root(), stdout=log, stderr=log, check=True
            )  # fmt: skip

    def _check(self, table: str) -> None:
        found = self._bench.sql(f"SELECT count(*), sum(id), count(DISTINCT id) FROM {table}")  # noqa: S608 - ours
        self._bench.sql(f"DROP TABLE {table}")
        expected = (self.records, sum(range(self.records)), self.records)
        if found != [expected]:
            raise RuntimeError(f"{table} holds {found[0]}, and {expected} was produced")


def measured(records: int, rounds: int) -> Mapping[str, Sequence[float]]:
    """Seconds of every contestant, after one round that is not counted.

    Raises:
        RuntimeError: a record is missing, doubled or changed.
    """
    with servers("postgres", "kafka") as stack:
        cold = Cold(stack, records, rounds + 1)
        for number in range(rounds + 1):
            cold.run(number)
            said = ", ".join(f"{name} {seconds[-1]:.1f} s" for name, seconds in cold.times.items())
            print(f"round {number} of {rounds}: {said}", flush=True)
    return {name: seconds[1:] for name, seconds in cold.times.items()}


def rendered(times: Mapping[str, Sequence[float]], records: int, rounds: int) -> str:
    """The table, as ratios to the recipe."""
    lines = [
        f"{records:,} records of about 115 bytes; medians of {rounds} rounds.",
        measured_by("bench.cold"),
        "",
        "| process | time, ratio to the recipe | seconds: median, least, most |",
        "|---|---:|---:|",
    ]
    first = statistics.median(times[STREAMING])
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        lines.append(f"| {name} | {middle / first:.2f} | {middle:.1f}, {min(seconds):.1f}, {max(seconds):.1f} |")
    return "\n".join(lines)


def section(records: int, rounds: int) -> str:
    """Measure, and render the table."""
    if records % PARTITIONS:
        raise SystemExit(f"--records must be a multiple of {PARTITIONS}")
    return rendered(measured(records, rounds), records, rounds)


if __name__ == "__main__":
    run("bench.cold", __doc__, section, records=(RECORDS, "records"), rounds=(ROUNDS, "rounds that count"))
