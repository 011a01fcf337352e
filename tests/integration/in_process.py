"""Epochs of a pipeline by the product's own plan, writer, seal and commit, in this process: a job without Spark's JVM."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa

from epochline import CustomSource, Pipeline, coordinator
from epochline.arrow.cast.source import record_batch
from epochline.config.connections import Connection
from epochline.coordinator import LEASE, CommitResult, Plan, PlanOutcome, PlanPreview, PlanRequest, Published
from epochline.kafka.records import RecordReader
from epochline.operations import ACTIONS, DirectAction, Done, Request, Subject
from epochline.postgres.ledger.parts import end_job
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Counts, Epoch, EpochKind, Run
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.staging import StagingTicket
from epochline.sinks import sinks_by
from epochline.sources.reading import SourceReader
from epochline.spark.attempt_plan import read_plan
from epochline.spark.connection import transaction
from epochline.spark.part_rows import one_pass_order
from epochline.spark.source import claim_reader
from epochline.spark.staging import StagingWriter, write_manifests
from tests.databases import query

Read = Callable[[PlannedRange], Iterable[pa.RecordBatch]]


def epoch_of(planned: Plan) -> Epoch:
    assert planned.epoch is not None
    return planned.epoch


@dataclass
class InProcess:
    """One pipeline on a real PostgreSQL; where its records come from is said by ``source`` and ``read``."""

    lease: ClassVar[timedelta] = LEASE
    """Of attempts."""

    dsn: str
    pipeline: Pipeline
    source: Any
    read: Read
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Settings of the brokers that topics are published to."""
    run_prefix: str = "run"
    _runs: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def ledger(self) -> PostgresLedger:
        return PostgresLedger(self.dsn, sink_factory=sinks_by(lambda _: self.kafka))

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return query(self.dsn, statement, *values)

    def create(self) -> None:
        with self.ledger.transaction() as tx:
            tx.targets.create(self.pipeline)

    def planned(self, **options: Any) -> tuple[Plan, Run]:
        planned, run = self.asked_to_plan(**options)
        assert planned.epoch is not None
        return planned, run

    def asked_to_plan(self, **options: Any) -> tuple[Plan, Run]:
        run = Run(dag_id=self.pipeline.name, run_id=f"{self.run_prefix}-{next(self._runs)}", host="here")
        return coordinator.plan(self.ledger, self.source, self.pipeline, run, PlanRequest(**options)), run

    def previewed(self, **options: Any) -> PlanPreview:
        return coordinator.preview(self.ledger, self.source, self.pipeline, PlanRequest(**options))

    def begun(self, planned: Plan, run: Run) -> StagingTicket:
        epoch_id = epoch_of(planned).epoch_id
        ticket = coordinator.begin(self.ledger, self.pipeline.name, epoch_id, run, lease=self.lease)
        assert ticket is not None
        return ticket

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        """What the Spark job does, with one Spark partition for all records."""
        ticket = read_plan(self.dsn, ticket.pipeline, ticket.epoch_id, ticket.attempt).ticket
        spec = self.pipeline.spec
        search = self.pipeline.commit_statement_timeout if spec.bad_records == "quarantine" else None
        writer = StagingWriter(one_pass_order(spec, ticket, self.dsn, search=search))
        before = dict(sys.modules)
        try:
            # A consumer that a failed write leaves open would not let its process end.
            with closing(self._records(planned, ticket)) as batches:
                message = writer.write(batches)
        finally:
            # The writer puts shipped functions in the place of their modules; here that place is the test's own.
            sys.modules.update({name: before[name] for name in before if sys.modules.get(name) is not before[name]})
        write_manifests([writer], [message])
        with transaction(self.dsn, ticket.application_name) as session, session.cursor() as cursor:
            assert end_job(cursor, ticket.attempt_id)

    def _records(self, planned: Plan, ticket: StagingTicket) -> Generator[pa.RecordBatch]:
        for one in planned.ranges:
            yield from self.read(one)
        if epoch_of(planned).kind is EpochKind.REQUEUE:
            claims = claim_reader(ticket, self.dsn)
            for task in range(claims.tasks):
                yield from claims.read(task)

    def epoch(self, **options: Any) -> CommitResult:
        """Plan, stage, seal and commit one epoch; of one that an earlier try sealed or committed, what is left."""
        planned, run = self.planned(**options)
        if planned.outcome not in (PlanOutcome.PRE_COMMITTED, PlanOutcome.ALREADY_COMMITTED):
            self.staged_and_sealed(planned, run)
        return self.commit(planned)

    def staged(self, **options: Any) -> tuple[Plan, Run, StagingTicket]:
        """Plan an epoch and stage its first attempt."""
        planned, run = self.planned(**options)
        ticket = self.begun(planned, run)
        self.stage(planned, ticket)
        return planned, run, ticket

    def sealed(self, **options: Any) -> tuple[Plan, Run, StagingTicket]:
        """Plan, stage and seal an epoch."""
        planned, run, ticket = self.staged(**options)
        self.seal(ticket, run)
        return planned, run, ticket

    def staged_and_sealed(self, planned: Plan, run: Run) -> StagingTicket:
        """One attempt, as the task `pre_commit` makes it."""
        ticket = self.begun(planned, run)
        self.stage(planned, ticket)
        self.seal(ticket, run)
        return ticket

    def seal(self, ticket: StagingTicket, run: Run) -> Counts:
        return coordinator.seal(self.ledger, self.source, ticket, run)

    def commit(self, planned: Plan) -> CommitResult:
        return coordinator.commit(self.ledger, self.source, self.pipeline.name, epoch_of(planned).epoch_id)

    def publish(self) -> Sequence[Published]:
        return coordinator.publish(self.ledger, self.pipeline)

    @property
    def subject(self) -> Subject:
        """The pipeline, as operations take it."""
        return Subject(name=self.pipeline.name, ledger=self.ledger, declared=self.pipeline, source=self.source)

    def act(self, name: str, request: Request, /, **asked: Any) -> Done:
        """Do an operation that is no epoch."""
        action = ACTIONS[name]
        assert isinstance(action, DirectAction)
        return action.act(self.subject, action.parse(asked), request)


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
