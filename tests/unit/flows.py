"""A flow of batches as its pipeline is declared, and records to process."""

from typing import Any

import pyarrow as pa

from epochline.arrow.stage.batch_rows import BatchRows
from epochline.declare.parsers import Json
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.declare.table import PostgresTable
from epochline.declare.topic import KafkaTopic
from epochline.protocol.refused import NONE_REFUSED, Refused
from epochline.protocol.staging_tables import staged_tables

COLUMNS = {"id": "bigint", "name": "text", "status": "smallint"}


def records(*values: bytes | None, keys: list[bytes | None] | None = None, **more: Any) -> pa.RecordBatch:
    n = len(values)
    columns = {
        "topic": pa.array(["t"] * n, pa.string()),
        "partition": pa.array([0] * n, pa.int32()),
        "offset": pa.array(range(100, 100 + n), pa.int64()),
        "timestamp": pa.array([0] * n, pa.timestamp("us", "UTC")),
        "timestamp_type": pa.array([0] * n, pa.int32()),
        "key": pa.array(keys or [None] * n, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    return pa.record_batch(columns | more)


def flow(*sinks: PostgresTable | KafkaTopic, refused: Refused = NONE_REFUSED, **declared: Any) -> BatchRows:
    declared = {"parse": Json(columns=COLUMNS), "bad_records": "quarantine"} | declared
    pipeline = Pipeline(name="p", source=KafkaSource(topics="t"), sinks=sinks, **declared)
    targets = {table.table: table.columns or COLUMNS for table in pipeline.tables}
    return BatchRows(pipeline.spec, staged_tables(pipeline, targets, 1, 1), refused)
