"""The flow of a pipeline without a transform: parse and cast in one pass inside the writer's Python worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochline.arrow.stage.flow import BatchFlow
from epochline.arrow.stage.summing import PartialSums
from epochline.config.registry import Registries
from epochline.declare.names import QUARANTINE
from epochline.declare.specs import PipelineSpec, TableSpec
from epochline.postgres.ledger.parts import message_of
from epochline.protocol.balances import PartitionCounts, add_up
from epochline.protocol.refused import NONE_REFUSED, Refused
from epochline.protocol.staging import StagedTable
from epochline.spark.functions import ShippedFunctions

MAX_KEYS = 100_000
"""Keys that a part sums before it writes them. It bounds memory; a repeated part flushes at the same rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePassFactory:
    """Makes `OnePassFlow` on executors."""

    pipeline: PipelineSpec
    tables: tuple[StagedTable, ...]
    functions: ShippedFunctions
    registries: Registries = field(default=Registries(), repr=False)
    refused: Refused = field(default_factory=dict)

    def make(self) -> OnePassFlow:
        """Make a flow for one Spark partition."""
        self.functions.install()
        self.registries.install()
        return OnePassFlow(self.pipeline, self.tables, self.refused)


class OnePassFlow:
    """Turns the records of one Spark partition into rows of every sink and the quarantine."""

    def __init__(
        self, pipeline: PipelineSpec, tables: tuple[StagedTable, ...], refused: Refused = NONE_REFUSED
    ) -> None:
        self._batches = BatchFlow(pipeline, tables, refused)
        self._sums = partial_sums(pipeline, tables)
        self._counts: dict[tuple[str, int], PartitionCounts] = {}

    def process(self, batch: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Parse one batch of records; rows of sinks with mode ``add`` are held back and summed."""
        processed = self._batches.process(batch)
        self._counts = add_up((self._counts, processed.counts))
        staged = {QUARANTINE: processed.quarantine}
        for sink, rows in processed.rows.items():
            summed = self._sums[sink].add(rows) if sink in self._sums else rows
            if summed is not None:
                staged[sink] = summed
        return staged

    def finish(self) -> Mapping[str, pa.RecordBatch]:
        """Return the remaining sums."""
        return flushed(self._sums)

    def message(self, sink: str) -> Mapping[str, Any]:
        """Return the counts per Kafka partition for the quarantine's part, nothing for the others."""
        return message_of(self._counts) if sink == QUARANTINE else {}


def partial_sums(pipeline: PipelineSpec, tables: tuple[StagedTable, ...]) -> dict[str, PartialSums]:
    """Make the sums for each sink of mode ``add`` among the tables."""
    added = {sink.table: sink for sink in pipeline.sinks if isinstance(sink, TableSpec) and sink.mode == "add"}
    return {table.sink: PartialSums(table, added[table.sink], MAX_KEYS) for table in tables if table.sink in added}


def flushed(sums: Mapping[str, PartialSums]) -> dict[str, pa.RecordBatch]:
    """Flush the sums and return their rows, by sink."""
    left = {sink: one.flush() for sink, one in sums.items()}
    return {sink: rows for sink, rows in left.items() if rows is not None}
