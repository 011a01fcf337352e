"""What made-up histories run on: a ledger that loses its connection, a topic as an audit reads it, jobs with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochline import Pipeline
from epochline.coordinator import Plan
from epochline.errors import LedgerUnavailableError
from epochline.local.stack import Stack
from epochline.ports import Ledger, Transaction
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.planning import HeldLog
from epochline.protocol.sink import Sink
from epochline.protocol.staging import StagingTicket
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run as run_job
from epochline.spark.source import RecordSource, TaskReader
from tests.in_memory.kafka import FakeKafka
from tests.integration.in_process import InProcess
from tests.integration.machine_kinds import Kind


class Lossy:
    """A ledger whose connection breaks once at a commit; the transaction happened, or it did not."""

    def __init__(self, ledger: Ledger, at: int, happened: bool) -> None:
        self._ledger, self._left, self._happened = ledger, at, happened
        self.broke = False

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._left -= 1
        breaks = self._left == 0
        self.broke |= breaks
        with self._ledger.transaction() as tx:
            yield tx
            if breaks and not self._happened:
                raise LedgerUnavailableError("the connection broke before the commit")
        if breaks:
            raise LedgerUnavailableError("the connection broke after the commit")

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        return self._ledger.sink(pipeline, name)


class HeldByKafka:
    """What the topic holds now, as an audit reads it."""

    def __init__(self, kafka: FakeKafka, kind: Kind, contents: Mapping[int, Sequence[str]]) -> None:
        self._kafka, self._kind, self._contents = kafka, kind, contents

    @contextmanager
    def session(self) -> Iterator[HeldByKafka]:
        yield self

    def held(self, topics: Sequence[str]) -> dict[tuple[str, int], HeldLog]:
        views = self._kafka.views
        return {
            place: HeldLog(identity=view.tp.topic_id, start=view.log_start, end=view.last_stable)
            for place, view in views.items()
            if place[0] in topics
        }

    def read(self, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Any]:
        values = [self._kind.written(one) for one in self._contents[partition][wanted.start : wanted.until]]
        nothing = [None] * len(values)
        yield {
            "offset": list(range(wanted.start, wanted.until)), "value": [value for _, value in values],
            "key": [key for key, _ in values], "headers": nothing, "timestamp": [0] * len(values), "timestamp_type": [0] * len(values),
        }  # fmt: skip


@dataclass(frozen=True)
class Servers:
    """What a machine runs on."""

    stack: Stack
    new_database: Callable[[], str]
    spark: Callable[[], SparkSession]
    """Starts it, or gives the one that runs."""


@pytest.fixture
def machine_servers(stack: Stack, new_database: Callable[[], str], request: pytest.FixtureRequest) -> Servers:
    return Servers(stack, new_database, lambda: request.getfixturevalue("spark"))


@dataclass
class WithSpark(InProcess):
    """A job of a pipeline with windows."""

    spark: Callable[[], SparkSession] = field(kw_only=True)

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        batches = list(self._records(planned, ticket))
        spark = self.spark()
        records = RecordSource(spark, TaskReader(1, lambda _: iter(batches)))
        run_job(
            spark, ticket.pipeline, ticket.epoch_id, ticket.attempt, JobCredentials(dsn=self.dsn, kafka={}),
            records=lambda *_: records,
        )  # fmt: skip
