"""The records of an attempt: which task of a Spark job reads which of them, and how.

The tasks read Kafka themselves, by librdkafka, straight into Arrow batches. Spark's own Kafka source would hand every
record from its JVM to the task.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochline.arrow.cast.batches import SOURCE_SCHEMA, record_batch, stored_record
from epochline.config.connections import Connection
from epochline.config.kafka import travelling_settings
from epochline.declare.specs import CustomSourceSpec
from epochline.errors import InputCutError
from epochline.failpoints import failpoint
from epochline.postgres.ledger.job_session import transaction
from epochline.postgres.queries.named import statement
from epochline.protocol.offsets import OffsetRange, PlannedRange, belongs_to
from epochline.protocol.planning import shared
from epochline.protocol.staging import StagingTicket
from epochline.sources.reading import SourceReader
from epochline.spark.functions import ShippedFunctions, of_this_version, ship
from epochline.spark.session import BATCH_RECORDS, cores

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
TaskFunction = Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

PATIENCE_SECONDS = 120.0
"""How long a task waits for the next record."""

FEWEST_RECORDS = 1_000
"""A task reads at least as many offsets, unless the settings name a parallelism: each task costs a transaction."""

_FETCHED = 100
"""Claimed records per fetch from the server: few, because a record may have many megabytes."""

_BATCH_RECORDS, _BATCH_BYTES = 10_000, 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads records in the tasks of a job.

    It is picklable, and travels in the job's function. So no option, plan or log shows what it needs to connect.
    """

    tasks: int
    """How many tasks read."""
    read: Callable[[int], Iterator[pa.RecordBatch]] = field(repr=False)
    """The records of a task, in batches of `epochline.arrow.cast.batches.SOURCE_SCHEMA`; a repeat gives the same."""


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Records that the tasks of a job read. It has the method of a DataFrame by which frames become other ones."""

    spark: SparkSession
    reader: TaskReader

    def mapInArrow(self, function: BatchFunction, schema: str | StructType) -> DataFrame:  # noqa: N802 - as Spark's
        """A DataFrame of what a function makes of the records, read in the same Python worker."""
        return self.map_tasks(lambda _, batches: function(batches), schema)

    def map_tasks(self, function: TaskFunction, schema: str | StructType) -> DataFrame:
        """As `mapInArrow`, for a function that also gets the number of the task that reads.

        The number stays the same if Spark computes a block again in another stage, where its partition has another one.
        """
        reader = self.reader

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            tasks = [int(task) for batch in numbers for task in batch.column("id").to_numpy()]
            return function(tasks[0] if tasks else 0, (batch for task in tasks for batch in reader.read(task)))

        return self.spark.range(0, reader.tasks, 1, max(1, reader.tasks)).mapInArrow(of_this_version(run), schema)


def map_batches(frame: DataFrame | RecordSource, function: BatchFunction, schema: str | StructType) -> DataFrame:
    """A DataFrame of what a function makes of the batches of a frame, whatever the names of its columns are.

    PySpark's own `mapInArrow` takes a dot in a name for the way to a field, and refuses a backtick.
    """
    if isinstance(frame, RecordSource):
        return frame.mapInArrow(function, schema)
    names = frame.columns

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*map(str, range(len(names)))).mapInArrow(of_this_version(run), schema)


class ReadingSession(Protocol):
    """A source that a task has opened."""

    def read(self, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Mapping[str, Sequence[Any]]]:
        """The records of a range, column by column, as `epochline.arrow.cast.batches.record_batch` takes them."""


def _read_share(
    shares: Sequence[Sequence[PlannedRange]],
    opened: Callable[[], AbstractContextManager[ReadingSession]],
    prefix: str,
    task: int,
) -> Iterator[pa.RecordBatch]:
    with opened() as session:
        for planned in shares[task]:
            topic = planned.tp.topic.removeprefix(prefix)
            for columns in session.read(topic, planned.tp.partition, planned.range):
                yield record_batch(planned.tp.topic, planned.tp.partition, columns)


def read_ranges(
    spark: SparkSession,
    ranges: Sequence[PlannedRange],
    kafka: Mapping[str, str],
    parallelism: int | None = None,
    prefix: str = "",
) -> RecordSource:
    """The committed records in ranges of Kafka. A partition that appeared since the plan is not read.

    ``parallelism`` is the number of tasks that read; by default the number of cores, and fewer for few records.
    ``prefix`` is what the ledger puts before the topics of one of several sources. The tasks raise the errors of
    `epochline.kafka.records.ReadSession.read`.

    Raises `ConfigurationError` if a file with a certificate or key cannot be read.
    """
    opened = partial(_opened_kafka, travelling_settings(kafka), PATIENCE_SECONDS, _records_per_batch(spark))
    return _source(spark, ranges, opened, parallelism, prefix)


def read_custom(
    spark: SparkSession,
    ranges: Sequence[PlannedRange],
    source: CustomSourceSpec,
    connection: Connection | None,
    parallelism: int | None = None,
    prefix: str = "",
) -> RecordSource:
    """The records in ranges of a custom source, as `read_ranges` reads those of Kafka.

    Raises `DeclarationError` if the class cannot be imported on the driver.
    """
    reader = SourceReader(source, _records_per_batch(spark), connection)
    return _source(spark, ranges, partial(_opened_custom, reader, ship([source.source])), parallelism, prefix)


def _opened_kafka(kafka: Mapping[str, str], patience: float, records: int) -> AbstractContextManager[ReadingSession]:
    # Loads librdkafka, which tasks that read no records do not need.
    from epochline.kafka.records import RecordReader

    return RecordReader(kafka, patience, records).session()


def _opened_custom(reader: SourceReader, functions: ShippedFunctions) -> AbstractContextManager[ReadingSession]:
    functions.install()
    return reader.session()


def _source(
    spark: SparkSession,
    ranges: Sequence[PlannedRange],
    opened: Callable[[], AbstractContextManager[ReadingSession]],
    parallelism: int | None,
    prefix: str,
) -> RecordSource:
    """The records of ranges; ``opened`` opens the source in a task, and is picklable."""
    if parallelism is None:
        enough = -(-sum(len(planned.range) for planned in ranges) // FEWEST_RECORDS)
        parallelism = min(cores(spark), enough)
    shares = shared(ranges, parallelism)
    return RecordSource(spark, TaskReader(len(shares), partial(_read_share, shares, opened, prefix)))


def _records_per_batch(spark: SparkSession) -> int:
    limit = int(spark.conf.get(BATCH_RECORDS) or 0)
    # As Spark takes it: a number below 1 is no limit, and then the size is the only one.
    return limit if limit > 0 else sys.maxsize


def claim_reader(ticket: StagingTicket, dsn: str, source: str = "") -> TaskReader:
    """Reads the quarantined records that the attempt's epoch claimed, of one source if there are several.

    Each Kafka partition has a task, which reads in offset order. Claims are written with the epoch and never change, so
    that a repeated task reads the same records. The quarantine keeps no timestamp type, so ``timestamp_type`` is NULL.
    A NUL in a header's name is a symbol there.
    """
    failpoint("claims.connect")
    with transaction(dsn, ticket.application_name) as session, session.cursor() as cursor:
        failpoint("claims.partitions")
        cursor.execute(statement("claimed_partitions"), {"pipeline": ticket.pipeline, "epoch_id": ticket.epoch_id})
        partitions = [
            {"topic_id": topic_id, "partition": partition}
            for topic, topic_id, partition in cursor.fetchall()
            if belongs_to(source, topic)
        ]
    return TaskReader(len(partitions), partial(_read_claims, ticket, dsn, partitions))


def _read_claims(
    ticket: StagingTicket, dsn: str, partitions: Sequence[Mapping[str, Any]], task: int
) -> Iterator[pa.RecordBatch]:
    claimed = {"pipeline": ticket.pipeline, "epoch_id": ticket.epoch_id, **partitions[task]}
    with transaction(dsn, ticket.application_name) as session, session.cursor("claims") as cursor:
        cursor.itersize = _FETCHED
        failpoint("claims.records")
        cursor.execute(statement("claimed_records"), claimed)
        rows: list[dict[str, Any]] = []
        held = 0
        for row in cursor:
            rows.append(stored_record(*row))
            held += len(rows[-1]["value"] or b"") + len(rows[-1]["key"] or b"")
            if len(rows) >= _BATCH_RECORDS or held >= _BATCH_BYTES:
                yield pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)
                rows, held = [], 0
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)


def require_whole_input(attempt: object) -> None:
    """Check that a task's input did not break off, after its last batch and before any of it is committed.

    A stream of Arrow that breaks off between two batches looks like a shorter stream. Its part would be committed
    incomplete, and Spark's next try of the task would be refused for its other rows. Spark writes an end mark after the
    stream, which only its worker reads. Outside of such a worker nothing is checked.

    Raises `InputCutError` if the executor died, gave up the task, or failed to read its input.
    """
    stream = _stream_of_worker()
    # Blocks until the executor has written more or is gone, and consumes nothing.
    if stream is not None and not stream.peek(1):
        raise InputCutError(
            f"{attempt}: the executor broke off before the last record of a Spark partition; nothing of the partition"
            " was kept. Spark tries the task again, or reports why it could not read its input."
        )


def _stream_of_worker() -> Any | None:
    """Find the input stream of the worker's main function in its stack frame, because Spark does not pass it on."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and {"infile", "outfile"} <= set(frame.f_locals):
            return frame.f_locals["infile"]
        frame = frame.f_back
    return None
