"""Make the quarantine's rows: the unchanged record, and the reason."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import pyarrow as pa

from epochline.arrow.cast.reasons import printable
from epochline.arrow.cast.source import header_pairs
from epochline.arrow.cast.types import record_schema
from epochline.declare.columns import QUARANTINE_COLUMNS

_SCHEMA = record_schema(QUARANTINE_COLUMNS)
# The quarantine stores headers as jsonb, which cannot hold NUL.
_NUL_REPLACEMENT = "\N{SYMBOL FOR NULL}"


def quarantine_batch(source: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """The quarantine's rows, in the records' order.

    Args:
        source: the source batch (`epochline.arrow.cast.source.source_batch`).
        reasons: the reason per quarantined row.
    """
    rows = sorted(reasons)
    taken = source.take(pa.array(rows, pa.int64()))
    columns = [taken.column(name) for name in ("topic", "partition", "offset", "timestamp", "key", "value")]
    columns.append(pa.array(_header_texts(taken.column("headers")), pa.string()))
    columns.append(pa.array([printable(reasons[row]) for row in rows], pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _header_texts(headers: pa.Array) -> list[str | None]:
    return [None if pairs is None else _header_text(pairs) for pairs in header_pairs(headers)]


def _header_text(pairs: list[tuple[str, bytes | None]]) -> str:
    written = [
        [name.replace("\0", _NUL_REPLACEMENT), None if value is None else base64.b64encode(value).decode()]
        for name, value in pairs
    ]
    return json.dumps(written, ensure_ascii=False)
