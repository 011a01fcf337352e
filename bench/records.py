"""How many JSON records per second reach a table, exactly once: Epochline beside what users would pick instead.

Every contestant takes the same records from Kafka to PostgreSQL, one after the other in each round, in a Spark session
that already runs. After each timed run the bench compares the table's count and sum with what was produced.

- *Epochline* plans, stages, seals and commits an epoch; *pre-commit* is its Spark job alone.
- *Spark to noop* reads the same records by Spark's own Kafka source and ``from_json``, and writes nothing: the floor of
  a Spark job in the JVM.
- *Structured Streaming, recipe* is what users write for exactly-once (`bench.recipe`), and *at least once* is the same
  without a staging table. The start of a query is not counted.
- *a plain consumer* is one Python process (`bench.plain_consumer`).
"""

import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.epochs import Bench, Epochs, counted_rounds, in_spark
from bench.plain_consumer import PlainConsumer
from bench.processes import family, seconds_of
from bench.recipe import Recipe, jars
from bench.report import measured_table, run, spread
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable

RECORDS = 400_000
ROUNDS = 5
PARTITIONS = 4
TOPIC = "bench-records"

COLUMNS = {"id": "bigint", "who": "text", "amount": "numeric(10,2)", "at": "timestamptz", "ok": "boolean"}
SPARK_COLUMNS = "id bigint, who string, amount decimal(10,2), at timestamp, ok boolean"

WHOLE, PRE_COMMIT, NOOP = "Epochline, whole epoch", "Epochline, pre-commit", "Spark to noop"
STREAMING, PLAIN = "Structured Streaming, recipe", "a plain consumer"
REPEATING = "Structured Streaming, at least once"
PHASES = ("start", "stage", "seal", "commit")
FIRST = STREAMING
"""The contestant that the ratios refer to."""


def record(number: int) -> dict[str, Any]:
    """The members of a record."""
    return {
        "id": number, "who": f"customer-{number % 10_000:06}", "amount": number % 100_000 / 100,
        "at": f"2026-03-01T12:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}Z", "ok": number % 3 == 0,
    }  # fmt: skip


def value(number: int) -> bytes:
    """A record of about 115 bytes."""
    return json.dumps(record(number)).encode()


class Contest:
    """The servers, the Spark session, and the times of each contestant."""

    def __init__(self, bench: Bench, folder: Path, records: int) -> None:
        self._bench = bench
        self.records = records
        self._produced = 0
        self.times: dict[str, list[float]] = defaultdict(list)
        self.processor: dict[str, list[float]] = defaultdict(list)
        self.phases: dict[str, float] = {}
        """Median seconds of each phase of an epoch, as the ledger has them."""
        bench.make(TOPIC, partitions=PARTITIONS)
        pipeline = Pipeline(
            name="bench-records", source=KafkaSource(topics=TOPIC, records_per_epoch=100_000_000),
            parse=Json(columns=COLUMNS), sinks=PostgresTable(table="by_epochline", columns=COLUMNS),
        )  # fmt: skip
        self._epochs = Epochs(bench, pipeline, lambda ticket: self._timed(PRE_COMMIT, lambda: bench.run_job(ticket)))
        stream: dict[str, Any] = {"dsn": bench.dsn, "kafka": bench.kafka, "topic": TOPIC, "columns": COLUMNS}
        self._recipe, self._repeating = (
            Recipe(**stream, table=table, schema=SPARK_COLUMNS, checkpoint=str(folder / table), once=once)
            for table, once in (("by_recipe", True), ("by_repeating", False))
        )
        self._consumer = PlainConsumer(**stream, table="by_consumer")
        for other in (self._recipe, self._repeating, self._consumer):
            other.make()

    def ask_phases(self) -> None:
        """Keep the phases of the epochs that count."""
        medians = self._bench.phases(self._epochs.pipeline.name, PHASES)
        self.phases = dict(zip(PHASES, medians, strict=True))

    def run(self) -> None:
        """One round: every contestant takes the same records."""
        numbers = range(self._produced, self._produced + self.records)
        self._bench.produce(TOPIC, map(value, numbers), PARTITIONS)
        self._produced += self.records
        self._timed(WHOLE, self._epochs.run)
        since, until = (
            {str(partition): end // PARTITIONS for partition in range(PARTITIONS)}
            for end in (numbers.start, numbers.stop)
        )
        frame = self._recipe.read(self._bench.spark, since, until)
        self._timed(NOOP, lambda: frame.write.format("noop").mode("append").save())
        self._timed(STREAMING, lambda: self._recipe.take(self._bench.spark))
        self._timed(REPEATING, lambda: self._repeating.take(self._bench.spark))
        ends = dict.fromkeys(range(PARTITIONS), self._produced // PARTITIONS)
        self._timed(PLAIN, lambda: self._consumer.consume(ends))
        for taken in ("by_epochline", "by_recipe", "by_repeating", "by_consumer"):
            self._bench.check(taken, self._produced)

    def _timed(self, name: str, work: Callable[[], object]) -> None:
        """Keep the seconds that the work took, or that it returned, and the processor's seconds."""
        used, begun = _processor_seconds(), time.monotonic()
        seconds = work()
        self.times[name].append(seconds if isinstance(seconds, float) else time.monotonic() - begun)
        self.processor[name].append(_processor_seconds() - used)


def _processor_seconds() -> float:
    """Of this process and everything that it started: the servers, Spark's JVM, its Python workers."""
    # PostgreSQL's postmaster is no child of this process. Kafka's share is the same for every contestant.
    postgres = [process for process in psutil.process_iter(["name"]) if process.info["name"] == "postgres"]
    return seconds_of([*family(os.getpid()), *postgres])


def measured(records: int, rounds: int) -> Contest:
    """Every contestant, side by side, after one round that is not counted."""
    with servers("postgres", "kafka") as stack, in_spark(stack, **{"spark.jars": jars()}) as bench:
        contest = Contest(bench, stack.home.root, records)
        for _ in counted_rounds(contest.times, rounds):
            contest.run()
        contest.ask_phases()
    for seconds in contest.processor.values():
        del seconds[0]
    return contest


def section(records: int, rounds: int) -> str:
    """The table: rows per second as ratios to the recipe, and what the processor spent."""
    if records % PARTITIONS:
        raise SystemExit(f"--records must be a multiple of {PARTITIONS}")
    contest = measured(records, rounds)
    first = statistics.median(contest.times[FIRST])
    rows = []
    for name, seconds in contest.times.items():
        took = statistics.median(seconds)
        processor = statistics.median(contest.processor[name]) / records * 1e6
        rows.append([name, f"{first / took:.2f}", f"{records / took:,.0f}", spread(seconds, 2), f"{processor:.1f}"])
    headings = [
        "contestant", "records per second, ratio to the recipe", "records per second", "seconds: median, least, most",
        "processor seconds per million records",
    ]  # fmt: skip
    intro = f"{records:,} records of about 115 bytes per round; medians of {rounds} rounds."
    spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in contest.phases.items())
    phases = f"Seconds of a whole epoch's phases, as `epochline.phases` has them: {spent}."
    return measured_table("bench.records", intro, headings, rows, "", phases)


if __name__ == "__main__":
    sizes = {"records": (RECORDS, "records of a round"), "rounds": (ROUNDS, "rounds that count")}
    run("bench.records", __doc__, section, **sizes)
