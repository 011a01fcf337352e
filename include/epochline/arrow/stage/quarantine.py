"""Rows of the quarantine: the record as it came, and why it was set aside."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from epochline.arrow.cast.reasons import printable
from epochline.arrow.cast.types import record_schema
from epochline.declare.columns import QUARANTINE_COLUMNS

_SCHEMA = record_schema(QUARANTINE_COLUMNS)
# The quarantine's headers become jsonb, which has no place for NUL.
_NUL_SHOWN = "\N{SYMBOL FOR NULL}"


def quarantine_batch(source: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """The quarantine's rows, in the records' order.

    Args:
        source: the source batch (`epochline.arrow.cast.source.source_batch`).
        reasons: per row that is quarantined, why.
    """
    rows = sorted(reasons)
    taken = source.take(pa.array(rows, pa.int64()))
    columns = [taken.column(name) for name in ("topic", "partition", "offset", "timestamp", "key", "value")]
    columns.append(pa.array(_header_texts(taken.column("headers")), pa.string()))
    columns.append(pa.array([printable(reasons[row]) for row in rows], pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _header_texts(headers: pa.ListArray) -> list[str | None]:
    if headers.null_count == len(headers):
        return [None] * len(headers)
    # As bytes: a header's name need not be valid UTF-8, and Arrow would raise when it meets one that is not.
    raw = headers.cast(pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])))
    return [None if one is None else _header_text(one) for one in raw.to_pylist()]


def _header_text(headers: list[dict[str, Any]]) -> str:
    pairs = []
    for header in headers:
        name = (header["key"] or b"").decode("utf-8", "replace").replace("\0", _NUL_SHOWN)
        value = header["value"]
        pairs.append([name, None if value is None else base64.b64encode(value).decode()])
    return json.dumps(pairs, ensure_ascii=False)
