"""The records of an attempt: which task of a Spark job reads which of them, and how.

The tasks read Kafka themselves, by librdkafka, straight into Arrow batches. Spark's own Kafka source would hand every
record from its JVM to the task.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochline.arrow.cast.source import record_batch
from epochline.config.kafka import travelling_settings
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.shares import shared
from epochline.spark.server import cores

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

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
        reader = self.reader

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for task in batch.column("id").to_numpy():
                    yield from reader.read(int(task))

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return function(read(numbers))

        return self.spark.range(0, reader.tasks, 1, max(1, reader.tasks)).mapInArrow(run, schema)


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads planned ranges, task by task."""

    shares: Sequence[Sequence[PlannedRange]]
    kafka: Mapping[str, str] = field(repr=False)
    patience: float
    records: int
    """A batch ends after so many records, or after 16 MiB."""

    @property
    def tasks(self) -> int:
        """How many tasks read."""
        return len(self.shares)

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """The records of a task's ranges, one range after the other.

        Raises:
            DataLossError: Kafka no longer holds a range completely.
            SourceError: Kafka does not answer, or refuses; the class says whether a retry helps.
        """
        # Loads librdkafka, which tasks that read no records do not need.
        from epochline.kafka.records import RecordReader

        with RecordReader(self.kafka, self.patience, self.records).session() as session:
            for one in self.shares[task]:
                for columns in session.read(one.tp.topic, one.tp.partition, one.range):
                    yield record_batch(one.tp.topic, one.tp.partition, columns)


def read_ranges(
    spark: SparkSession, ranges: Sequence[PlannedRange], kafka: Mapping[str, str], parallelism: int | None = None
) -> RecordSource:
    """The records in the ranges.

    Only committed records are read (S13). A partition that appeared since the plan is not read.

    Args:
        spark: the session.
        ranges: the epoch's ranges; none if it reads no records.
        kafka: properties of the connection, including the servers.
        parallelism: number of tasks that read; by default the number of cores, and fewer for few records.

    Raises:
        ConfigurationError: a file with a certificate or key cannot be read.
    """
    if parallelism is None:
        enough = -(-sum(len(one.range) for one in ranges) // FEWEST_RECORDS)
        parallelism = min(cores(spark), enough)
    shares, most = shared(ranges, parallelism), int(spark.conf.get(BATCH_RECORDS) or 0)
    # As Spark takes it: a number below 1 is no limit, and then the size is the only one.
    records = most if most > 0 else sys.maxsize
    return RecordSource(spark, RangeReader(shares, travelling_settings(kafka), PATIENCE_SECONDS, records))
