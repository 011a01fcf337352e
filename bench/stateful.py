"""What state costs a small epoch: a pipeline that counts per key beside one that only copies, both warm (C8).

Both read the same records. The stateful one sums them by key in a transform, adds them to its state and upserts the
result; the stateless one writes a row per record. After each round the bench compares both with what was produced.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.epochs import WHOLE, Epochs, in_spark, rounds_of
from bench.report import machine, write_section
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable, StateTable

RECORDS, KEYS, ROUNDS, PARTITIONS = 1_000, 100, 5, 2
TOPIC = "bench-stateful"
STATELESS, STATEFUL = "stateless: a row per record", "stateful: a count per key"
STEPS = ("plan", "stage", "commit", WHOLE)

TRANSFORM = """
from pyspark.sql import functions as F

def count(records, state):
    (table,) = state
    new = records.groupBy("key").agg(F.count("*").alias("more"))
    total = (F.coalesce("seen", F.lit(0)) + F.col("more")).cast("bigint")
    counted = new.join(state[table], "key", "left").select("key", total.alias("seen"))
    return {"counts": counted, table: counted}
"""
COLUMNS = {"id": "bigint", "key": "bigint"}
COUNTS = {"key": "bigint", "seen": "bigint"}

Times = Mapping[str, Mapping[str, Sequence[float]]]
"""By pipeline and step, the seconds of each round."""


def pipelines() -> dict[str, Pipeline]:
    """Both, over one topic."""
    source, parse = KafkaSource(topics=TOPIC), Json(columns=COLUMNS)
    return {
        STATELESS: Pipeline(
            name="bench-stateless", source=source, parse=parse, sinks=PostgresTable(table="copied", columns=COLUMNS)
        ),
        STATEFUL: Pipeline(
            name="bench-stateful", source=source, parse=parse, transform="bench_stateful:count",
            sinks=PostgresTable(table="counts", mode="upsert", key="key", columns=COUNTS, aggregated=True),
            state=StateTable(table="held", key="key", columns=COUNTS),
        ),
    }  # fmt: skip


def measured(records: int, rounds: int) -> Times:
    """Seconds of every step of both pipelines.

    Raises:
        RuntimeError: a record is missing or doubled.
    """
    with servers("postgres", "kafka") as stack:
        (stack.home.root / "bench_stateful.py").write_text(TRANSFORM)
        sys.path.insert(0, str(stack.home.root))
        with in_spark(stack) as bench:
            bench.make(TOPIC, PARTITIONS)
            epochs = {name: Epochs(bench, pipeline) for name, pipeline in pipelines().items()}
            produced = 0

            def produce() -> None:
                nonlocal produced
                numbers = range(produced, produced + records)
                values = (f'{{"id": {number}, "key": {number % KEYS}}}'.encode() for number in numbers)
                bench.produce(TOPIC, values, PARTITIONS)
                produced += records

            def check() -> None:
                copied = bench.sql("SELECT count(*), count(DISTINCT id) FROM copied")
                counted = bench.sql("SELECT sum(seen)::bigint, count(*) FROM counts")
                if (copied, counted) != ([(produced, produced)], [(produced, min(KEYS, produced))]):
                    raise RuntimeError(f"{produced} records were produced; the tables hold {copied} and {counted}")

            contestants = {"produce": produce, **{name: one.run for name, one in epochs.items()}, "check": check}
            rounds_of(contestants, {name: [] for name in contestants}, rounds)
    return {name: {step: one.times[step][1:] for step in STEPS} for name, one in epochs.items()}


def rendered(times: Times, records: int, rounds: int) -> str:
    """The table, as ratios to the stateless pipeline."""
    first = times[STATELESS]
    lines = [
        f"Epochs of {records:,} records with {KEYS} keys; medians of {rounds} rounds, each of which ran both"
        " pipelines; one round before them is not counted.",
        f"Measured by `python -m bench.stateful` on {machine()}; load average {os.getloadavg()[0]:.1f}.",
        "",
        "| pipeline | whole epoch, ratio to stateless | " + " | ".join(f"{step}, seconds" for step in STEPS) + " |",
        "|---|---:|" + "---:|" * len(STEPS),
    ]
    for name, steps in times.items():
        ratio = statistics.median(steps[WHOLE]) / statistics.median(first[WHOLE])
        seconds = " | ".join(f"{statistics.median(steps[step]):.2f}" for step in STEPS)
        lines.append(f"| {name} | {ratio:.2f} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.stateful", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS, help="records of an epoch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (default: %(default)s)")
    parser.add_argument("--report", type=Path, help="the page whose table is replaced")
    given = parser.parse_args()
    times = measured(given.records, given.rounds)
    write_section(given.report, "bench.stateful", rendered(times, given.records, given.rounds))


if __name__ == "__main__":
    main()
