"""Reads the quarantined records that a requeue epoch claimed, in the columns of Kafka's source.

It is a custom Spark data source, so that the database's password is in the pickled reader and not in an option (K21).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.arrow.cast.source import SOURCE_SCHEMA
from epochline.failpoints import failpoint
from epochline.postgres.queries.named import statement
from epochline.protocol.staging import StagingTicket
from epochline.spark.connection import transaction

SOURCE_NAME = "epochline_claims"

_FETCHED = 100
"""Records per fetch from the server: few, because a record may have many megabytes."""

_BATCH_RECORDS, _BATCH_BYTES = 10_000, 16 * 1024 * 1024


@dataclass(frozen=True)
class ClaimedPartition(InputPartition):
    """The claimed records of one Kafka partition."""

    topic_id: str
    partition: int


class ClaimReader(DataSourceReader):
    """Reads the claimed records of an epoch, each Kafka partition as one Spark partition, in offset order.

    Claims are written with the epoch and never change, so that a repeated task reads the same records.
    """

    def __init__(self, ticket: StagingTicket, dsn: str) -> None:
        self._ticket = ticket
        self._dsn = dsn

    def _epoch(self) -> dict[str, Any]:
        return {"pipeline": self._ticket.pipeline, "epoch_id": self._ticket.epoch_id}

    def partitions(self) -> Sequence[ClaimedPartition]:
        """One Spark partition for each Kafka partition with a claimed record."""
        failpoint("claims.connect")
        with transaction(self._dsn, self._ticket.application_name) as session, session.cursor() as cursor:
            failpoint("claims.partitions")
            cursor.execute(statement("claimed_partitions"), self._epoch())
            return [ClaimedPartition(topic_id, partition) for _, topic_id, partition in cursor.fetchall()]

    def read(self, partition: ClaimedPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The records of one partition."""
        ticket = self._ticket
        with transaction(self._dsn, ticket.application_name) as session, session.cursor("claims") as cursor:
            cursor.itersize = _FETCHED
            failpoint("claims.records")
            cursor.execute(
                statement("claimed_records"),
                self._epoch() | {"topic_id": partition.topic_id, "partition": partition.partition},
            )
            rows: list[dict[str, Any]] = []
            held = 0
            for row in cursor:
                rows.append(_record(row))
                held += len(rows[-1]["value"] or b"") + len(rows[-1]["key"] or b"")
                if len(rows) >= _BATCH_RECORDS or held >= _BATCH_BYTES:
                    yield pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)
                    rows, held = [], 0
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)


def read_claims(spark: SparkSession, ticket: StagingTicket, dsn: str) -> DataFrame:
    """A DataFrame of the records that the attempt's epoch claimed, in the columns of `read_ranges`.

    The quarantine keeps no timestamp type, so ``timestamp_type`` is NULL. A NUL in a header's name is a symbol there.
    """
    source = _source(ticket, dsn)
    spark.dataSource.register(source)
    return spark.read.format(SOURCE_NAME).load()


def _source(ticket: StagingTicket, dsn: str) -> type[DataSource]:
    # A local class is pickled by value with the DSN in its closure, so that no option, plan or log shows the DSN.
    class ClaimSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return SOURCE_NAME

        def schema(self) -> Any:
            return from_arrow_schema(SOURCE_SCHEMA)

        def reader(self, schema: object) -> ClaimReader:
            return ClaimReader(ticket, dsn)

    return ClaimSource


def _record(row: tuple[Any, ...]) -> dict[str, Any]:
    topic, partition, offset, timestamp, key, value, headers = row
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "timestamp_type": None,
        "key": None if key is None else bytes(key),
        "value": None if value is None else bytes(value),
        "headers": None
        if headers is None
        else [{"key": name, "value": None if text is None else base64.b64decode(text)} for name, text in headers],
    }
