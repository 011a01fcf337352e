"""Converts records to the batches that a parse receives in a Spark worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from epochline.arrow.cast.source import SOURCE_SCHEMA, TRAVELLING_SCHEMA, stored_record
from epochline.kafka.records import Columns

_HEADERS = SOURCE_SCHEMA.field("headers").type


def record_batch(topic: str, partition: int, columns: Columns) -> pa.RecordBatch:
    """Records of one partition as a batch of `SOURCE_SCHEMA`.

    Args:
        topic: their topic.
        partition: their partition.
        columns: as `epochline.kafka.records.ReadSession.read` gives them; times in milliseconds since 1970.
    """
    rows = len(columns["offset"])
    headers = [
        None if one is None else [{"key": name, "value": value} for name, value in one] for one in columns["headers"]
    ]
    given = {
        "topic": pa.array([topic] * rows, pa.string()),
        "partition": pa.array([partition] * rows, pa.int32()),
        "timestamp": pa.array(columns["timestamp"], pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        "headers": pa.array(headers, _HEADERS),
    }
    for name in ("offset", "timestamp_type", "key", "value"):
        given[name] = pa.array(columns[name], SOURCE_SCHEMA.field(name).type)
    return pa.RecordBatch.from_arrays([given[name] for name in SOURCE_SCHEMA.names], schema=SOURCE_SCHEMA)


def claimed_batch(rows: Sequence[Any]) -> pa.RecordBatch:
    """Quarantined records as a batch of `TRAVELLING_SCHEMA`, as a requeue reads them."""
    records = [
        stored_record(row.topic, row.partition, row.offset, row.record_timestamp, row.key, row.value, row.headers)
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(records, schema=TRAVELLING_SCHEMA)
