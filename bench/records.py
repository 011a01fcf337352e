"""How many JSON records per second reach a table, exactly once: Epochline beside what users would pick instead.

Every contestant takes the same records from Kafka to PostgreSQL, one after the other in each round, in a Spark session
that already runs. After each timed run the bench compares the table's count and sum with what was produced.

- *Epochline* plans, stages, seals and commits an epoch; *pre-commit* is its Spark job alone.
- *Spark to noop* reads the same records by Spark's own Kafka source and ``from_json``, and writes nothing: the floor of
  a Spark job in the JVM.
- *Structured Streaming, recipe* is what users write for exactly-once: ``foreachBatch`` with JDBC into a staging table,
  then one transaction that inserts the rows and the batch id. The start of its query is not counted.
- *a plain consumer* is one Python process: librdkafka, ``json``, COPY and the offsets in one transaction.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg2
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaAdminClient
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bench.processor import seconds_of
from bench.report import machine, write_section
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.coordinator import commit, plan, stage
from epochline.kafka.source import KafkaOffsets
from epochline.local.jars import JarSet
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
JDBC = "org.postgresql:postgresql:42.7.7"
CONNECTOR = Path(__file__).parent / "ivy" / "spark.xml"
"""Spark's own Kafka source, which no part of Epochline uses."""

COLUMNS = {"id": "bigint", "who": "text", "amount": "numeric(10,2)", "at": "timestamptz", "ok": "boolean"}
SPARK_COLUMNS = "id bigint, who string, amount decimal(10,2), at timestamp, ok boolean"

WHOLE, PRE_COMMIT, NOOP = "Epochline, whole epoch", "Epochline, pre-commit", "Spark to noop"
STREAMING, PLAIN = "Structured Streaming, recipe", "a plain consumer"
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

    def __post_init__(self) -> None:
        self.dsn = self.stack.postgres.dsn()
        self.kafka = {"bootstrap.servers": self.stack.kafka.bootstrap_servers}
        self.ledger, self.offsets = PostgresLedger(self.dsn), KafkaOffsets(self.kafka)
        self.pipeline = Pipeline(
            name="bench-records", source=KafkaSource(topics=TOPIC, records_per_epoch=100_000_000),
            parse=Json(columns=COLUMNS), sinks=PostgresTable(table="by_epochline", columns=COLUMNS),
        )  # fmt: skip
        self.jdbc = {
            "url": f"jdbc:postgresql://{self._host}/{self._parsed['dbname']}?reWriteBatchedInserts=true",
            "user": self._parsed["user"], "password": self._parsed["password"], "driver": "org.postgresql.Driver",
            "batchsize": "10000",
        }  # fmt: skip
        self.checkpoint = str(self.stack.home.root / "recipe")

    @property
    def _parsed(self) -> dict[str, str]:
        return psycopg2.extensions.parse_dsn(self.dsn)

    @property
    def _host(self) -> str:
        return f"{self._parsed['host']}:{self._parsed['port']}"

    def make(self) -> None:
        """Make the topic and the tables."""
        with closing(KafkaAdminClient(bootstrap_servers=self.kafka["bootstrap.servers"])) as admin:
            topic = {"num_partitions": PARTITIONS, "replication_factor": 1}
            admin.create_topics({TOPIC: topic}, wait_for_metadata=True)
        with self.ledger.transaction() as tx:
            tx.targets.create(self.pipeline)
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self.sql(
            f"CREATE TABLE by_recipe ({columns}); CREATE UNLOGGED TABLE recipe_staging ({columns});"
            "CREATE TABLE recipe_batches (batch bigint PRIMARY KEY);"
            f'CREATE TABLE by_consumer ({columns}, "partition" int, "offset" bigint);'
            'CREATE TABLE consumer_offsets ("partition" int PRIMARY KEY, next_offset bigint)'
        )

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
        for contestant in (self.epochline, self.to_noop, self.recipe, self.consumer):
            contestant()
        for table in ("by_epochline", "by_recipe", "by_consumer"):
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
        per_partition = self.records // PARTITIONS
        end = self.produced // PARTITIONS
        names = [str(partition) for partition in range(PARTITIONS)]
        since, until = (json.dumps({TOPIC: dict.fromkeys(names, at)}) for at in (end - per_partition, end))
        reader = self.spark.read.format("kafka").options(**self._kafka_options)
        frame = reader.option("startingOffsets", since).option("endingOffsets", until).load()
        self.timed(NOOP, lambda: _parsed(frame).write.format("noop").mode("append").save())

    @property
    def _kafka_options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.kafka["bootstrap.servers"], "subscribe": TOPIC,
            "kafka.isolation.level": "read_committed",
        }  # fmt: skip

    def recipe(self) -> None:
        """Structured Streaming goes on from its checkpoint and ends when it has read everything."""
        stream = self.spark.readStream.format("kafka").options(**self._kafka_options)
        frame = stream.option("startingOffsets", "earliest").load()

        def batches() -> float:
            query = (
                _parsed(frame).writeStream.foreachBatch(self._insert).option("checkpointLocation", self.checkpoint)
                .trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination()
            return float(sum(one["durationMs"]["triggerExecution"] for one in query.recentProgress)) / 1000

        self.timed(STREAMING, batches)

    def _insert(self, batch: DataFrame, batch_id: int) -> None:
        options = self.jdbc | {"dbtable": "recipe_staging", "truncate": "true"}
        batch.write.format("jdbc").options(**options).mode("overwrite").save()
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO recipe_batches VALUES (%s) ON CONFLICT DO NOTHING", (batch_id,))
            if cursor.rowcount:
                cursor.execute("INSERT INTO by_recipe SELECT * FROM recipe_staging")

    def consumer(self) -> None:
        """One process: read, decode, COPY, and offsets in the same transaction as the rows."""
        self.timed(PLAIN, self._consume)

    def _consume(self) -> None:
        ends = dict.fromkeys(range(PARTITIONS), self.produced // PARTITIONS)
        settings = {**self.kafka, "group.id": "bench-plain", "enable.auto.commit": False}
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute('SELECT "partition", next_offset FROM consumer_offsets')
            at = dict.fromkeys(ends, 0) | dict(cursor.fetchall())
            with closing(Consumer(settings)) as consumer:
                consumer.assign([TopicPartition(TOPIC, partition, offset) for partition, offset in at.items()])
                while at != ends:
                    text = io.StringIO()
                    rows = csv.writer(text)
                    for message in consumer.consume(10_000, timeout=1):
                        record = json.loads(message.value() or b"")
                        partition, offset = message.partition() or 0, message.offset() or 0
                        rows.writerow([*record.values(), partition, offset])
                        at[partition] = offset + 1
                    text.seek(0)
                    cursor.copy_expert("COPY by_consumer FROM STDIN WITH (FORMAT csv)", text)
            for partition, offset in at.items():
                cursor.execute(
                    'INSERT INTO consumer_offsets VALUES (%s, %s) ON CONFLICT ("partition")'
                    " DO UPDATE SET next_offset = excluded.next_offset",
                    (partition, offset),
                )


def _parsed(frame: DataFrame) -> DataFrame:
    return frame.select(F.from_json(F.col("value").cast("string"), SPARK_COLUMNS).alias("r")).select("r.*")


def _processor_seconds() -> float:
    """Of this process and everything that it started: the servers, Spark's JVM, its Python workers."""
    this = psutil.Process()
    return seconds_of([this, *this.children(recursive=True), *_servers()])


def _servers() -> list[psutil.Process]:
    """PostgreSQL, whose postmaster is no child of this process. Kafka's share is the same for every contestant."""
    return [one for one in psutil.process_iter(["name"]) if one.info["name"] == "postgres"]


def measured(records: int, rounds: int) -> Contest:
    """Every contestant, side by side, after one round that is not counted."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--packages {JDBC} pyspark-shell"
    with servers("postgres", "kafka") as stack:
        log = stack.home.root / "spark.log"
        connector = ",".join(map(str, JarSet(CONNECTOR).ensure(print)))
        conf = {"spark.jars": connector, "spark.jars.packages": JDBC, "spark.sql.shuffle.partitions": "2"}
        with session("bench", "local[2]", home=spark_home(), log=log, conf=conf) as spark:
            contest = Contest(stack, spark, records)
            contest.make()
            for number in range(rounds + 1):
                contest.run()
                said = ", ".join(f"{name} {times[-1]:.1f} s" for name, times in contest.times.items())
                print(f"round {number} of {rounds}: {said}", flush=True)
    for kept in (contest.times, contest.processor):
        for seconds in kept.values():
            del seconds[0]
    return contest


def rendered(contest: Contest, rounds: int) -> str:
    """The table: rows per second as ratios to the recipe, and what the processor spent."""

    def median(of: Mapping[str, Sequence[float]], name: str) -> float:
        return statistics.median(of[name])

    lines = [
        f"{contest.records:,} records of about 115 bytes per round; medians of {rounds} rounds, each of which ran every"
        " contestant; one round before them is not counted.",
        f"Measured by `python -m bench.records` on {machine()}; load average {os.getloadavg()[0]:.1f}.",
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
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS, help="records of a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (default: %(default)s)")
    parser.add_argument("--report", type=Path, help="the page whose table is replaced")
    given = parser.parse_args()
    if given.records % PARTITIONS:
        parser.error(f"--records must be a multiple of {PARTITIONS}")
    write_section(given.report, "bench.records", rendered(measured(given.records, given.rounds), given.rounds))


if __name__ == "__main__":
    main()
