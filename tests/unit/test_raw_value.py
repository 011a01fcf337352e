"""The shapes in which the raw-value program takes a number."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipelines.raw_value import parse, parse_all_but_15


def batch(value: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], names=["value"])


@pytest.mark.parametrize(
    "value", [b"15", b'"15"', b'{"value":"15"}', b'{"value":15}', b' {"value": " 15 "} ', b'"+15"', b'"015"']
)
def test_every_shape_of_fifteen_is_fifteen(value: bytes) -> None:
    """X2."""
    assert parse(batch(value)).to_pylist() == [{"value": "15", "_error": None}]
    assert parse_all_but_15(batch(value)).to_pylist() == [{"value": None, "_error": "15 is set aside"}]


@pytest.mark.parametrize(
    "value",
    [None, b"", b"fifteen", b'"fifteen"', b"1.5", b"true", b"null", b"[15]", b"{}", b'{"value":null}', b"\xff\xfe",
     b'{"value":{"value":"15"}}', b'"15\\u0000"'],
)  # fmt: skip
def test_what_is_no_number_is_the_records_error(value: bytes | None) -> None:
    """X2, F28."""
    (row,) = parse(batch(value)).to_pylist()

    assert row["value"] is None
    assert "is not a number" in row["_error"]
