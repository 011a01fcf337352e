"""Whole epochs of a pipeline in a Spark session that already runs, with the seconds of every step."""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import psycopg2
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from bench.report import ROOT
from epochline import Pipeline
from epochline.coordinator import commit, plan, publish, stage
from epochline.kafka.source import KafkaOffsets
from epochline.local.spark_home import spark_home
from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.staging import StagingTicket
from epochline.sinks import sinks_by
from epochline.spark import main
from epochline.spark.credentials import CREDENTIALS_VARIABLE, JobCredentials
from epochline.spark.job import run as run_job
from epochline.spark.session import session

WHOLE = "whole epoch"
K = TypeVar("K")
"""What is timed: a contestant, a step, or several words for it."""


class Bench:
    """The servers of a measurement and its Spark session."""

    def __init__(self, stack: Stack, spark: Any) -> None:
        self.spark = spark
        self.dsn = stack.postgres.dsn()
        self.kafka = {"bootstrap.servers": stack.kafka.bootstrap_servers}
        self.ledger = PostgresLedger(self.dsn, sink_factory=sinks_by(lambda _: self.kafka))
        self.offsets = KafkaOffsets(self.kafka)
        self.registries: dict[str, dict[str, str]] = {}
        """Settings of schema registries, by connection id."""

    def make(self, *topics: str, partitions: int) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self.kafka["bootstrap.servers"])) as admin:
            wanted = {"num_partitions": partitions, "replication_factor": 1}
            admin.create_topics(dict.fromkeys(topics, wanted), wait_for_metadata=True)

    def produce(
        self, topic: str, values: Iterable[bytes | None], partitions: int, keys: Iterable[bytes | None] = repeat(None)
    ) -> None:
        """Append records, one after the other to each partition."""
        producer = Producer({**self.kafka, "linger.ms": 20, "message.max.bytes": 2_000_000})
        for number, (value, key) in enumerate(zip(values, keys, strict=False)):
            while True:
                try:
                    producer.produce(topic, value, key, partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def run_job(self, ticket: StagingTicket) -> None:
        """Run the job of an attempt in the Spark session."""
        credentials = JobCredentials(dsn=self.dsn, kafka=self.kafka, registries=self.registries)
        run_job(self.spark, ticket.pipeline, ticket.epoch_id, ticket.attempt, credentials)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, which is committed."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def check(self, table: str, records: int) -> None:
        """Compare a table with what was produced: records whose ids count from 0.

        Raises:
            RuntimeError: a record is missing, doubled or changed.
        """
        found = self.sql(f"SELECT count(*), sum(id), count(DISTINCT id) FROM {table}")  # noqa: S608 - a name of ours
        expected = (records, sum(range(records)), records)
        if found != [expected]:
            raise RuntimeError(f"{table} holds {found[0]}, and {expected} was produced")

    def phases(self, pipeline: str, names: Sequence[str]) -> list[float]:
        """The median seconds of phases of a pipeline's epochs but the first, as the ledger has them."""
        medians = ", ".join(f"percentile_cont(0.5) WITHIN GROUP (ORDER BY {name}_seconds)" for name in names)
        where = f"pipeline = '{pipeline}' AND epoch_id > 1"
        return list(self.sql(f"SELECT {medians} FROM epochline.phases WHERE {where}")[0])  # noqa: S608 - names of ours


class Epochs:
    """Epochs of one pipeline."""

    def __init__(self, bench: Bench, pipeline: Pipeline, submit: Callable[[StagingTicket], None] | None = None) -> None:
        self.bench, self.pipeline = bench, pipeline
        self.outbox_bytes: list[int] = []
        """What the outboxes held of each epoch between its commit and its publishing."""
        self._submit = submit or bench.run_job
        self.times: dict[str, list[float]] = defaultdict(list)
        self._runs = 0
        with bench.ledger.transaction() as tx:
            tx.targets.create(pipeline)

    def run(self) -> tuple[PlannedRange, ...]:
        """Plan, stage, commit and publish one epoch, and keep the seconds; returns the ranges that it read."""
        bench, self._runs = self.bench, self._runs + 1
        run = Run(dag_id="bench", run_id=f"{self.pipeline.name} {self._runs}", host="here")

        with timed(self.times, WHOLE):
            with timed(self.times, "plan"):
                planned = plan(bench.ledger, bench.offsets, self.pipeline, run)
            assert planned.epoch is not None
            name, epoch_id = self.pipeline.name, planned.epoch.epoch_id
            with timed(self.times, "stage"):
                stage(bench.ledger, bench.offsets, name, epoch_id, run, submit=self._submit, stop=lambda: None)
            with timed(self.times, "commit"):
                commit(bench.ledger, bench.offsets, name, epoch_id)
            if self.pipeline.outboxes:
                self.outbox_bytes.append(sum(bytes_ for bytes_, _ in self.outboxes()))
            with timed(self.times, "publish"):
                publish(bench.ledger, self.pipeline)
        return tuple(planned.ranges)

    def outboxes(self) -> list[tuple[int, int]]:
        """Bytes and rows of each outbox now; the bytes are those of its rows, as PostgreSQL stores them."""
        what = "SELECT coalesce(sum(pg_column_size(o.*)), 0)::bigint, count(*) FROM {} o"
        return [self.bench.sql(what.format(_quoted(one.table)))[0] for one in self.pipeline.outboxes]


class ServerJob:
    """Runs the job of an attempt on the stack's Spark server, by a process of its own, as a task of Airflow does.

    Args:
        stack: whose server it is.
        bench: where the job reads and writes.
        name: of the files of its credentials and its log.
        modules: a folder from which the pipeline's functions are imported.
    """

    def __init__(self, stack: Stack, bench: Bench, name: str, modules: Path | None = None) -> None:
        root = stack.home.root
        self._log = root / f"{name}.log"
        credentials = root / f"{name}.json"
        credentials.touch(mode=0o600)
        spark = {"server": stack.spark.url}
        credentials.write_text(json.dumps({"postgres": {"dsn": bench.dsn}, "kafka": bench.kafka, "spark": spark}))
        folders = [ROOT / "include", ROOT / "spark_jobs", *filter(None, [modules])]
        self._environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), CREDENTIALS_VARIABLE: str(credentials),
            "EPOCHLINE_HOME": str(root),
        }  # fmt: skip

    def __call__(self, ticket: StagingTicket) -> None:
        command = [sys.executable, main.__file__, "--pipeline", ticket.pipeline]
        command += ["--epoch", str(ticket.epoch_id), "--attempt", str(ticket.attempt)]
        with self._log.open("ab") as log:
            subprocess.run(command, env=self._environment, stdout=log, stderr=log, check=True)


def _quoted(table: str) -> str:
    return ".".join(f'"{part}"' for part in table.split("."))


@contextmanager
def timed(times: dict[K, list[float]], what: K) -> Iterator[None]:
    """Keep the seconds that a block took."""
    begun = time.monotonic()
    yield
    times[what].append(time.monotonic() - begun)


@contextmanager
def in_spark(stack: Stack, **conf: str) -> Iterator[Bench]:
    """A bench whose Spark session runs in this process."""
    log = stack.home.root / "spark.log"
    settings = {"spark.sql.shuffle.partitions": "2", **conf}
    with session("bench", "local[2]", home=spark_home(), log=log, conf=settings) as spark:
        yield Bench(stack, spark)


def rounds_of(contestants: Mapping[K, Callable[[], object]], rounds: int) -> dict[K, list[float]]:
    """Seconds of every contestant in every round, after one round that is not counted."""
    times: dict[K, list[float]] = defaultdict(list)
    for _ in counted_rounds(times, rounds):
        for name, work in contestants.items():
            with timed(times, name):
                work()
    return times


def counted_rounds(times: dict[K, list[float]], rounds: int) -> Iterator[int]:
    """Number the rounds, and print what each took. The first one is not counted: its times are deleted at the end."""
    for number in range(rounds + 1):
        yield number
        said = ", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in times.items())
        print(f"round {number} of {rounds}: {said}", flush=True)
    for seconds in times.values():
        del seconds[0]
