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
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psutil
import psycopg2
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from bench.plain_consumer import PlainConsumer
from bench.processor import seconds_of
from bench.recipe import Recipe, jars
from bench.report import measured_by, run
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.coordinator import commit, plan, stage
from epochline.kafka.source import KafkaOffsets
from epochline.local.spark_home import spark_home
from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from epochline.protocol.staging import StagingTicket
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run as run_job
from epochline.spark.session import session

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


def value(number: int) -> bytes:
    """A record of about 115 bytes."""
    record = {
        "id": number, "who": f"customer-{number % 10_000:06}", "amount": number % 100_000 / 100,
        "at": f"2026-03-01T12:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}Z", "ok": number % 3 == 0,
    }  # fmt: skip
    return json.dumps(record).encode()


@dataclass
class Contest:
    """The servers, the Spark session, and the times of each contestant."""

    stack: Stack
    spark: Any
    records: int
    produced: int = 0
    times: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """Median seconds of each phase of an epoch, as the ledger has them."""

    def __post_init__(self) -> None:
        self.dsn = self.stack.postgres.dsn()
        self.kafka = {"bootstrap.servers": self.stack.kafka.bootstrap_servers}
        self.ledger, self.offsets = PostgresLedger(self.dsn), KafkaOffsets(self.kafka)
        self.pipeline = Pipeline(
            name="bench-records", source=KafkaSource(topics=TOPIC, records_per_epoch=100_000_000),
            parse=Json(columns=COLUMNS), sinks=PostgresTable(table="by_epochline", columns=COLUMNS),
        )  # fmt: skip
        stream: dict[str, Any] = {"dsn": self.dsn, "kafka": self.kafka, "topic": TOPIC, "columns": COLUMNS}
        folder = self.stack.home.root
        self.recipe = Recipe(**stream, table="by_recipe", schema=SPARK_COLUMNS, checkpoint=str(folder / "recipe"))
        self.repeating = Recipe(
            **stream, table="by_repeating", schema=SPARK_COLUMNS, checkpoint=str(folder / "repeating"), once=False
        )
        self.consumer = PlainConsumer(**stream, table="by_consumer")

    def make(self) -> None:
        """Make the topic and the tables."""
        with closing(KafkaAdminClient(bootstrap_servers=self.kafka["bootstrap.servers"])) as admin:
            topic = {"num_partitions": PARTITIONS, "replication_factor": 1}
            admin.create_topics({TOPIC: topic}, wait_for_metadata=True)
        with self.ledger.transaction() as tx:
            tx.targets.create(self.pipeline)
        for other in (self.recipe, self.repeating, self.consumer):
            other.make()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, which is committed."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def produce(self) -> None:
        """Append the round's records to the topic."""
        producer = Producer({**self.kafka, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
        for number in range(self.produced, self.produced + self.records):
            producer.produce(TOPIC, value(number), partition=number % PARTITIONS)
            if number % 10_000 == 0:
                producer.poll(0)
        producer.flush()
        self.produced += self.records

    def ask_phases(self) -> None:
        """Keep the phases of the epochs that count."""
        medians = ", ".join(f"percentile_cont(0.5) WITHIN GROUP (ORDER BY {name}_seconds)" for name in PHASES)
        where = f"pipeline = '{self.pipeline.name}' AND epoch_id > 1"
        [row] = self.sql(f"SELECT {medians} FROM epochline.phases WHERE {where}")  # noqa: S608 - names of ours
        self.phases = dict(zip(PHASES, row, strict=True))

    def check(self, table: str) -> None:
        """Compare a table with everything that was produced.

        Raises:
            RuntimeError: a record is missing, doubled or changed.
        """
        found = self.sql(f"SELECT count(*), sum(id), count(DISTINCT id) FROM {table}")  # noqa: S608 - a name of ours
        expected = (self.produced, sum(range(self.produced)), self.produced)
        if found != [expected]:
            raise RuntimeError(f"{table} holds {found[0]}, and {expected} was produced")

    def run(self) -> None:
        """One round: every contestant takes the same records."""
        self.produce()
        self.epochline()
        self.to_noop()
        self.timed(STREAMING, lambda: self.batches(self.recipe))
        self.timed(REPEATING, lambda: self.batches(self.repeating))
        ends = dict.fromkeys(range(PARTITIONS), self.produced // PARTITIONS)
        self.timed(PLAIN, lambda: self.consumer.consume(ends))
        for table in ("by_epochline", "by_recipe", "by_repeating", "by_consumer"):
            self.check(table)

    def timed(self, name: str, work: Callable[[], float | None]) -> None:
        """Keep the seconds that the work took, or that it returned, and the processor's seconds."""
        used, begun = _processor_seconds(), time.monotonic()
        seconds = work() or time.monotonic() - begun
        self.times.setdefault(name, []).append(seconds)
        self.processor.setdefault(name, []).append(_processor_seconds() - used)

    def epochline(self) -> None:
        """A whole epoch, as the command line runs it in its session."""

        def submit(ticket: StagingTicket) -> None:
            credentials = JobCredentials(dsn=self.dsn, kafka=self.kafka)
            job = (self.spark, ticket.pipeline, ticket.epoch_id, ticket.attempt, credentials)
            self.timed(PRE_COMMIT, lambda: run_job(*job))

        def whole() -> None:
            run = Run(dag_id="bench", run_id=str(self.produced), host="here")
            epoch = plan(self.ledger, self.offsets, self.pipeline, run).epoch
            assert epoch is not None
            stage(self.ledger, self.offsets, epoch.pipeline, epoch.epoch_id, run, submit=submit, stop=lambda: None)
            commit(self.ledger, self.offsets, epoch.pipeline, epoch.epoch_id)

        self.timed(WHOLE, whole)

    def to_noop(self) -> None:
        """Spark reads and parses the round's records."""
        end = self.produced // PARTITIONS
        names = [str(partition) for partition in range(PARTITIONS)]
        since, until = (dict.fromkeys(names, at) for at in (end - self.records // PARTITIONS, end))
        frame = self.recipe.read(self.spark, since, until)
        self.timed(NOOP, lambda: frame.write.format("noop").mode("append").save())

    def batches(self, recipe: Recipe) -> float:
        """A stream goes on from its checkpoint and ends when it has read everything; returns its batches' seconds."""
        query = recipe.start(self.spark, availableNow=True)
        query.awaitTermination()
        return float(sum(one["durationMs"]["triggerExecution"] for one in query.recentProgress)) / 1000


def _processor_seconds() -> float:
    """Of this process and everything that it started: the servers, Spark's JVM, its Python workers."""
    this = psutil.Process()
    return seconds_of([this, *this.children(recursive=True), *_servers()])


def _servers() -> list[psutil.Process]:
    """PostgreSQL, whose postmaster is no child of this process. Kafka's share is the same for every contestant."""
    return [one for one in psutil.process_iter(["name"]) if one.info["name"] == "postgres"]


def measured(records: int, rounds: int) -> Contest:
    """Every contestant, side by side, after one round that is not counted."""
    with servers("postgres", "kafka") as stack:
        log = stack.home.root / "spark.log"
        conf = {"spark.jars": jars(), "spark.sql.shuffle.partitions": "2"}
        with session("bench", "local[2]", home=spark_home(), log=log, conf=conf) as spark:
            contest = Contest(stack, spark, records)
            contest.make()
            for number in range(rounds + 1):
                contest.run()
                said = ", ".join(f"{name} {times[-1]:.1f} s" for name, times in contest.times.items())
                print(f"round {number} of {rounds}: {said}", flush=True)
            contest.ask_phases()
    for kept in (contest.times, contest.processor):
        for seconds in kept.values():
            del seconds[0]
    return contest


def rendered(contest: Contest, rounds: int) -> str:
    """The table: rows per second as ratios to the recipe, and what the processor spent."""

    def median(of: Mapping[str, Sequence[float]], name: str) -> float:
        return statistics.median(of[name])

    lines = [
        f"{contest.records:,} records of about 115 bytes per round; medians of {rounds} rounds.",
        measured_by("bench.records"),
        "",
        "| contestant | records per second, ratio to the recipe | records per second | seconds: median, least, most"
        " | processor seconds per million records |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, seconds in contest.times.items():
        took = median(contest.times, name)
        processor = median(contest.processor, name) / contest.records * 1e6
        lines.append(
            f"| {name} | {median(contest.times, FIRST) / took:.2f} | {contest.records / took:,.0f}"
            f" | {took:.2f}, {min(seconds):.2f}, {max(seconds):.2f} | {processor:.1f} |"
        )
    spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in contest.phases.items())
    lines += ["", f"Seconds of a whole epoch's phases, as `epochline.phases` has them: {spent}."]
    return "\n".join(lines)


def section(records: int, rounds: int) -> str:
    """Measure, and render the table."""
    if records % PARTITIONS:
        raise SystemExit(f"--records must be a multiple of {PARTITIONS}")
    return rendered(measured(records, rounds), rounds)


if __name__ == "__main__":
    run(
        "bench.records", __doc__, section, records=(RECORDS, "records of a round"), rounds=(ROUNDS, "rounds that count")
    )
