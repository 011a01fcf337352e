"""A flow of batches as its pipeline is declared, records to process, and what a ready-made parser makes of values."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from epochline.arrow.formats.parsers import build_parser
from epochline.arrow.stage.batch_rows import BatchRows
from epochline.declare.parsers import Json, ReadyMadeParser
from epochline.declare.table import PostgresTable
from epochline.declare.topic import KafkaTopic
from epochline.protocol.refused import NONE_REFUSED, Refused
from epochline.protocol.staging_tables import staged_tables
from tests.declaring import pipeline

Values = Sequence[bytes | None]
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
    one = pipeline(*sinks, **{"parse": Json(columns=COLUMNS), "bad_records": "quarantine"} | declared)
    targets = {table.table: table.columns or COLUMNS for table in one.tables}
    return BatchRows(one.spec, staged_tables(one, targets, 1, 1), refused)


def parsed(parser: ReadyMadeParser, values: Values, keys: Values = ()) -> pa.RecordBatch:
    one = pipeline(PostgresTable(table="s", columns=parser.record), parse=parser)
    key, value = pa.array(keys or [None] * len(values), pa.binary()), pa.array(values, pa.binary())
    return build_parser(one.spec)(pa.record_batch({"key": key, "value": value}))


def parse(parser: ReadyMadeParser, values: Values, keys: Values = ()) -> list[dict[str, Any]]:
    return list(parsed(parser, values, keys).to_pylist())
