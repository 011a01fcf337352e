"""The Spark data source that stages rows: a writer per write, a transaction per Spark partition, a manifest at the end.

The writers' messages and the ledger's parts decide which rows count. A driver may die before it calls `commit` or
`abort`: the seal refuses an attempt without manifests and end mark (INV-9).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from epochline.arrow.stage.encoding import CopyEncoder
from epochline.declare.columns import STAGED_LINEAGE, STAGED_PLACE
from epochline.declare.specs import ExternalSpec
from epochline.errors import EpochFencedError
from epochline.failpoints import failpoint
from epochline.postgres.ledger.parts import EXTERNAL, Part, insert_manifest
from epochline.protocol.refused import Place
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.spark.connection import transaction
from epochline.spark.external import ExternalParts
from epochline.spark.flow import FlowFactory
from epochline.spark.transaction import PartTransaction
from epochline.spark.whole_input import require_whole_input

_PLACE = ("_topic", "_partition", "_offset")

SOURCE_NAME = "epochline_staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOrder:
    """All that one write needs on driver and executors. ``repr`` hides the DSN (K21)."""

    ticket: StagingTicket
    flow: FlowFactory
    dsn: str = field(repr=False)
    external: tuple[ExternalSpec, ...] = ()
    """The declared external sinks; the flow says which of them it fills."""
    sets_aside: bool = False
    """Whether a record that staging refuses goes to the quarantine in the next attempt."""


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):
    """A task's message to the driver: its parts in the ledger, by sink."""

    spark_partition: int
    parts: Mapping[str, Part]


class StagingWriter(DataSourceArrowWriter):
    """Writes one DataFrame into the staging tables of its order.

    The constructor makes the write id: a plan that is executed again gets another id, which the seal refuses.
    """

    def __init__(self, order: WriteOrder) -> None:
        self._order = order
        self._write_id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:  # type: ignore[override]
        """Stage one Spark partition in one transaction; a repeat returns the first try's message.

        Raises:
            EpochFencedError: the attempt was fenced or sealed; nothing of the partition was kept.
            InputCutError: the input broke off before the last record; nothing of the partition was kept.
            NonDeterministicPartError: an earlier try of the partition committed other rows.
            LedgerUnavailableError: PostgreSQL does not answer; a repeat helps.
        """
        task = TaskContext.get()
        spark_partition: int = task.partitionId() if task is not None else 0
        order = self._order
        part = PartTransaction(order.ticket, order.dsn, self._write_id, spark_partition)
        try:
            with ExternalParts(
                order.external, order.flow.tables, order.ticket.sink_attempt, spark_partition
            ) as external:
                parts = _stage(part, order, external, spark_partition, iterator)
                return PartMessage(spark_partition, part.finish(parts))
        finally:
            part.close()

    def commit(self, messages: Sequence[PartMessage | None]) -> None:  # type: ignore[override]
        """Write the manifests of this write, one per sink, from the messages alone.

        Raises:
            EpochFencedError: the attempt was fenced or sealed meanwhile.
        """
        given = [message for message in messages if message is not None]
        rows = {
            table.sink: sum(message.parts[table.sink].rows for message in given) for table in self._order.flow.tables
        }
        ticket = self._order.ticket
        failpoint("manifest.begin")
        with transaction(self._order.dsn, ticket.application_name) as session, session.cursor() as cursor:
            if not insert_manifest(cursor, ticket.attempt_id, self._write_id, len(given), rows):
                raise EpochFencedError(f"{ticket}: was fenced or sealed before its manifest; nothing was written")
            failpoint("manifest.commit")
        failpoint("manifest.committed")

    def abort(self, messages: Sequence[PartMessage | None]) -> None:  # type: ignore[override]
        """Do nothing: parts without a manifest do not count."""


def stage(frame: DataFrame, order: WriteOrder) -> None:
    """Write a DataFrame and its manifests into staging, as the order says."""
    source = _source(order)
    frame.sparkSession.dataSource.register(source)
    failpoint("job.stage")
    frame.write.format(SOURCE_NAME).mode("append").save()


def _source(order: WriteOrder) -> type[DataSource]:
    # A local class is pickled by value with the order in its closure, so that no option, plan or log shows the DSN.
    class StagingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return SOURCE_NAME

        def writer(self, schema: object, overwrite: bool) -> StagingWriter:
            return StagingWriter(order)

    return StagingSource


def _stage(
    part: PartTransaction,
    order: WriteOrder,
    external: ExternalParts,
    spark_partition: int,
    batches: Iterable[pa.RecordBatch],
) -> list[Part]:
    """Copy every batch, table by table, and return the parts."""
    flow = order.flow.make()
    external.open()
    copies = {
        table.sink: external.writing(table.sink) if table.sink in external else _copying(part, table, order.sets_aside)
        for table in order.flow.tables
    }
    rows = dict.fromkeys(copies, 0)
    largest: dict[str, dict[str, int]] = {}
    placed = {table.sink for table in order.flow.tables if table.columns.keys() >= STAGED_PLACE.keys()}

    def copy(staged: Mapping[str, pa.RecordBatch]) -> None:
        for sink, batch in staged.items():
            if batch.num_rows:
                if sink in placed:
                    _note_largest(largest.setdefault(sink, {}), batch)
                    batch = _placed(batch, spark_partition, rows[sink])
                copies[sink](batch)
                rows[sink] += batch.num_rows

    for batch in batches:
        if batch.num_rows:
            copy(flow.process(batch))
    require_whole_input(order.ticket)
    copy(flow.finish())
    # Rows of external sinks must be durable before the part that counts them.
    written: dict[str, Mapping[str, object]] = {sink: {EXTERNAL: most} for sink, most in largest.items()}
    written.update(external.finish())
    return [
        Part(sink=sink, rows=count, message={"rows": count} | dict(flow.message(sink)) | dict(written.get(sink, {})))
        for sink, count in rows.items()
    ]


def _note_largest(most: dict[str, int], batch: pa.RecordBatch) -> None:
    """Note the highest partition and the largest key plus value, in bytes, of a topic's records for its seal."""
    sizes = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value")]
    found = {"bytes": pc.max(pc.add(*sizes)).as_py(), "partition": pc.max(batch.column("partition")).as_py()}
    for name, value in found.items():
        if value is not None:
            most[name] = max(value, most.get(name, value))


def _placed(batch: pa.RecordBatch, spark_partition: int, before: int) -> pa.RecordBatch:
    """Add `STAGED_PLACE` to rows."""
    part = pa.repeat(pa.scalar(spark_partition, pa.int32()), batch.num_rows)
    number = pa.array(np.arange(before, before + batch.num_rows, dtype=np.int64))
    return batch.append_column("_part", part).append_column("_seq", number)


def _copying(part: PartTransaction, table: StagedTable, sets_aside: bool) -> Callable[[pa.RecordBatch], None]:
    encoder = CopyEncoder(table.columns)
    has_record = sets_aside and STAGED_LINEAGE.keys() <= table.columns.keys()

    def copy(batch: pa.RecordBatch) -> None:
        def place(row: int) -> Place | None:
            if not has_record:
                return None
            topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE)
            return topic, partition, offset

        data = b"".join((encoder.begin(), encoder.encode(batch), encoder.end()))
        part.copy(table, encoder.copy_options, data, place)

    return copy
