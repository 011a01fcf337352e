"""Real Spark, PostgreSQL and Kafka for the Spark side."""

import json
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from psycopg2 import sql
from pyspark.sql import SparkSession

from epochline import KafkaSource, Pipeline
from epochline.coordinator import Plan
from epochline.kafka.source import KafkaOffsets
from epochline.operations import Done, Request
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Epoch, Run
from epochline.protocol.staging import StagingTicket
from epochline.sinks import sinks_by
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run as run_job
from tests.databases import query
from tests.driver import Driver, epoch_of
from tests.in_memory.kafka import FakeKafka
from tests.integration import kafka_topics
from tests.integration.in_process import InProcess
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
Records = Mapping[int, Sequence[bytes | None]]
"""By partition, values of records."""
Ranges = Mapping[tuple[str, int], tuple[int, int]]
"""By topic and partition, first offset and end."""


@dataclass(frozen=True)
class Database:
    """The database of one test, with the questions that tests ask."""

    dsn: str

    def query(self, statement: str | sql.Composable, *values: object) -> list[tuple[Any, ...]]:
        return query(self.dsn, statement, *values)

    def attempt(self, pipeline: Pipeline, ranges: Ranges) -> StagingTicket:
        """Plan an epoch with these ranges, whatever Kafka holds, and begin its first attempt."""
        kafka = FakeKafka()
        for (topic, partition), (start, until) in ranges.items():
            kafka.produce(topic, partition, until)
            kafka.change(topic, partition, log_start=start)
        line = InProcess(self.dsn, pipeline, kafka, lambda _: ()).create()
        return line.attempt(*line.planned())

    def rows(self, ticket: StagingTicket, sink: str, columns: str = "*") -> list[tuple[Any, ...]]:
        table = sql.Identifier("epochline_staging", ticket.table(sink).table)
        return self.query(sql.SQL("SELECT {} FROM {} ORDER BY 1, 2").format(sql.SQL(columns), table))

    def ids(self, ticket: StagingTicket, sink: str = "public.ids", column: str = "id") -> list[Any]:
        return [one for one, _ in self.rows(ticket, sink, f"{column}, _offset")]

    def parts(self, ticket: StagingTicket) -> dict[tuple[str, int], tuple[int, dict[str, Any]]]:
        found = "SELECT sink, spark_partition, rows, message FROM epochline.part WHERE attempt_id = %s"
        return {(sink, at): (rows, message) for sink, at, rows, message in self.query(found, ticket.attempt_id)}

    def manifests(self, ticket: StagingTicket) -> dict[str, tuple[int, int]]:
        found = "SELECT sink, parts, rows FROM epochline.manifest WHERE attempt_id = %s"
        return {sink: (parts, rows) for sink, parts, rows in self.query(found, ticket.attempt_id)}

    def ended(self, ticket: StagingTicket) -> bool:
        return bool(self._of_attempt(ticket, "job_ended_at IS NOT NULL"))

    def error(self, ticket: StagingTicket) -> str:
        return str(self._of_attempt(ticket, "error"))

    def _of_attempt(self, ticket: StagingTicket, column: str) -> object:
        return self.query(f"SELECT {column} FROM epochline.attempt WHERE attempt_id = %s", ticket.attempt_id)[0][0]

    def fenced_writes(self, ticket: StagingTicket) -> list[str]:
        found = "SELECT what FROM epochline.fenced_write WHERE attempt_id = %s"
        return [what for (what,) in self.query(found, ticket.attempt_id)]

    def fence(self, ticket: StagingTicket) -> None:
        self.query("UPDATE epochline.attempt SET fenced_at = now() WHERE attempt_id = %s", ticket.attempt_id)

    def wait_for_session(self, ticket: StagingTicket, condition: str) -> None:
        found = f"SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND {condition}"
        wait_until(lambda: self.query(found, ticket.application_name))


@dataclass(frozen=True)
class Servers:
    """Spark, a database and a broker, and a pipeline's name that no other test has."""

    spark: SparkSession
    database: Database
    bootstrap: str
    name: str

    @property
    def credentials(self) -> JobCredentials:
        return JobCredentials(dsn=self.database.dsn, kafka={"bootstrap.servers": self.bootstrap})

    def produce(self, topic: str, records: Records) -> None:
        for partition, values in records.items():
            kafka_topics.produce(self.bootstrap, topic, values, key=b"key", partition=partition, headers=[("h", b"1")])

    def topic(self, records: Records) -> str:
        name = f"spark-{uuid.uuid4().hex[:12]}"
        kafka_topics.make_topic(self.bootstrap, name, max(records, default=0) + 1)
        self.produce(name, records)
        return name

    def pipeline(self, *topics: str, **declared: Any) -> Pipeline:
        """A pipeline that has the name and reads these topics."""
        return Pipeline(name=self.name, source=KafkaSource(topics=topics), **declared)

    def unchecked(self, topic: str, *, parse: Any, sinks: Sequence[Any], **declared: Any) -> Pipeline:
        """The same with a function that only the driver can import, as no declaration that is checked may have."""
        body = {
            "name": self.name, "source": KafkaSource(topics=topic).model_dump(), "parse": parse.model_dump(),
            "sinks": [sink.model_dump(mode="json") for sink in sinks], **declared,
        }  # fmt: skip
        return Pipeline.from_stored(json.dumps(body))

    def run_job(self, credentials: JobCredentials | None = None, *, epoch_id: int = 1, attempt: int = 1) -> None:
        """The job of an attempt of the pipeline that has the name."""
        run_job(self.spark, self.name, epoch_id, attempt, credentials or self.credentials)


class Runs(Driver):
    """A pipeline with its tables, and what its runs do: plan, stage with Spark, seal, commit."""

    def __init__(self, servers: Servers, pipeline: Pipeline, *, create: bool = True) -> None:
        self.servers, self.database = servers, servers.database
        self.pipeline = pipeline
        settings = {"bootstrap.servers": servers.bootstrap}
        self.ledger = PostgresLedger(self.database.dsn, sink_factory=sinks_by(lambda _: settings))
        self.source = KafkaOffsets(settings)
        self.credentials = servers.credentials
        if create:
            self.create()
        self._runs = 0

    def planned(self) -> tuple[Plan, Run]:
        self._runs += 1
        who = self.run_of(f"run-{self._runs}")
        return self.plan(who), who

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        run_job(self.servers.spark, self.name, ticket.epoch_id, ticket.attempt, self.credentials)

    def staged(self, planned: Plan, who: Run) -> StagingTicket:
        ticket = self.attempt(planned, who)
        self.stage(planned, ticket)
        return ticket

    def sealed(self, planned: Plan, who: Run) -> Epoch:
        self.seal(self.staged(planned, who), who)
        return epoch_of(planned)

    def crashed(self, planned: Plan, who: Run) -> None:
        self.abort(epoch_of(planned).epoch_id, who, reason="a crash", by_operator=True)

    def crash(self) -> Run:
        """A run that has sealed an epoch of which nothing is left."""
        planned, who = self.planned()
        self.sealed(planned, who)
        self.crashed(planned, who)
        return who

    def resume(self) -> None:
        """After a failed epoch that the declared settings do not tolerate."""
        with self.ledger.transaction() as tx:
            tx.operators.resume(self.name)

    def epoch(self, records: Records | None = None) -> Epoch:
        """Commit what there is to read, and these records."""
        if records is not None:
            self.produce(records)
        return self.committed(*self.planned())

    def operate(self, what: str, **parameters: Any) -> Done:
        return self.act(what, Request(actor="ada", reason="to see"), **parameters)

    def produce(self, records: Records) -> None:
        self.servers.produce(self.pipeline.source.topics[0], records)

    def committed(self, planned: Plan, who: Run) -> Epoch:
        self.sealed(planned, who)
        return self.commit(planned).epoch


Importable = Callable[[Callable[[Any], object]], str]
"""Makes a function of a test importable for the driver alone; gives what a declaration names it by."""


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Importable:
    def made(function: Callable[[Any], object]) -> str:
        module = ModuleType("pipelines_of_tests")
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return f"{module.__name__}:{function.__name__}"

    return made


@pytest.fixture
def database(postgres_dsn: str) -> Database:
    return Database(postgres_dsn)


@pytest.fixture
def name() -> str:
    return f"p-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def servers(spark: SparkSession, database: Database, kafka_bootstrap: str, name: str) -> Servers:
    return Servers(spark, database, kafka_bootstrap, name)
