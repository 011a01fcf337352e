"""The shapes in which the raw-value program takes a number."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipelines.raw_value import parse, parse_all_but_15


def parsed(value: bytes | None, function=parse) -> tuple[str | None, str | None]:
    batch = pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], names=["value"])
    row = function(batch).to_pylist()[0]
    return row["value"], row["_error"]


@pytest.mark.parametrize(
    "value", [b"15", b'"15"', b'{"value":"15"}', b'{"value":15}', b' {"value": " 15 "} ', b'"+15"', b'"015"']
)
def test_every_shape_of_fifteen_is_fifteen(value: bytes) -> None:
    """X2."""
    assert parsed(value) == ("15", None)
    assert parsed(value, parse_all_but_15) == (None, "15 is set aside")


@pytest.mark.parametrize(
    "value",
    [None, b"", b"fifteen", b'"fifteen"', b"1.5", b"true", b"null", b"[15]", b"{}", b'{"value":null}', b"\xff\xfe",
     b'{"value":{"value":"15"}}', b'"15\\u0000"'],
)  # fmt: skip
def test_what_is_no_number_is_the_records_error(value: bytes | None) -> None:
    """X2, F28."""
    number, error = parsed(value)

    assert number is None
    assert "is not a number" in str(error)
