"""Turns a Spark partition's records, or a transform's rows, into rows of staging tables."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.stage.rows import cast_rows
from epochline.arrow.stage.summing import PartialSums
from epochline.arrow.stage.topic_rows import TopicRows
from epochline.config.registry import Registries
from epochline.declare.names import QUARANTINE
from epochline.declare.specs import OutboxSpec, PipelineSpec, SinkSpec, TableSpec
from epochline.postgres.ledger.parts import message_of
from epochline.protocol.balances import PartitionCounts, add_up
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.spark.functions import NO_REGISTRIES, ShippedFunctions, ship_functions
from epochline.spark.staging import PartRows, StagingWriter

MAX_KEYS = 100_000
"""Keys that a part sums before it writes them. It bounds memory; a repeated part flushes at the same rows."""

DIGEST = "_epochline_digest"
"""Column with a hash of each row of the transform. A part carries their sum, which reveals different tries."""


class _Summed(PartRows):
    """Holds back rows of sinks with mode ``add``, and sums them."""

    def __init__(self, pipeline: PipelineSpec, tables: tuple[StagedTable, ...]) -> None:
        added = {sink.table: sink for sink in pipeline.sinks if isinstance(sink, TableSpec) and sink.mode == "add"}
        self._sums = {
            table.sink: PartialSums(table, added[table.sink], MAX_KEYS) for table in tables if table.sink in added
        }

    def _summed(self, rows: Mapping[str, pa.RecordBatch]) -> dict[str, pa.RecordBatch]:
        sums = {sink: self._sums[sink].add(batch) if sink in self._sums else batch for sink, batch in rows.items()}
        return {sink: batch for sink, batch in sums.items() if batch is not None}

    def finish(self) -> Mapping[str, pa.RecordBatch]:
        left = {sink: sums.flush() for sink, sums in self._sums.items()}
        return {sink: rows for sink, rows in left.items() if rows is not None}


class OnePassRows(_Summed):
    """Turns records into rows of every sink and the quarantine, for a pipeline without a transform."""

    def __init__(self, pipeline: PipelineSpec, ticket: StagingTicket) -> None:
        super().__init__(pipeline, ticket.written)
        self._batches = BatchRows(pipeline, ticket.written, ticket.refused)
        self._counts: dict[tuple[str, int], PartitionCounts] = {}

    def process(self, batch: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Parse one batch of records."""
        processed = self._batches.process(batch)
        self._counts = add_up((self._counts, processed.counts))
        return {QUARANTINE: processed.quarantine, **self._summed(processed.rows)}

    def message(self, sink: str) -> Mapping[str, Any]:
        """Return the counts per Kafka partition for the quarantine's part, nothing for the others."""
        return message_of(self._counts) if sink == QUARANTINE else {}


class SinkRows(_Summed):
    """Turns a transform's rows into rows of one sink."""

    def __init__(self, pipeline: PipelineSpec, sink: SinkSpec, table: StagedTable) -> None:
        super().__init__(pipeline, (table,))
        self._sink = sink.table
        self._cast: Callable[[pa.RecordBatch], pa.RecordBatch] = (
            TopicRows(sink, table).cast if isinstance(sink, OutboxSpec) else partial(cast_rows, table, sink)
        )
        self._rows = self._digest = 0

    def process(self, batch: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Cast one batch to the staging columns; a value that does not fit fails the attempt."""
        hashes = batch.column(batch.schema.get_field_index(DIGEST)).to_numpy().view(np.uint64)
        self._digest = (self._digest + int(hashes.sum(dtype=np.uint64))) % 2**64
        self._rows += batch.num_rows
        return self._summed({self._sink: self._cast(batch.drop_columns([DIGEST]))})

    def message(self, sink: str) -> Mapping[str, Any]:
        """Return the number and digest of the transform's rows. Sums are no proof: a shuffle may reorder the rows."""
        return {"rows": self._rows, "digest": str(self._digest)}


def one_pass_writer(
    pipeline: PipelineSpec,
    ticket: StagingTicket,
    dsn: str,
    registries: Registries = NO_REGISTRIES,
    search: timedelta | None = None,
) -> StagingWriter:
    """The writer of a pipeline without a transform: all tables at once. Raises what `ship_functions` raises."""
    return StagingWriter(
        ticket=ticket, dsn=dsn, tables=ticket.written, rows=partial(OnePassRows, pipeline, ticket),
        functions=ship_functions(pipeline, registries), external=pipeline.external, search=search,
    )  # fmt: skip


def sink_writer(
    pipeline: PipelineSpec, sink: SinkSpec, ticket: StagingTicket, dsn: str, functions: ShippedFunctions
) -> StagingWriter:
    """The writer of one sink's rows that a transform or windows made."""
    table = ticket.table(sink.table)
    return StagingWriter(
        ticket=ticket, dsn=dsn, tables=(table,), rows=partial(SinkRows, pipeline, sink, table), functions=functions,
        external=pipeline.external,
    )  # fmt: skip
