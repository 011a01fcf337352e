"""One task of an epoch in this process, as Airflow's operators run it, with the rows written by the product's writer.

Spark's place is taken by a Kafka consumer: it costs seconds per epoch, and a soak wants many epochs. Everything else is
the product: use cases, ledger, staging writer, parse and encoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from epochline.arrow.source import SOURCE_SCHEMA
from epochline.coordinator import PlanOutcome, abort, begin, commit, plan, seal
from epochline.epoch import Interval, Run
from epochline.errors import SourceUnavailableError
from epochline.kafka.source import KafkaOffsets
from epochline.layout import StagingTicket
from epochline.ledger.parts import end_job
from epochline.ledger.postgres import PostgresLedger
from epochline.pipeline import Pipeline
from epochline.spark.connection import transaction
from epochline.spark.functions import ship_functions
from epochline.spark.one_pass import OnePass
from epochline.spark.plan import read_plan
from epochline.spark.staging import StagingWriter, WriteOrder

# Short, so that runs take over from dead ones while the soak lasts.
LEASE = timedelta(seconds=6)
_READ_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where the soak's PostgreSQL and Kafka are."""

    dsn: str
    bootstrap: str


class Tasks:
    """The tasks of one run of one pipeline."""

    def __init__(self, pipeline: Pipeline, run_id: str, servers: Servers, enter: Callable[[str], None]) -> None:
        self._pipeline, self._servers, self._enter = pipeline, servers, enter
        self._run = Run(dag_id=pipeline.name, run_id=run_id, host="soak")
        self._ledger = PostgresLedger(servers.dsn, lock_timeout=5)
        self._source = KafkaOffsets({"bootstrap.servers": servers.bootstrap})

    def plan(self, interval: Interval | None) -> int | None:
        """The id of the run's epoch, None where there is nothing to read."""
        self._enter("plan")
        planned = plan(
            self._ledger,
            self._source,
            self._pipeline,
            self._run,
            lease=LEASE,
            **({"interval": interval} if interval else {}),
        )
        if planned.epoch is None or planned.outcome is PlanOutcome.NOTHING_TO_READ:
            return None
        return planned.epoch.epoch_id

    def pre_commit(self, epoch_id: int) -> None:
        """Stage and seal, unless that is done."""
        self._enter("begin")
        ticket = begin(self._ledger, self._pipeline.name, epoch_id, self._run, lease=LEASE)
        if ticket is None:
            return
        self._enter("stage")
        self._stage(ticket)
        self._enter("seal")
        gaps = self._source.look(self._pipeline.source).invisible_allowed
        seal(self._ledger, ticket, self._run, invisible_allowed=gaps)

    def commit(self, epoch_id: int) -> None:
        """Commit, or show the receipt."""
        self._enter("commit")
        commit(self._ledger, self._source, self._pipeline.name, epoch_id)

    def abort(self, epoch_id: int) -> None:
        """The teardown."""
        self._enter("abort")
        abort(self._ledger, self._pipeline.name, epoch_id, self._run, reason="the soak's run failed")

    def _stage(self, ticket: StagingTicket) -> None:
        work = read_plan(self._servers.dsn, ticket.pipeline, ticket.epoch_id, ticket.attempt)
        functions = ship_functions(work.pipeline)
        flow = OnePass(pipeline=work.pipeline, tables=work.ticket.tables, functions=functions)
        writer = StagingWriter(WriteOrder(ticket=work.ticket, flow=flow, dsn=self._servers.dsn))
        ranges = {(one.tp.topic, one.tp.partition): (one.range.start, one.range.until) for one in work.ranges}
        writer.commit([writer.write(_read(self._servers.bootstrap, ranges))])
        with transaction(self._servers.dsn, ticket.application_name) as session, session.cursor() as cursor:
            end_job(cursor, ticket.attempt_id)


def _read(bootstrap: str, ranges: dict[tuple[str, int], tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False, group_id=None
    )
    try:
        for (topic, partition), (start, until) in ranges.items():
            key = KafkaPartition(topic, partition)
            consumer.assign([key])
            consumer.seek(key, start)
            position, deadline = start, time.monotonic() + _READ_SECONDS
            while position < until:
                records = [r for r in consumer.poll(500).get(key, []) if r.offset < until]
                position = consumer.position(key)
                if records:
                    yield _batch(records)
                if time.monotonic() > deadline:
                    raise SourceUnavailableError(f"{topic}-{partition}: nothing came for {_READ_SECONDS} s")
    finally:
        consumer.close()


def _batch(records: list[object]) -> pa.RecordBatch:
    columns = {
        "topic": [r.topic for r in records],  # type: ignore[attr-defined]
        "partition": [r.partition for r in records],  # type: ignore[attr-defined]
        "offset": [r.offset for r in records],  # type: ignore[attr-defined]
        "timestamp": [r.timestamp * 1000 for r in records],  # type: ignore[attr-defined]
        "timestamp_type": [0] * len(records),
        "key": [r.key for r in records],  # type: ignore[attr-defined]
        "value": [r.value for r in records],  # type: ignore[attr-defined]
        "headers": [None] * len(records),
    }
    return pa.RecordBatch.from_pydict(columns, schema=SOURCE_SCHEMA)
