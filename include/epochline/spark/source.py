"""The records of an attempt: which task of a Spark job reads which of them, and how.

The tasks read Kafka themselves, by librdkafka, straight into Arrow batches. Spark's own Kafka source would hand every
record from its JVM to the task.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochline.arrow.cast.source import record_batch
from epochline.config.connections import Connection
from epochline.config.kafka import travelling_settings
from epochline.declare.specs import CustomSourceSpec
from epochline.protocol.offsets import OffsetRange, PlannedRange
from epochline.protocol.planning import shared
from epochline.sources.reading import SourceReader
from epochline.spark.functions import ShippedFunctions, ship
from epochline.spark.server import cores

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
TaskFunction = Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

BATCH_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Spark's setting for the records of an Arrow batch."""

PATIENCE_SECONDS = 120.0
"""How long a task waits for the next record."""

FEWEST_RECORDS = 1_000
"""A task reads at least as many offsets, unless the settings name a parallelism: each task costs a transaction."""


class TaskReader(Protocol):
    """Reads records in the tasks of a job. It is picklable, and travels in the job's function.

    So no option, plan or log shows what it needs to connect (K21).
    """

    @property
    def tasks(self) -> int:
        """How many tasks read."""
        ...

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """The records of a task, in batches of `epochline.arrow.cast.source.SOURCE_SCHEMA`; a repeat gives the same."""
        ...


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
            read = (batch for task in tasks for batch in reader.read(task))
            return function(tasks[0] if tasks else 0, read)

        return self.spark.range(0, reader.tasks, 1, max(1, reader.tasks)).mapInArrow(run, schema)


class ReadingSession(Protocol):
    """A source that a task has opened."""

    def read(self, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Mapping[str, Sequence[Any]]]:
        """The records of a range, column by column, as `epochline.arrow.cast.source.record_batch` takes them."""


class Reading(Protocol):
    """How a task opens the source. It is picklable."""

    def session(self) -> AbstractContextManager[ReadingSession]:
        """Open the source for many ranges, one after the other."""


@dataclass(frozen=True, slots=True)
class KafkaReading:
    """Kafka, read by librdkafka."""

    kafka: Mapping[str, str] = field(repr=False)
    patience: float
    records: int

    def session(self) -> AbstractContextManager[ReadingSession]:
        """A consumer of the task."""
        # Loads librdkafka, which tasks that read no records do not need.
        from epochline.kafka.records import RecordReader

        return RecordReader(self.kafka, self.patience, self.records).session()


@dataclass(frozen=True, slots=True)
class ShippedReading:
    """A source of the user's own, whose class travels with the job."""

    reader: SourceReader
    functions: ShippedFunctions

    def session(self) -> AbstractContextManager[ReadingSession]:
        """A source of the task."""
        self.functions.install()
        return self.reader.session()


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads planned ranges, task by task."""

    shares: Sequence[Sequence[PlannedRange]]
    reading: Reading
    prefix: str = ""
    """What the ledger puts before the topics of one of several sources."""

    @property
    def tasks(self) -> int:
        """How many tasks read."""
        return len(self.shares)

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """The records of a task's ranges, one range after the other.

        Raises:
            RecordsGoneError: the source no longer holds a range completely.
            SourceError: the source does not answer, or refuses; the class says whether a retry helps.
        """
        with self.reading.session() as session:
            for one in self.shares[task]:
                topic = one.tp.topic.removeprefix(self.prefix)
                for columns in session.read(topic, one.tp.partition, one.range):
                    yield record_batch(one.tp.topic, one.tp.partition, columns)


def read_ranges(
    spark: SparkSession,
    ranges: Sequence[PlannedRange],
    kafka: Mapping[str, str],
    parallelism: int | None = None,
    prefix: str = "",
) -> RecordSource:
    """The records in ranges of Kafka.

    Only committed records are read (S13). A partition that appeared since the plan is not read.

    Args:
        spark: the session.
        ranges: the epoch's ranges; none if it reads no records.
        kafka: properties of the connection, including the servers.
        parallelism: number of tasks that read; by default the number of cores, and fewer for few records.
        prefix: what the ledger puts before the topics of one of several sources.

    Raises:
        ConfigurationError: a file with a certificate or key cannot be read.
    """
    reading = KafkaReading(travelling_settings(kafka), PATIENCE_SECONDS, _records_per_batch(spark))
    return RecordSource(spark, RangeReader(_shares(spark, ranges, parallelism), reading, prefix))


def read_custom(
    spark: SparkSession,
    ranges: Sequence[PlannedRange],
    source: CustomSourceSpec,
    connection: Connection | None,
    parallelism: int | None = None,
    prefix: str = "",
) -> RecordSource:
    """The records in ranges of a source of the user's own; arguments and tasks as for `read_ranges`.

    The connection travels in the job's function, so no option, plan or log shows it (K21).

    Raises:
        DeclarationError: the class cannot be imported on the driver.
    """
    reading = ShippedReading(SourceReader(source, _records_per_batch(spark), connection), ship([source.source]))
    return RecordSource(spark, RangeReader(_shares(spark, ranges, parallelism), reading, prefix))


def _shares(
    spark: SparkSession, ranges: Sequence[PlannedRange], parallelism: int | None
) -> Sequence[Sequence[PlannedRange]]:
    if parallelism is None:
        enough = -(-sum(len(one.range) for one in ranges) // FEWEST_RECORDS)
        parallelism = min(cores(spark), enough)
    return shared(ranges, parallelism)


def _records_per_batch(spark: SparkSession) -> int:
    most = int(spark.conf.get(BATCH_RECORDS) or 0)
    # As Spark takes it: a number below 1 is no limit, and then the size is the only one.
    return most if most > 0 else sys.maxsize
