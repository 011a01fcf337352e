"""The rows that a job's tasks make: of records for staging, of records for a transform or windows, of their results.

A pipeline without a transform turns records into rows of staging tables at once. Otherwise the records are parsed once
into a persisted frame. *Parsed* rows of the frame hold a record's columns and its lineage, *refused* rows a record for
the quarantine, and one *counts* row per parse task its counts per Kafka partition.

A parse task may run again, because a block of the frame was lost or because Spark speculates. Therefore every task
inserts its counts and source digest as a part named ``PARSE`` before Spark stores its block. The key (attempt, parse
id, number of the task) admits the first task; a later one fails if its counts or digest differ. Accumulators would
count repeated tasks twice, so the first write reads the counts from the frame itself.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.arrow.cast.types import record_schema
from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.stage.rows import TOMBSTONE, cast_rows
from epochline.arrow.stage.summing import PartialSums
from epochline.arrow.stage.topic_rows import TopicRows
from epochline.config.registry import Registries
from epochline.declare.columns import QUARANTINE_COLUMNS, STAGED_LINEAGE
from epochline.declare.names import QUARANTINE
from epochline.declare.specs import OutboxSpec, PipelineSpec, SinkSpec, TableSpec
from epochline.postgres.ledger.parts import PARSE, Part, counts_of, message_of
from epochline.protocol.balances import PartitionCounts, add_up
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.spark.functions import NO_REGISTRIES, ShippedFunctions, ship_functions
from epochline.spark.source import RecordSource, require_whole_input
from epochline.spark.staging import PartRows, StagingWriter
from epochline.spark.transaction import PartTransaction

KIND, REFUSED, COUNTS = "_kind", "_refused", "_counts"
IS_PARSED, IS_REFUSED, IS_COUNTS = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseTask:
    """Parses the records of one Spark partition. It runs on executors, and may be repeated."""

    pipeline: PipelineSpec
    ticket: StagingTicket
    functions: ShippedFunctions
    dsn: str = field(repr=False)
    parse_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def frame(self, records: RecordSource) -> DataFrame:
        """Parse records into the frame; the caller persists it."""
        return records.map_tasks(self.run, from_arrow_schema(_frame_schema(self.pipeline)))

    def run(self, number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the frame for one Spark partition, and record the counts in the ledger.

        The number of the task is the same each time it runs. Raises the errors of `require_whole_input` and of
        `PartTransaction.finish`.
        """
        self.functions.install()
        rows = BatchRows(self.pipeline, self.ticket.tables, self.ticket.refused)
        schema = _frame_schema(self.pipeline)
        counts: dict[tuple[str, int], PartitionCounts] = {}
        for batch in batches:
            parsed, refused, seen = rows.parse_only(batch)
            counts = add_up((counts, seen))
            yield _as_parsed(schema, parsed)
            if refused.num_rows:
                yield _widened(schema, refused.num_rows, IS_REFUSED, {REFUSED: _as_struct(schema, refused)})
        require_whole_input(self.ticket)
        message = message_of(counts)
        with closing(PartTransaction(self.ticket, self.dsn, self.parse_id, number)) as part:
            part.finish([Part(sink=PARSE, rows=0, message=message)])
        yield _widened(schema, 1, IS_COUNTS, {COUNTS: pa.array([json.dumps(message)], pa.string())})


def _frame_schema(pipeline: PipelineSpec) -> pa.Schema:
    record = spark_schema({**pipeline.parsed_columns, **STAGED_LINEAGE, TOMBSTONE: "boolean"})
    refused = pa.struct(list(record_schema(QUARANTINE_COLUMNS)))
    return pa.schema([*record, (KIND, pa.int16()), (REFUSED, refused), (COUNTS, pa.string())])


def spark_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema in which Spark carries columns: a time of day is text, because Spark refuses Arrow's times."""
    return pa.schema(
        [field.with_type(pa.string()) if pa.types.is_time(field.type) else field for field in record_schema(columns)]
    )


def frame_of(spark: SparkSession, pipeline: PipelineSpec, parsed: Sequence[pa.RecordBatch]) -> DataFrame:
    """The frame of parsed rows that a preview or an audit has in memory."""
    schema = _frame_schema(pipeline)
    return spark.createDataFrame(table_of([_as_parsed(schema, batch) for batch in parsed], schema))


def table_of(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """A table of batches. Of none it has an empty one, because Spark cannot take the columns of a table without any."""
    return pa.Table.from_batches(batches, schema) if batches else schema.empty_table()


def counts_in(frame: DataFrame) -> Mapping[tuple[str, int], PartitionCounts]:
    """Add up the counts of all parse tasks."""
    rows = frame.where(F.col(KIND) == IS_COUNTS).select(COUNTS).collect()
    return add_up(counts_of(json.loads(row[COUNTS])) for row in rows)


def parsed_rows(frame: DataFrame, pipeline: PipelineSpec) -> DataFrame:
    """The transform's input: the record's columns, its lineage, and whether it is a tombstone."""
    names = [*pipeline.parsed_columns, *STAGED_LINEAGE, TOMBSTONE]
    return frame.where(F.col(KIND) == IS_PARSED).select(*(F.col(quoted(name)) for name in names))


def refused_and_counted(frame: DataFrame) -> DataFrame:
    """The rows of the first write: refused records and counts."""
    return frame.where(F.col(KIND) != IS_PARSED).select(KIND, REFUSED, COUNTS)


class QuarantineRows(PartRows):
    """Takes the refused records into the quarantine, whose parts carry the source counts."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], PartitionCounts] = {}

    def process(self, batch: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Add up the counts of one batch and return its refused records."""
        kinds = batch.column(KIND)
        messages: list[Any] = batch.filter(pc.equal(kinds, IS_COUNTS)).column(COUNTS).to_pylist()
        for message in messages:
            self._counts = add_up((self._counts, counts_of(json.loads(message))))
        refused = batch.filter(pc.equal(kinds, IS_REFUSED)).column(REFUSED)
        schema = record_schema(QUARANTINE_COLUMNS)
        columns = [pc.struct_field(refused, name).cast(schema.field(name).type) for name in schema.names]
        return {QUARANTINE: pa.RecordBatch.from_arrays(columns, schema=schema)}

    def message(self, sink: str) -> Mapping[str, Any]:
        """Return the counts per Kafka partition."""
        return message_of(self._counts)


def quoted(name: str) -> str:
    """Quote any column name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _as_parsed(schema: pa.Schema, parsed: pa.RecordBatch) -> pa.RecordBatch:
    return _widened(schema, parsed.num_rows, IS_PARSED, dict(zip(parsed.schema.names, parsed.columns, strict=True)))


def _widened(schema: pa.Schema, rows: int, kind: int, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    columns = {KIND: pa.repeat(pa.scalar(kind, pa.int16()), rows), **columns}
    arrays = [
        _carried(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _carried(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_time(column.type):
        return column.cast(kind)
    # Always with six digits, so that equal times are equal texts.
    ticks = column.cast(pa.int64()).to_pylist()
    return pa.array([None if tick is None else _time_text(tick) for tick in ticks], pa.string())


def _time_text(tick: int) -> str:
    minutes, micros = divmod(tick, 60_000_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{micros // 1_000_000:02d}.{micros % 1_000_000:06d}"


def _as_struct(schema: pa.Schema, refused: pa.RecordBatch) -> pa.StructArray:
    fields = list(schema.field(REFUSED).type)
    arrays = [refused.column(field.name).cast(field.type) for field in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields)


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
