"""What state costs a small epoch: a pipeline that counts per key beside one that only copies, both warm (C8).

Each runs in a Spark session of this process, and as a client of the stack's Spark server, as under Airflow.

Both read the same records. The stateful one sums them by key in a transform, adds them to its state and upserts the
result; the stateless one writes a row per record. After each round the bench compares both with what was produced.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence

from bench.epochs import WHOLE, Epochs, ServerJob, in_spark, rounds_of
from bench.report import measured_table, ratio, run
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable, StateTable

RECORDS, KEYS, ROUNDS, PARTITIONS = 1_000, 100, 5, 2
TOPIC = "bench-stateful"
STATELESS, STATEFUL = "stateless: a row per record", "stateful: a count per key"
PLACES = {"session": "in a session", "server": "on the Spark server"}
STEPS = ("plan", "stage", "commit", WHOLE)

TRANSFORM = """
from pyspark.sql import functions as F

def count(records, state):
    (table,) = state
    new = records.groupBy("key").agg(F.count("*").alias("more"))
    total = (F.coalesce("seen", F.lit(0)) + F.col("more")).cast("bigint")
    counted = new.join(state[table], "key", "left").select("key", total.alias("seen"))
    return {table.replace("held", "counts"): counted, table: counted}
"""
COLUMNS = {"id": "bigint", "key": "bigint"}
COUNTS = {"key": "bigint", "seen": "bigint"}

Times = Mapping[tuple[str, str], Mapping[str, Sequence[float]]]
"""By pipeline, place and step, the seconds of each round."""


def pipelines(place: str) -> dict[str, Pipeline]:
    """Both, over one topic, for one place."""
    source, parse = KafkaSource(topics=TOPIC), Json(columns=COLUMNS)
    return {
        STATELESS: Pipeline(
            name=f"bench-stateless-{place}", source=source, parse=parse,
            sinks=PostgresTable(table=f"copied_{place}", columns=COLUMNS),
        ),
        STATEFUL: Pipeline(
            name=f"bench-stateful-{place}", source=source, parse=parse, transform="bench_stateful:count",
            sinks=PostgresTable(table=f"counts_{place}", mode="upsert", key="key", columns=COUNTS, aggregated=True),
            state=StateTable(table=f"held_{place}", key="key", columns=COUNTS),
        ),
    }  # fmt: skip


def measured(records: int, rounds: int, places: Sequence[str] = tuple(PLACES)) -> Times:
    """Seconds of every step of both pipelines.

    Raises:
        RuntimeError: a record is missing or doubled.
    """
    with servers("postgres", "kafka", *(["spark"] if "server" in places else [])) as stack:
        (stack.home.root / "bench_stateful.py").write_text(TRANSFORM)
        sys.path.insert(0, str(stack.home.root))
        with in_spark(stack) as bench:
            bench.make(TOPIC, partitions=PARTITIONS)
            job = ServerJob(stack, bench, "stateful", stack.home.root) if "server" in places else None
            epochs = {
                (name, place): Epochs(bench, pipeline, job if place == "server" else None)
                for place in places
                for name, pipeline in pipelines(place).items()
            }
            produced = 0

            def produce() -> None:
                nonlocal produced
                numbers = range(produced, produced + records)
                values = (f'{{"id": {number}, "key": {number % KEYS}}}'.encode() for number in numbers)
                bench.produce(TOPIC, values, PARTITIONS)
                produced += records

            def check() -> None:
                for place in places:
                    bench.check(f"copied_{place}", produced)
                    counted = bench.sql(f"SELECT sum(seen)::bigint, count(*) FROM counts_{place}")  # noqa: S608
                    if counted != [(produced, min(KEYS, produced))]:
                        raise RuntimeError(f"{produced} records were produced, and {counted} were counted")

            runs = {f"{name}, {PLACES[place]}": one.run for (name, place), one in epochs.items()}
            rounds_of({"produce": produce, **runs, "check": check}, rounds)
    return {name: {step: one.times[step][1:] for step in STEPS} for name, one in epochs.items()}


def section(records: int, rounds: int) -> str:
    """The table, as ratios to the stateless pipeline in the same place."""
    times = measured(records, rounds)
    rows = [
        [
            f"{name}, {PLACES[place]}", f"{ratio(steps[WHOLE], times[STATELESS, place][WHOLE]):.2f}",
            *(f"{statistics.median(steps[step]):.2f}" for step in STEPS),
        ]
        for (name, place), steps in times.items()
    ]  # fmt: skip
    headings = ["pipeline", "whole epoch, ratio to stateless", *(f"{step}, seconds" for step in STEPS)]
    intro = f"Epochs of {records:,} records with {KEYS} keys; medians of {rounds} rounds."
    return measured_table("bench.stateful", intro, headings, rows)


if __name__ == "__main__":
    sizes = {"records": (RECORDS, "records of an epoch"), "rounds": (ROUNDS, "rounds that count")}
    run("bench.stateful", __doc__, section, **sizes)
