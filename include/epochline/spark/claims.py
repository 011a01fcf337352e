"""Reads the quarantined records that a requeue epoch claimed, in the columns of Kafka's source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.arrow.cast.source import TRAVELLING_SCHEMA, stored_record
from epochline.failpoints import failpoint
from epochline.postgres.queries.named import statement
from epochline.protocol.staging import StagingTicket
from epochline.spark.connection import transaction

_FETCHED = 100
"""Records per fetch from the server: few, because a record may have many megabytes."""

_BATCH_RECORDS, _BATCH_BYTES = 10_000, 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClaimedPartition:
    """The claimed records of one Kafka partition."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class ClaimReader:
    """Reads the claimed records of an epoch, each Kafka partition in offset order.

    Claims are written with the epoch and never change, so that a repeated task reads the same records.
    """

    ticket: StagingTicket
    dsn: str = field(repr=False)

    def _epoch(self) -> dict[str, Any]:
        return {"pipeline": self.ticket.pipeline, "epoch_id": self.ticket.epoch_id}

    def partitions(self) -> Sequence[ClaimedPartition]:
        """The Kafka partitions with a claimed record."""
        failpoint("claims.connect")
        with transaction(self.dsn, self.ticket.application_name) as session, session.cursor() as cursor:
            failpoint("claims.partitions")
            cursor.execute(statement("claimed_partitions"), self._epoch())
            return [ClaimedPartition(topic_id, partition) for _, topic_id, partition in cursor.fetchall()]

    def read(self, partition: ClaimedPartition) -> Iterator[pa.RecordBatch]:
        """The records of one partition, in batches of `TRAVELLING_SCHEMA`."""
        with transaction(self.dsn, self.ticket.application_name) as session, session.cursor("claims") as cursor:
            cursor.itersize = _FETCHED
            failpoint("claims.records")
            cursor.execute(
                statement("claimed_records"),
                self._epoch() | {"topic_id": partition.topic_id, "partition": partition.partition},
            )
            rows: list[dict[str, Any]] = []
            held = 0
            for row in cursor:
                rows.append(stored_record(*row))
                held += len(rows[-1]["value"] or b"") + len(rows[-1]["key"] or b"")
                if len(rows) >= _BATCH_RECORDS or held >= _BATCH_BYTES:
                    yield pa.RecordBatch.from_pylist(rows, schema=TRAVELLING_SCHEMA)
                    rows, held = [], 0
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=TRAVELLING_SCHEMA)


def read_claims(spark: SparkSession, ticket: StagingTicket, dsn: str) -> DataFrame:
    """A DataFrame of the records that the attempt's epoch claimed, in the columns of `read_ranges`.

    Each Kafka partition with a claim is a Spark partition. The quarantine keeps no timestamp type, so
    ``timestamp_type`` is NULL. A NUL in a header's name is a symbol there.
    """
    # The reader travels in the pickled function, so that no option, plan or log shows the DSN (K21).
    reader = ClaimReader(ticket, dsn)
    partitions = reader.partitions()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column("id").to_numpy():
                yield from reader.read(partitions[at])

    numbers = spark.range(0, len(partitions), 1, max(1, len(partitions)))
    return numbers.mapInArrow(read, from_arrow_schema(TRAVELLING_SCHEMA))
