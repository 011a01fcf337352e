"""Real Spark, PostgreSQL and Kafka for the Spark side; attempts are put into the ledger as `begin` would."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import sql
from pyspark.sql import SparkSession

from epochline.coordinator import LEASE, Plan, begin, commit, plan, publish, seal
from epochline.declare.pipeline import Pipeline
from epochline.kafka.source import KafkaOffsets
from epochline.local.spark_home import spark_home
from epochline.operations import ACTIONS, Done, Request, Subject
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Epoch, Run
from epochline.protocol.staging import StagingTicket
from epochline.protocol.staging_tables import staged_tables
from epochline.sinks import sinks_by
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run as run_job
from epochline_examples.access_log.maker import lines
from tests.integration import kafka_topics

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[SparkSession]:
    from epochline.local.jars import spark_jars

    paths = [str(ROOT / "include"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # workers: epochline alone, no spark_jobs
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(spark_home())
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("epochline tests")
        .config("spark.jars", ",".join(str(jar) for jar in spark_jars()))
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", event_log.as_uri())
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@dataclass(frozen=True)
class Database:
    """The database of one test session, with the questions that tests ask."""

    dsn: str

    def query(self, statement: str | sql.Composable, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with closing(psycopg2.connect(self.dsn)) as session, session, session.cursor() as cursor:
            cursor.execute(statement, tuple(values))
            return cursor.fetchall() if cursor.description else []

    def attempt(self, pipeline: Pipeline, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> StagingTicket:
        """Plan an epoch with these ranges and begin its first attempt."""
        with closing(psycopg2.connect(self.dsn)) as session, session, session.cursor() as cursor:
            return _begin(cursor, pipeline, ranges)

    def rows(self, ticket: StagingTicket, sink: str, columns: str = "*") -> list[tuple[object, ...]]:
        table = sql.Identifier("epochline_staging", ticket.table(sink).table)
        return self.query(sql.SQL("SELECT {} FROM {} ORDER BY 1, 2").format(sql.SQL(columns), table))

    def parts(self, ticket: StagingTicket) -> dict[tuple[str, int], tuple[int, dict[str, object]]]:
        found = self.query(
            "SELECT sink, spark_partition, rows, message FROM epochline.part WHERE attempt_id = %s",
            (ticket.attempt_id,),
        )
        return {(sink, at): (rows, message) for sink, at, rows, message in found}  # type: ignore[misc]

    def manifests(self, ticket: StagingTicket) -> dict[str, tuple[int, int]]:
        found = self.query(
            "SELECT sink, parts, rows FROM epochline.manifest WHERE attempt_id = %s", (ticket.attempt_id,)
        )
        return {sink: (parts, rows) for sink, parts, rows in found}  # type: ignore[misc]

    def ended(self, ticket: StagingTicket) -> bool:
        ((ended,),) = self.query(
            "SELECT job_ended_at IS NOT NULL FROM epochline.attempt WHERE attempt_id = %s", (ticket.attempt_id,)
        )
        return bool(ended)

    def fenced_writes(self, ticket: StagingTicket) -> list[tuple[object, ...]]:
        return self.query(
            "SELECT backend_pid, what FROM epochline.fenced_write WHERE attempt_id = %s", (ticket.attempt_id,)
        )

    def fence(self, ticket: StagingTicket) -> None:
        self.query("UPDATE epochline.attempt SET fenced_at = now() WHERE attempt_id = %s", (ticket.attempt_id,))


def _begin(
    cursor: psycopg2.extensions.cursor, pipeline: Pipeline, ranges: Mapping[tuple[str, int], tuple[int, int]]
) -> StagingTicket:
    name, declared = pipeline.name, pipeline.declaration_hash
    cursor.execute(
        "INSERT INTO epochline.declaration (hash, pipeline, body) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (declared, name, pipeline.stored()),
    )
    cursor.execute("INSERT INTO epochline.pipeline (pipeline) VALUES (%s) ON CONFLICT DO NOTHING", (name,))
    cursor.execute(
        "INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, attempt, dag_id, run_id, host,"
        " declaration_hash, lease_until) VALUES (%s, 1, 1, 'PLANNED', 1, 'd', 'r', 'h', %s, now() + '1 hour')",
        (name, declared),
    )
    for (topic, partition), (start, until) in ranges.items():
        cursor.execute(
            "INSERT INTO epochline.planned_range (pipeline, epoch_id, topic, topic_id, partition, start_offset,"
            " until_offset) VALUES (%s, 1, %s, %s, %s, %s, %s)",
            (name, topic, f"id of {topic}", partition, start, until),
        )
    targets = {sink.table: sink.columns or {} for sink in pipeline.sinks}
    for sink, columns in targets.items():
        cursor.execute(
            "INSERT INTO epochline.planned_target (pipeline, epoch_id, sink, columns) VALUES (%s, 1, %s, %s)",
            (name, sink, json.dumps(columns)),
        )
    cursor.execute(
        "INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host)"
        " VALUES (%s, 1, 1, 'd', 'r', 'h') RETURNING attempt_id, token::text",
        (name,),
    )
    attempt_id, token = cursor.fetchone()  # type: ignore[misc]
    tables = staged_tables(pipeline, targets, 1, 1)
    for table in tables:
        columns_sql = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind)) for column, kind in table.columns.items()
        )
        cursor.execute(
            sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier("epochline_staging", table.table), columns_sql)
        )
    return StagingTicket(
        pipeline=name, epoch_id=1, attempt=1, attempt_id=attempt_id,
        application_name=f"epochline:{attempt_id}:{token[:8]}", tables=tables,
    )  # fmt: skip


class Runs:
    """A pipeline with its tables, and what its runs do: plan, stage with Spark, seal, commit."""

    def __init__(self, spark: Any, database: Any, pipeline: Pipeline, bootstrap: str, *, create: bool = True) -> None:
        self.spark, self.database, self.bootstrap = spark, database, bootstrap
        self.pipeline, self.name = pipeline, pipeline.name
        self.ledger = PostgresLedger(database.dsn, sink_factory=sinks_by(lambda _: {"bootstrap.servers": bootstrap}))
        self.kafka = KafkaOffsets({"bootstrap.servers": bootstrap})
        if create:
            with self.ledger.transaction() as tx:
                tx.targets.create(self.pipeline)
        self._runs = 0

    def planned(self) -> tuple[Plan, Run]:
        self._runs += 1
        who = Run(dag_id=self.name, run_id=f"run-{self._runs}", host="here")
        return plan(self.ledger, self.kafka, self.pipeline, who), who

    def staged(self, planned: Plan, who: Run) -> StagingTicket:
        assert planned.epoch is not None
        ticket = begin(self.ledger, self.name, planned.epoch.epoch_id, who, lease=LEASE)
        assert ticket is not None
        credentials = JobCredentials(dsn=self.database.dsn, kafka={"bootstrap.servers": self.bootstrap})
        run_job(self.spark, self.name, planned.epoch.epoch_id, ticket.attempt, credentials)
        return ticket

    def sealed(self, planned: Plan, who: Run) -> Epoch:
        seal(self.ledger, self.kafka, self.staged(planned, who), who)
        assert planned.epoch is not None
        return planned.epoch

    def epoch(self) -> Epoch:
        return self.committed(*self.planned())

    def publish(self) -> list[tuple[int, str]]:
        return [(one.epoch_id, one.sink) for one in publish(self.ledger, self.pipeline)]

    def act(self, what: str, *, pipeline: Pipeline | None = None, **told: Any) -> Done:
        """Have an operator do something, to this pipeline or to another one."""
        declared = pipeline or self.pipeline
        subject = Subject(name=declared.name, ledger=self.ledger, declared=declared, source=self.kafka)
        action = ACTIONS[what]
        return action.act(subject, action.parse(told), Request(actor="ada", reason="to see"))  # type: ignore[attr-defined,no-any-return]

    def committed(self, planned: Plan, who: Run) -> Epoch:
        epoch = self.sealed(planned, who)
        return commit(self.ledger, self.kafka, self.name, epoch.epoch_id).epoch


@pytest.fixture(scope="session")
def real_lines() -> list[bytes]:
    """Of the log that ``EPOCHLINE_TEST_LOG`` names, else of one of our own with a real log's oddities."""
    named = os.environ.get("EPOCHLINE_TEST_LOG")
    return Path(named).read_bytes().splitlines() if named else list(lines(10_000, 7))


@pytest.fixture
def database(postgres_dsn: str) -> Database:
    return Database(postgres_dsn)


@pytest.fixture
def produce(kafka_bootstrap: str) -> Callable[[str, Mapping[int, Sequence[bytes | None]]], None]:
    """Append values to partitions."""

    def append(name: str, records: Mapping[int, Sequence[bytes | None]]) -> None:
        for partition, values in records.items():
            kafka_topics.produce(kafka_bootstrap, name, values, key=b"key", partition=partition, headers=[("h", b"1")])

    return append


@pytest.fixture
def topic(
    kafka_bootstrap: str, produce: Callable[[str, Mapping[int, Sequence[bytes | None]]], None]
) -> Callable[[Mapping[int, Sequence[bytes | None]]], str]:
    """Make a topic of its own and fill its partitions."""

    def make(records: Mapping[int, Sequence[bytes | None]]) -> str:
        name = f"spark-{uuid.uuid4().hex[:12]}"
        kafka_topics.make_topic(kafka_bootstrap, name, max(records, default=0) + 1)
        produce(name, records)
        return name

    return make


@pytest.fixture
def name() -> str:
    """A pipeline's name that no other test has."""
    return f"p-{uuid.uuid4().hex[:12]}"
