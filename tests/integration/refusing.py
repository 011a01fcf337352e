"""A pipeline into tables that somebody else made, which refuse some of its records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.coordinator import Plan
from epochline.errors import SealRefusedError
from epochline.operations import Request
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import PlannedRange
from tests.databases import query
from tests.driver import epoch_of
from tests.integration.bench import IN_PUBLIC, Row
from tests.integration.in_process import over_records
from tests.reading import source_batch

ORDER = Request(actor="ada", reason="a test says so")
LINEAGE = "_topic text, _partition int, _offset bigint, _row int, _epoch bigint"
GONE = "gone"


def gone(**key: Any) -> Row:
    """A tombstone."""
    return {GONE: key}


@dataclass
class Target:
    """A pipeline into tables that somebody else made, over records that are there already."""

    dsn: str
    ddl: str
    values: list[Row]
    sinks: Sequence[PostgresTable] = (PostgresTable(table="t"),)
    policy: str = "quarantine"
    record: Mapping[str, str] = field(default_factory=lambda: {"k": "text", "v": "integer"})
    parse: str | None = None
    """A function; values are JSON if not given."""

    def __post_init__(self) -> None:
        query(self.dsn, self.ddl, options=IN_PUBLIC)
        self.values, record = list(self.values), dict(self.record)
        parse: Any = {"parse": self.parse, "record": record} if self.parse else {"parse": Json(columns=record)}
        pipeline = Pipeline(
            name="orders", source=KafkaSource(topics="orders"), sinks=list(self.sinks), bad_records=self.policy, **parse
        )
        self.job = over_records(self.dsn, pipeline, self.values, self._read)

    @staticmethod
    def _read(one: PlannedRange, values: Sequence[Row]) -> pa.RecordBatch:
        offsets = range(one.range.start, one.range.until)
        rows = [values[at] for at in offsets]
        keys = [json.dumps(row.get(GONE)).encode() for row in rows]
        contents = [None if GONE in row else json.dumps(row).encode() for row in rows]
        return source_batch(one.tp, offsets, contents, key=keys)

    def add(self, *values: Row) -> None:
        """More records."""
        self.values += values
        self.job.source.produce("orders", 0, len(values))

    def refused(self) -> str:
        """A whole run that ends with a refusal: plan, stage, seal, teardown; what the refusal said."""
        planned, run = self.job.planned()
        with pytest.raises(SealRefusedError) as raised:
            self.job.staged_and_sealed(planned, run)
        self.job.abort(epoch_of(planned).epoch_id, run, reason="teardown")
        return str(raised.value)

    def sealed_after_attempts(self, most: int = 3) -> list[str]:
        """One run's tries until the seal takes the epoch, and its commit; what each of the others said."""
        return self.job.attempts(*self.job.planned(), most=most)

    def quarantined(self) -> list[tuple[Any, ...]]:
        return self.job.sql('SELECT "offset", reason FROM epochline.quarantine ORDER BY "offset"')

    def rows(self, table: str = "t", columns: str = "k, v") -> list[tuple[Any, ...]]:
        return self.job.sql(f"SELECT {columns} FROM {table} ORDER BY {columns}")


def requeued(it: Target) -> list[str]:
    """Everything in the quarantine by one operator's run, attempt after attempt."""
    return it.job.attempts(*requeue_planned(it))


def requeue_planned(it: Target) -> tuple[Plan, Run]:
    run = it.job.run_of(f"requeue {len(it.job.sql('SELECT 1 FROM epochline.epoch'))}")
    return it.job.order("requeue", ORDER, run, everything=True), run
