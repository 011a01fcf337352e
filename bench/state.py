"""What an epoch's state costs: by the keys that its records touch, not by the keys that are held (C8).

Three pipelines hold 10,000, a million and ten million keys. In each round every one of them runs an epoch whose records
touch the same number of keys, one pipeline after another, so that what slows the machine slows all of them.
"""

import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from kafka import KafkaAdminClient, KafkaProducer

from bench.report import measured_by, run
from bench.servers import servers
from epochline import KafkaSource, Pipeline, PostgresTable, StateTable
from epochline.coordinator import LEASE, begin, commit, plan, seal
from epochline.kafka.source import KafkaOffsets
from epochline.local.spark_home import spark_home
from epochline.local.stack import Stack
from epochline.operations import ACTIONS, Request, Subject
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run as run_job
from epochline.spark.session import session

TOUCHED = 1_000
HELD = (10_000, 1_000_000, 10_000_000)
ROUNDS = 7
STEPS = ("stage", "seal", "commit", "whole epoch")
_COLUMNS = {"key": "bigint", "seen": "bigint"}

TRANSFORM = """
from pyspark.sql import functions as F

def count(records, state):
    (table,) = state
    new = records.groupBy("key").agg(F.count("*").alias("more"))
    total = (F.coalesce("seen", F.lit(0)) + F.col("more")).cast("bigint")
    counted = new.join(state[table], "key", "left").select("key", total.alias("seen"))
    return {"seen_" + table: counted, table: counted}
"""
PARSE = """
import pyarrow as pa
import pyarrow.compute as pc

def parse(batch):
    return pa.RecordBatch.from_arrays([pc.cast(batch.column("value"), pa.string())], names=["key"])
"""


@dataclass
class Held:
    """A pipeline that holds so many keys of state."""

    keys: int
    stack: Stack
    spark: Any
    runs: int = 0
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        table = f"held_{self.keys}"
        self.pipeline = Pipeline(
            name=table, source=KafkaSource(topics=table), parse="bench_state_parse:parse", record={"key": "bigint"},
            transform="bench_state_transform:count",
            sinks=PostgresTable(
                table=f"seen_{table}", mode="upsert", key="key", columns=_COLUMNS, aggregated=True
            ),
            state=StateTable(table=table, key="key", columns=_COLUMNS),
        )  # fmt: skip
        self.dsn = self.stack.postgres.dsn()
        self.ledger = PostgresLedger(self.dsn)
        self.kafka = KafkaOffsets({"bootstrap.servers": self.stack.kafka.bootstrap_servers})

    def fill(self) -> None:
        """Tables, a first epoch, and the keys."""
        with closing(KafkaAdminClient(bootstrap_servers=self.stack.kafka.bootstrap_servers)) as admin:
            topic = {"num_partitions": 1, "replication_factor": 1}
            admin.create_topics({self.pipeline.name: topic}, wait_for_metadata=True)
        with self.ledger.transaction() as tx:
            tx.targets.create(self.pipeline)
        self.epoch([0])
        self.times.clear()
        (state,) = self.pipeline.state
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(
                f"INSERT INTO {state} (key, seen, _epoch) SELECT n, 0, 1 FROM generate_series(1, %s) n",  # noqa: S608
                (self.keys - 1,),
            )
            cursor.execute(f"VACUUM (ANALYZE) {state}")
        subject = Subject(name=self.pipeline.name, ledger=self.ledger, declared=self.pipeline, source=self.kafka)
        accept = ACTIONS["accept-state"]
        accept.act(subject, accept.parse({}), Request(actor="bench", reason="it was filled by hand"))  # type: ignore[attr-defined]

    def epoch(self, keys: Sequence[int]) -> None:
        """Send records of these keys, and run an epoch over them."""
        with closing(KafkaProducer(bootstrap_servers=self.stack.kafka.bootstrap_servers, linger_ms=20)) as producer:
            for key in keys:
                producer.send(self.pipeline.name, value=str(key).encode(), partition=0)
            producer.flush()
        self.runs += 1
        run = Run(dag_id="bench", run_id=str(self.runs), host="here")
        begun = time.monotonic()
        epoch = plan(self.ledger, self.kafka, self.pipeline, run).epoch
        assert epoch is not None
        ticket = begin(self.ledger, epoch.pipeline, epoch.epoch_id, run, lease=LEASE)
        assert ticket is not None
        credentials = JobCredentials(dsn=self.dsn, kafka={"bootstrap.servers": self.stack.kafka.bootstrap_servers})
        with self._timed("stage"):
            run_job(self.spark, epoch.pipeline, epoch.epoch_id, ticket.attempt, credentials)
        with self._timed("seal"):
            seal(self.ledger, self.kafka, ticket, run)
        with self._timed("commit"):
            commit(self.ledger, self.kafka, epoch.pipeline, epoch.epoch_id)
        self.times["whole epoch"].append(time.monotonic() - begun)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.times[step].append(time.monotonic() - begun)


def measured(sizes: Sequence[int], rounds: int) -> list[Held]:
    """Every size, side by side."""
    with servers("postgres", "kafka") as stack:
        folder = stack.home.root
        for name, text in (("bench_state_transform", TRANSFORM), ("bench_state_parse", PARSE)):
            (folder / f"{name}.py").write_text(text)
        sys.path.insert(0, str(folder))
        with session("bench", "local[2]", home=spark_home(), log=folder / "spark.log", conf={}) as spark:
            held = [Held(size, stack, spark) for size in sizes]
            for one in held:
                print(f"filling {one.keys} keys", flush=True)
                one.fill()
            chance = random.Random(1)  # noqa: S311 - no secret
            for number in range(rounds + 1):
                for one in held:
                    one.epoch(chance.sample(range(one.keys), TOUCHED))
                print(f"round {number} of {rounds}: " + ", ".join(f"{h.times['whole epoch'][-1]:.1f} s" for h in held))
    for one in held:
        for times in one.times.values():
            del times[0]  # nothing was warm
    return held


def rendered(held: Sequence[Held], rounds: int) -> str:
    """The table, as ratios to the smallest."""
    first = held[0]
    lines = [
        f"Each epoch touches {TOUCHED:,} keys; medians of {rounds} rounds.",
        measured_by("bench.state"),
        "",
        "| keys held | " + " | ".join(f"{step}, ratio to {first.keys:,} keys" for step in STEPS) + " | whole epoch |",
        "|---:|" + "---:|" * (len(STEPS) + 1),
    ]
    for one in held:
        ratios = [statistics.median(one.times[step]) / statistics.median(first.times[step]) for step in STEPS]
        whole = statistics.median(one.times["whole epoch"])
        lines.append(f"| {one.keys:,} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + f" | {whole:.2f} s |")
    return "\n".join(lines)


def section(held: list[int], rounds: int) -> str:
    """Measure, and render the table."""
    return rendered(measured(held, rounds), rounds)


if __name__ == "__main__":
    run("bench.state", __doc__, section, held=(list(HELD), "keys held"), rounds=(ROUNDS, "epochs of each size"))
