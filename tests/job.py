"""What the Spark job writes, by the product's writer, in this process: no JVM."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark import TaskContext

from epochline.postgres.ledger.job_session import transaction
from epochline.postgres.ledger.parts import end_job
from epochline.spark.staging import StagingWriter, write_manifests


def write_parts(writer: StagingWriter, parts: Iterable[Iterator[pa.RecordBatch]]) -> None:
    """Write each part as a Spark partition, then the manifests."""
    before = dict(sys.modules)
    messages = []
    try:
        for number, batches in enumerate(parts):
            with spark_partition(number):
                messages.append(writer.write(batches))
    finally:
        # The writer puts shipped functions in the place of their modules; here that place is the test's own.
        sys.modules.update({name: before[name] for name in before if sys.modules.get(name) is not before[name]})
    write_manifests([writer], messages)


def write_as_spark(writer: StagingWriter, parts: Iterable[Iterator[pa.RecordBatch]]) -> None:
    """What the Spark job does: the parts, the manifests, the end mark."""
    write_parts(writer, parts)
    ticket, dsn = writer.ticket, writer.dsn
    with transaction(dsn, ticket.application_name) as session, session.cursor() as cursor:
        assert end_job(cursor, ticket.attempt_id)


@contextmanager
def spark_partition(number: int) -> Iterator[None]:
    """Set the Spark partition that this process writes, as Spark does in its Python worker.

    The number is taken back at the end of the block: a process that has one is a worker, and may not start Spark.
    """
    TaskContext._getOrCreate()._partitionId = number
    try:
        yield
    finally:
        TaskContext._taskContext = None
