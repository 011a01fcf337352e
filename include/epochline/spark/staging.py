"""Stages rows by `mapInArrow`: a write per DataFrame, a transaction per Spark partition, all writes in one Spark job.

The tasks' messages and the ledger's parts decide which rows count. A driver may die before it writes the manifests:
the seal refuses an attempt without manifests and end mark (INV-9).
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.arrow.stage.encoding import CopyEncoder
from epochline.declare.columns import STAGED_LINEAGE, STAGED_PLACE
from epochline.declare.specs import ExternalSpec
from epochline.errors import BadRecordError, EpochFencedError, RecordsRefusedError
from epochline.failpoints import failpoint
from epochline.postgres.ledger.job_session import transaction
from epochline.postgres.ledger.parts import EXTERNAL, Part, insert_manifest
from epochline.protocol.refused import first_in_words, summary
from epochline.protocol.sink import PartWriter
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.sinks import external_sink
from epochline.spark.copying import CopyThread
from epochline.spark.functions import ShippedFunctions
from epochline.spark.refusals import RefusalSearch
from epochline.spark.source import RecordSource, map_batches, require_whole_input
from epochline.spark.transaction import PartTransaction, RowRefusedError

_MESSAGE = pa.schema([("message", pa.string())])


class PartRows:
    """Sorts the rows of one Spark partition by sink. Made on the executor, used by one task."""

    def process(self, batch: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Return rows to stage now, by sink, with exactly the staging columns."""
        raise NotImplementedError

    def finish(self) -> Mapping[str, pa.RecordBatch]:
        """Return rows that were held back until the end of the partition."""
        return {}

    def message(self, sink: str) -> Mapping[str, Any]:
        """Return the message of a sink's part, in addition to its number of rows."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PartMessage:
    """A task's message to the driver: how many rows it staged, by sink; none if staging refused records.

    A task that found refused records ends well, so that the other tasks can look for theirs.
    """

    write_id: str
    rows: Mapping[str, int]
    refused: int = 0
    """Number of refused records, which are in the ledger."""
    said: Sequence[str] = ()
    """The first of them in words, without values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingWriter:
    """Writes one DataFrame into staging tables. It is picklable, and ``repr`` hides the DSN.

    Its write id is made once: a plan that is made again gets another id, which the seal refuses.
    """

    ticket: StagingTicket
    dsn: str = field(repr=False)
    tables: tuple[StagedTable, ...]
    """The staging tables to fill; each gets a part and a manifest."""
    rows: Callable[[], PartRows]
    """Makes the rows of one Spark partition."""
    functions: ShippedFunctions | None = None
    external: tuple[ExternalSpec, ...] = ()
    """The declared external sinks; ``tables`` names those to fill."""
    search: timedelta | None = None
    """Time in which a task finds all records that staging refuses, for the next attempt to set aside. If None, the
    first one fails the job."""
    write_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`write` as a function for ``mapInArrow``; yields the message as its only row."""
        message = json.dumps(asdict(self.write(batches)))
        yield pa.RecordBatch.from_pylist([{"message": message}], schema=_MESSAGE)

    def write(self, batches: Iterable[pa.RecordBatch]) -> PartMessage:
        """Stage one Spark partition in one transaction; a repeat returns the first try's message.

        If staging refuses records, they are recorded, and nothing of the partition is kept.

        Raises:
            BadRecordError: staging refuses a row that belongs to no single record, or under the policy ``fail``.
            EpochFencedError: the attempt was fenced or sealed; nothing of the partition was kept.
            InputCutError: the input broke off before the last record; nothing of the partition was kept.
            NonDeterministicPartError: an earlier try of the partition committed other rows.
            LedgerUnavailableError: PostgreSQL does not answer; a repeat helps.
        """
        task = TaskContext.get()
        spark_partition: int = task.partitionId() if task is not None else 0
        part = PartTransaction(self.ticket, self.dsn, self.write_id, spark_partition)
        with closing(part), ExitStack() as opened:
            if self.functions is not None:
                self.functions.install()
            part_rows = self.rows()
            filled = {table.sink for table in self.tables}
            external: dict[str, PartWriter] = {}
            for sink in self.external:
                if sink.name in filled:
                    external[sink.name] = external_sink(sink).write(self.ticket.sink_attempt, spark_partition)
                    opened.callback(external[sink.name].close)
            search = None if self.search is None else RefusalSearch(part, self.search, spark_partition)
            copies = {table.sink: _copying(part, table, search) for table in self.tables if table.sink not in external}
            staged = self._stage(part_rows, copies, external, spark_partition, batches)
            refused = [] if search is None else search.keep()
            if refused:
                return PartMessage(self.write_id, {}, len(refused), first_in_words(refused))
            parts = part.finish(staged)
        return PartMessage(self.write_id, {sink: part.rows for sink, part in parts.items()})

    def _stage(
        self,
        part_rows: PartRows,
        copies: Mapping[str, Callable[[pa.RecordBatch], None]],
        external: Mapping[str, PartWriter],
        spark_partition: int,
        batches: Iterable[pa.RecordBatch],
    ) -> list[Part]:
        rows = {table.sink: 0 for table in self.tables}
        largest: dict[str, dict[str, Any]] = {}
        placed = {table.sink for table in self.tables if table.columns.keys() >= STAGED_PLACE.keys()}

        def copy(staged: Mapping[str, pa.RecordBatch]) -> None:
            sent = []
            for sink, batch in staged.items():
                if batch.num_rows:
                    if sink in placed:
                        _note_by_topic(largest.setdefault(sink, {}), batch)
                        batch = _placed(batch, spark_partition, rows[sink])
                    rows[sink] += batch.num_rows
                    if sink in external:
                        external[sink].write(batch)
                    else:
                        sent.append(partial(copies[sink], batch))
            thread.copy(sent)

        with CopyThread() as thread:
            for batch in batches:
                if batch.num_rows:
                    copy(part_rows.process(batch))
            require_whole_input(self.ticket)
            copy(part_rows.finish())
        # Rows of external sinks must be durable before the part that counts them.
        written: dict[str, dict[str, object]] = {sink: {EXTERNAL: notes} for sink, notes in largest.items()}
        written.update((sink, {EXTERNAL: dict(writer.finish())}) for sink, writer in external.items())
        return [
            Part(sink=sink, rows=count, message={"rows": count, **part_rows.message(sink), **written.get(sink, {})})
            for sink, count in rows.items()
        ]


def stage(writes: Sequence[tuple[DataFrame | RecordSource, StagingWriter]]) -> None:
    """Write frames or records of one attempt into staging, and their manifests, in one Spark job.

    Raises what `write_manifests` raises, and any error of `StagingWriter.write` in the text of Spark's exception.
    """
    frames = [
        # The writer travels in the pickled function, so that no option, plan or log shows the DSN.
        map_batches(frame, writer.run, from_arrow_schema(_MESSAGE))
        for frame, writer in writes
    ]
    failpoint("job.stage")
    rows = reduce(DataFrame.union, frames).collect()
    write_manifests([writer for _, writer in writes], [PartMessage(**json.loads(row.message)) for row in rows])


def write_manifests(writers: Sequence[StagingWriter], messages: Sequence[PartMessage]) -> None:
    """Write the manifests of all writes in one transaction, one per write and sink, from the messages alone.

    Raises:
        EpochFencedError: the attempt was fenced or sealed meanwhile.
        RecordsRefusedError: staging refused records, as a message says; the next attempt sets them aside.
    """
    ticket, dsn = writers[0].ticket, writers[0].dsn
    refused = sum(message.refused for message in messages)
    if refused:
        refusals = summary([refusal for message in messages for refusal in message.said], refused)
        raise RecordsRefusedError(
            f"{ticket}: refused by PostgreSQL's staging: {refusals}. The next attempt sets these records aside in the"
            " quarantine."
        )
    failpoint("manifest.begin")
    with transaction(dsn, ticket.application_name) as session, session.cursor() as cursor:
        for writer in writers:
            row_counts = [message.rows for message in messages if message.write_id == writer.write_id]
            rows = {table.sink: sum(counts[table.sink] for counts in row_counts) for table in writer.tables}
            if not insert_manifest(cursor, ticket.attempt_id, writer.write_id, len(row_counts), rows):
                raise EpochFencedError(f"{ticket}: was fenced or sealed before its manifest; nothing was written")
        failpoint("manifest.commit")
    failpoint("manifest.committed")


def _note_by_topic(largest: dict[str, Any], batch: pa.RecordBatch) -> None:
    """Note what the seal of a topic checks; by topic if each record names its own."""
    if "topic" not in batch.schema.names:
        _note_largest(largest, batch)
        return
    topics = batch.column("topic")
    for topic in pc.unique(topics).to_pylist():
        of_topic = largest.setdefault("topics", {}).setdefault(topic, {})
        _note_largest(of_topic, batch.filter(pc.equal(topics, topic)))


def _note_largest(largest: dict[str, Any], batch: pa.RecordBatch) -> None:
    """Note the highest partition and the largest key plus value, in bytes, of a topic's records for its seal."""
    sizes = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value")]
    of_batch = {"bytes": pc.max(pc.add(*sizes)).as_py(), "partition": pc.max(batch.column("partition")).as_py()}
    for name, value in of_batch.items():
        if value is not None:
            largest[name] = max(value, largest.get(name, value))


def _placed(batch: pa.RecordBatch, spark_partition: int, before: int) -> pa.RecordBatch:
    part = pa.repeat(pa.scalar(spark_partition, pa.int32()), batch.num_rows)
    number = pa.array(np.arange(before, before + batch.num_rows, dtype=np.int64))
    return batch.append_column("_part", part).append_column("_seq", number)


def _copying(
    part: PartTransaction, table: StagedTable, search: RefusalSearch | None
) -> Callable[[pa.RecordBatch], None]:
    encoder = CopyEncoder(table.columns)

    def copy(rows: pa.RecordBatch, *, apart: bool = False) -> None:
        data = b"".join((encoder.begin(), encoder.encode(rows), encoder.end()))
        part.copy(table, encoder.copy_options, data, apart=apart)

    def copy_all(rows: pa.RecordBatch) -> None:
        try:
            copy(rows)
        except RowRefusedError as refused:
            raise BadRecordError(str(refused)) from None

    if search is None or not STAGED_LINEAGE.keys() <= table.columns.keys():
        return copy_all
    return partial(search.copy, table.sink, copy)
