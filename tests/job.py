"""What the Spark job writes, by the product's writer, in this process: no JVM."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pyarrow as pa
from pyspark import TaskContext

from epochline import Pipeline
from epochline.postgres.ledger.parts import end_job
from epochline.protocol.staging import StagingTicket
from epochline.spark.connection import transaction
from epochline.spark.functions import ship_functions
from epochline.spark.one_pass import OnePassFactory
from epochline.spark.staging import StagingWriter, WriteOrder, write_manifests


def staging_writer(
    pipeline: Pipeline, ticket: StagingTicket, dsn: str, search: timedelta | None = None
) -> StagingWriter:
    """The writer that Spark would pickle and send to its executors.

    Args:
        pipeline: what the rows are made of.
        ticket: of the attempt.
        dsn: of the database, as executors see it.
        search: time to look for records that staging refuses, for the next attempt to set aside.
    """
    spec = pipeline.spec
    functions = ship_functions(spec)
    flow = OnePassFactory(pipeline=spec, tables=ticket.written, functions=functions, refused=ticket.refused)
    return StagingWriter(WriteOrder(ticket=ticket, flow=flow, dsn=dsn, external=spec.external, search=search))


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
    ticket, dsn = writer.order.ticket, writer.order.dsn
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
