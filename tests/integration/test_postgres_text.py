"""Keys and headers are texts as PostgreSQL itself shows them: asked of the server, value by value."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import arrow_type, column_type
from epochline.arrow.formats.texts import as_text

CASES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "bigint": [-(2**63), 0, 2**63 - 1],
    "double precision": [
        0.0, -0.0, 1.0, 0.1, -1.5, 1e14, 999999999999999.0, 1e15, 123456789012345680.0, 1e20, 1e300, 5e-324, 1e-4,
        0.00012345, 9.9e-5, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf"),
    ],
    "real": [0.0, 0.1, 1.0, 99999.0, 123456.0, 999999.0, 1e6, 1234567.0, 1e-4, 1.5e-5, 3.4028235e38, float("-inf")],
    "numeric": ["0", "-0", "-0.00", "1.50", "+1", ".5", "1.", "007", "1e5", "1.5E-10", "-12e+3", "1e1000", "123456789" * 9],
    "numeric(20,10)": ["0", "0.0000000001", "-1234567890.5", "1"],
    "numeric(76,2)": ["1" * 70 + ".10"],
    "text": ["", "ü\n\\", "NULL"],
    "date": ["2024-02-29", "0001-01-01", "9999-12-31", -1_000_000, 5_000_000],
    "timestamptz": ["2024-02-29T12:00:00Z", "2024-02-29T12:00:00.5Z", "1969-12-31T23:59:59.999999Z", -(2**56), 2**58],
    "timestamp": ["2024-02-29T12:00:00", "2024-02-29T10:20:30.000100", -(2**56), 2**58],
    "time": ["00:00", "10:20:30", "23:59:59.999990"],
    "uuid": ["{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}", "a0eebc999c0b4ef8bb6d6bb9bd380a11"],
    "macaddr": ["08-00-2B-01-02-03", "08002b:010203", "0800.2b01.0203"],
    "inet": [
        "10.0.0.1", "10.0.0.1/32", "10.0.0.1/8", "::", "::1", "2001:DB8:0:0:1::1/64", "::ffff:1.2.3.4", "::1.2.3.4",
        "::0.1.0.2", "::ffff:0:1", "1:0:0:2:0:0:0:3", "fe80::1/128", "::ffff:0.0.0.0/96",
    ],
    "cidr": ["10.0.0.0/8", "10.0.0.1", "2001:db8::/32", "::ffff:1.2.3.0/120"],
    "interval": ["1 year 2 mons 3 days 04:05:06.789"],
    "json": ['{"b": 1.50,  "a": 1}'],
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_a_value_is_the_text_that_postgresql_shows(postgres_dsn: str, kind: str) -> None:
    column, values = column_type(kind), CASES[kind]
    array = pa.concat_arrays(_both(values, kind)) if {type(one) for one in values} == {str, int} else pa.array(values)
    cast = cast_column("it", array, column)
    assert not cast.problems

    texts = as_text(pa.concat_arrays([cast.array, pa.nulls(1, cast.array.type)]), column).to_pylist()

    assert texts[-1] is None
    with closing(psycopg2.connect(postgres_dsn)) as session, session.cursor() as cursor:
        cursor.execute("SET TimeZone = 'UTC'")
        shown = "CAST(%s::{} AS text)" if kind == "boolean" else "format('%%s', %s::{})"
        for text in texts[:-1]:
            # What PostgreSQL reads from the text, it writes as the same text; and it is the value that was given.
            cursor.execute(f"SELECT {shown.format(kind)}", (text,))
            assert cursor.fetchone() == (text,)
        for given, text in zip(values, texts, strict=False):
            if isinstance(given, str):
                cursor.execute(f"SELECT {shown.format(kind)} = %s", (given, text))
                assert cursor.fetchone() == (True,), (given, text)


def _both(values: list[Any], kind: str) -> list[pa.Array[Any]]:
    """Texts, and ticks of years that no text can say."""
    target = arrow_type(column_type(kind))
    texts = cast_column("it", pa.array([one for one in values if isinstance(one, str)]), column_type(kind)).array
    ticks = pa.array([one for one in values if isinstance(one, int)], pa.int32() if kind == "date" else pa.int64())
    return [texts, ticks.cast(target)]
