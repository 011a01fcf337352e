"""Reads the quarantined records that a requeue epoch claimed, as if they came from Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochline.arrow.cast.source import SOURCE_SCHEMA, stored_record
from epochline.failpoints import failpoint
from epochline.postgres.queries.named import statement
from epochline.protocol.inputs import belongs_to
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
    """Reads the claimed records of an epoch: a task for each Kafka partition with a claim, in offset order.

    Claims are written with the epoch and never change, so that a repeated task reads the same records.
    """

    ticket: StagingTicket
    dsn: str = field(repr=False)
    partitions: Sequence[ClaimedPartition]

    @property
    def tasks(self) -> int:
        """How many tasks read."""
        return len(self.partitions)

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """The records of one partition, in batches of `SOURCE_SCHEMA`."""
        one = self.partitions[task]
        with transaction(self.dsn, self.ticket.application_name) as session, session.cursor("claims") as cursor:
            cursor.itersize = _FETCHED
            failpoint("claims.records")
            cursor.execute(
                statement("claimed_records"),
                _epoch(self.ticket) | {"topic_id": one.topic_id, "partition": one.partition},
            )
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


def claim_reader(ticket: StagingTicket, dsn: str, source: str = "") -> ClaimReader:
    """A reader of the records that the attempt's epoch claimed, of one source if there are several.

    The quarantine keeps no timestamp type, so ``timestamp_type`` is NULL. A NUL in a header's name is a symbol there.
    """
    failpoint("claims.connect")
    with transaction(dsn, ticket.application_name) as session, session.cursor() as cursor:
        failpoint("claims.partitions")
        cursor.execute(statement("claimed_partitions"), _epoch(ticket))
        partitions = [
            ClaimedPartition(topic_id, partition)
            for topic, topic_id, partition in cursor.fetchall()
            if belongs_to(source, topic)
        ]
    return ClaimReader(ticket, dsn, partitions)


def _epoch(ticket: StagingTicket) -> dict[str, Any]:
    return {"pipeline": ticket.pipeline, "epoch_id": ticket.epoch_id}
