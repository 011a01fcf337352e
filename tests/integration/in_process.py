"""Epochs of a pipeline by the product's own plan, writer, seal and commit, in this process: a job without Spark's JVM."""

import itertools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochline import CustomSource, Pipeline
from epochline.arrow.cast.batches import record_batch
from epochline.config.connections import Connection
from epochline.coordinator import CommitResult, Plan, PlanOutcome
from epochline.errors import RecordsRefusedError
from epochline.kafka.records import RecordReader
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import EpochKind, Run
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.staging import StagingTicket
from epochline.sinks import sinks_by
from epochline.sources.positions import SourcePositions
from epochline.sources.reading import SourceReader
from epochline.spark.job import writer_of
from epochline.spark.source import claim_reader
from tests.databases import query
from tests.driver import Driver, epoch_of
from tests.in_memory.kafka import FakeKafka
from tests.job import write_as_spark
from tests.reading import range_batch

Read = Callable[[PlannedRange], Iterable[pa.RecordBatch]]


@dataclass
class InProcess(Driver):
    """One pipeline on a real PostgreSQL; where its records come from is said by ``source`` and ``read``."""

    dsn: str
    pipeline: Pipeline
    source: Any
    read: Read
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Settings of the brokers that topics are published to."""
    run_prefix: str = "run"
    _runs: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.log_in(self.dsn)

    def log_in(self, dsn: str) -> None:
        """Go on with the login of another URL."""
        self.dsn, self.ledger = dsn, PostgresLedger(dsn, sink_factory=sinks_by(lambda _: self.kafka))

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return query(self.dsn, statement, *values)

    def planned(self, **options: Any) -> tuple[Plan, Run]:
        planned, run = self.asked_to_plan(**options)
        assert planned.epoch is not None
        return planned, run

    def asked_to_plan(self, **options: Any) -> tuple[Plan, Run]:
        run = self.run_of(f"{self.run_prefix}-{next(self._runs)}")
        return self.plan(run, **options), run

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        """What the Spark job does, with one Spark partition for all records."""
        plan = read_plan(self.dsn, ticket.pipeline, ticket.epoch_id, ticket.attempt)
        # A consumer that a failed write leaves open would not let its process end.
        with closing(self._records(planned, plan.ticket)) as batches:
            write_as_spark(writer_of(plan, self.dsn), [batches])

    def _records(self, planned: Plan, ticket: StagingTicket) -> Generator[pa.RecordBatch]:
        for one in planned.ranges:
            yield from self.read(one)
        if epoch_of(planned).kind is EpochKind.REQUEUE:
            claims = claim_reader(ticket, self.dsn)
            for task in range(claims.tasks):
                yield from claims.read(task)

    def attempts(self, planned: Plan, run: Run, most: int = 3) -> list[str]:
        """Make attempts until the seal takes one, and commit it; what each of the others said."""
        said: list[str] = []
        for _ in range(most):
            try:
                self.staged_and_sealed(planned, run)
                break
            except RecordsRefusedError as error:
                said.append(str(error))
        self.commit(planned)
        return said

    def epoch(self, **options: Any) -> CommitResult:
        """Plan, stage, seal and commit one epoch; of one that an earlier try sealed or committed, what is left."""
        planned, run = self.planned(**options)
        if planned.outcome not in (PlanOutcome.PRE_COMMITTED, PlanOutcome.ALREADY_COMMITTED):
            self.staged_and_sealed(planned, run)
        return self.commit(planned)

    def finish(self, planned: Plan, run: Run) -> CommitResult:
        """One attempt at a planned epoch, and its commit."""
        self.staged_and_sealed(planned, run)
        return self.commit(planned)

    def staged(self, **options: Any) -> tuple[Plan, Run, StagingTicket]:
        """Plan an epoch and stage its first attempt."""
        planned, run = self.planned(**options)
        ticket = self.attempt(planned, run)
        self.stage(planned, ticket)
        return planned, run, ticket

    def sealed(self, **options: Any) -> tuple[Plan, Run, StagingTicket]:
        """Plan, stage and seal an epoch."""
        planned, run, ticket = self.staged(**options)
        self.seal(ticket, run)
        return planned, run, ticket

    def staged_and_sealed(self, planned: Plan, run: Run) -> StagingTicket:
        """One attempt, as the task `pre_commit` makes it."""
        ticket = self.attempt(planned, run)
        self.stage(planned, ticket)
        self.seal(ticket, run)
        return ticket


def from_kafka(bootstrap: str) -> Read:
    """Records of a real Kafka."""

    def read(one: PlannedRange) -> Iterable[pa.RecordBatch]:
        with RecordReader({"bootstrap.servers": bootstrap}).session() as session:
            for columns in session.read(one.tp.topic, one.tp.partition, one.range):
                yield record_batch(one.tp.topic, one.tp.partition, columns)

    return read


def from_source(declared: CustomSource, connection: Connection | None = None) -> Read:
    """Records of a source of a user's own."""

    def read(one: PlannedRange) -> Iterable[pa.RecordBatch]:
        with SourceReader(declared.spec, 7, connection).session() as session:
            for columns in session.read(one.tp.topic, one.tp.partition, one.range):
                yield record_batch(one.tp.topic, one.tp.partition, columns)

    return read


def over_records(
    dsn: str,
    pipeline: Pipeline,
    records: Sequence[Any],
    batch: Callable[[PlannedRange, Sequence[Any]], pa.RecordBatch] = range_batch,
    *,
    create: bool = True,
) -> InProcess:
    """A pipeline over the records of one partition of a Kafka in memory, to which a test may append."""
    kafka = FakeKafka()
    kafka.produce(pipeline.source.topics[0], 0, len(records))
    made = InProcess(dsn, pipeline, kafka, lambda planned: [batch(planned, records)])
    return made.create() if create else made


def counter(numbers: int, **declared: Any) -> CustomSource:
    """The library's counter of so many numbers, whose clock stands still."""
    options = {"began": "2026-01-01T00:00:00Z", "numbers": numbers}
    return CustomSource(source="epochline.sources.counter:Counter", options=options, label="numbers", **declared)


def growing(table: str, *, label: str | None = None, **options: Any) -> CustomSource:
    """The library's growing table with the key `id`, by the connection `shop`."""
    return CustomSource(
        source="epochline.sources.growing_table:GrowingTable", connection="shop", label=label or table,
        positions="sparse", options={"table": table, "key": "id", **options},
    )  # fmt: skip


def over_source(dsn: str, pipeline: Pipeline, connection: Connection | None = None) -> InProcess:
    """A pipeline over its own source, which is a `CustomSource`."""
    source = pipeline.source
    assert isinstance(source, CustomSource)
    return InProcess(dsn, pipeline, SourcePositions(source.spec, connection), from_source(source, connection)).create()
