"""Every supported type through casting, encoding and COPY into PostgreSQL, and what is read back, also as text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from epochline.arrow.cast.casting import Cast, cast_column
from epochline.arrow.cast.types import column_type, record_schema
from epochline.arrow.formats.texts import as_text
from epochline.arrow.stage.encoding import CopyEncoder
from epochline.declare.columns import SUPPORTED, Carrier
from tests.databases import holding

FIRST_MOMENT = pa.scalar(-210866803200000000, pa.timestamp("us", "UTC"))
TOO_EARLY = pa.scalar(-210866803200000001, pa.timestamp("us", "UTC"))
DEEP = "[" * 300 + "]" * 300
LONG = "1" * 131072

# By type: values (with their Arrow type where it matters) and what PostgreSQL shows of them as text; refused values.
MATRIX: dict[str, tuple[list[tuple[Any, str]], list[Any]]] = {
    "boolean": ([(True, "true"), (False, "false"), ("true", "true")], ["maybe"]),
    "smallint": ([(32767, "32767"), (-32768, "-32768")], [32768, -32769]),
    "integer": ([(2147483647, "2147483647"), (-2147483648, "-2147483648")], [2147483648]),
    "bigint": ([
        (9223372036854775807, "9223372036854775807"), (-9223372036854775808, "-9223372036854775808"), ("12", "12"),
        (2.0, "2"), (Decimal("7"), "7"),
    ], [
        "9223372036854775808", pa.scalar(2**63, pa.uint64()), "0x1f", "1.5", "", 2.5, float("nan"), float("inf"),
        Decimal("7.5"),
    ]),
    "real": ([
        (3.4028234663852886e38, "3.4028235e+38"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity"),
        (float("nan"), "NaN"), ("0.1", "0.1"), (0.0, "0"), (99999.0, "99999"), (999999.0, "999999"), (1e6, "1e+06"),
        (1234567.0, "1.234567e+06"), (1e-4, "0.0001"), (1.5e-5, "1.5e-05"),
    ], [1e39, 1e-60]),
    "double precision": ([
        (1.7976931348623157e308, "1.7976931348623157e+308"), (5e-324, "5e-324"), ("inf", "Infinity"),
        (float("nan"), "NaN"), (-0.0, "-0"), (2**53, "9.007199254740992e+15"), (0.0, "0"), (-1.5, "-1.5"),
        (1e14, "100000000000000"), (999999999999999.0, "999999999999999"), (1e15, "1e+15"), (1e300, "1e+300"),
        (123456789012345680.0, "1.2345678901234568e+17"), (1e-4, "0.0001"), (0.00012345, "0.00012345"),
        (9.9e-5, "9.9e-05"), (float("-inf"), "-Infinity"),
    ], ["1e400", "1e-400", 2**53 + 1]),
    "numeric(12,2)": ([
        ("9999999999.99", "9999999999.99"), ("-9999999999.99", "-9999999999.99"), ("1.50000", "1.50"), (0.1, "0.10"),
        (5, "5.00"), (Decimal("1.5"), "1.50"),
    ], ["10000000000", "1.005", "12,5", "NaN", "Infinity", float("nan"), float("inf"), 0.125, Decimal("1.555")]),
    "numeric(3,5)": ([("0.00123", "0.00123")], ["0.01"]),
    "numeric(38,0)": ([("9" * 38, "9" * 38)], ["1" + "0" * 38]),
    "numeric(76,6)": ([("9" * 70 + ".999999", "9" * 70 + ".999999")], []),
    "numeric(38,60)": ([("1e-50", "0." + "0" * 49 + "1" + "0" * 10)], []),
    "numeric(40,20)": ([("-0.00000012345", "-0.00000012345000000000")], []),
    "numeric(5)": ([("99999", "99999")], []),
    "numeric(20,10)": ([("0", "0.0000000000"), ("-1234567890.5", "-1234567890.5000000000"), ("1", "1.0000000000"), ("1e-10", "0.0000000001")], []),
    "numeric": ([
        ("0.10", "0.10"), ("1e3", "1000"), (LONG, LONG), ("1e-16383", "0." + "0" * 16382 + "1"), (12, "12"),
        ("NaN", "NaN"), ("Infinity", "Infinity"), ("-Infinity", "-Infinity"), ("-0", "0"), ("-0.00", "0.00"), ("+1", "1"),
        (".5", "0.5"), ("1.", "1"), ("007", "7"), ("1.5E-10", "0.00000000015"), ("-12e+3", "-12000"),
        ("123e-4", "0.0123"), ("0.0" + "1" * 41, "0.0" + "1" * 41), ("0e131072", "0"), ("0" * 140000 + "1", "1"),
    ], ["nan", LONG + "1", "1e131072", "1e-16384", float("nan"), "abc"]),
    "text": ([
        ("", ""), ("a\tb\nc\\d\"e'f,g", "a\tb\nc\\d\"e'f,g"), ("\\.", "\\."), ("\\N", "\\N"), ("NULL", "NULL"),
        ("žluťoučký 🐎", "žluťoučký 🐎"), (b"abc", "abc"), (12, "12"),
    ], ["a\0b", b"\xff"]),
    "character varying(3)": ([("äöü", "äöü")], ["abcd"]),
    "character varying": ([("x" * 5000, "x" * 5000)], []),
    "bytea": ([(b"", "\\x"), (bytes(range(256)), "\\x" + bytes(range(256)).hex()), ("ä", "\\xc3a4")], []),
    "date": ([
        (date(2024, 2, 29), "2024-02-29"), ("2024-02-29", "2024-02-29"), (date(1, 1, 1), "0001-01-01"),
        (pa.scalar(-2440588, pa.date32()), "4714-11-24 BC"), (pa.scalar(2145042905, pa.date32()), "5874897-12-31"),
        (pa.scalar(-719163, pa.date32()), "0001-12-31 BC"), (pa.scalar(2932897, pa.date32()), "10000-01-01"),
        ("0044-03-15 BC", "0044-03-15 BC"), ("4714-11-24 BC", "4714-11-24 BC"), ("-0043-03-15", "0044-03-15 BC"),
        ("5874897-12-31", "5874897-12-31"), ("+11476-09-15", "11476-09-15"), ("infinity", "infinity"),
        ("-infinity", "-infinity"),
    ], [
        "2023-02-29", "5874898-01-01", "4714-11-23 BC", "1900-02-29", "2100-02-29 BC", "-0043-03-15 BC", "0000-01-01 BC",
        pa.scalar(-(2**31), pa.date32()), pa.scalar(2**31 - 1, pa.date32()), pa.scalar(-2440589, pa.date32()), pa.scalar(2145042906, pa.date32()),
        datetime(2024, 1, 1, 12, tzinfo=UTC),
    ]),
    "timestamp with time zone": ([
        (datetime(2024, 2, 29, 1, 2, 3, 456789, UTC), "2024-02-29 01:02:03.456789+00"),
        ("2024-02-29T01:02:03+02:00", "2024-02-28 23:02:03+00"), (FIRST_MOMENT, "4714-11-24 00:00:00+00 BC"),
        (pa.scalar(2**63 - 1, pa.timestamp("us", "UTC")), "294247-01-10 04:00:54.775807+00"),
        ("9999-12-31T23:59:59-14:00", "10000-01-01 13:59:59+00"), ("2024-02-29t01:02:03z", "2024-02-29 01:02:03+00"),
        ("2024-02-29T01:02:03.123456000Z", "2024-02-29 01:02:03.123456+00"),
        ("2024-02-28T24:00:00Z", "2024-02-29 00:00:00+00"), ("0044-03-15T00:00:00+00:00 BC", "0044-03-15 00:00:00+00 BC"),
        ("-0043-03-15T00:00:00Z", "0044-03-15 00:00:00+00 BC"), ("20240-01-01T00:00:00+00:00", "20240-01-01 00:00:00+00"),
        ("+11476-09-15T00:00:00.5Z", "11476-09-15 00:00:00.5+00"), ("infinity", "infinity"), ("-infinity", "-infinity"),
        ("294247-01-10T04:00:54.775809Z", "294247-01-10 04:00:54.775809+00"),
        ("294276-12-31 23:59:59.999999+00", "294276-12-31 23:59:59.999999+00"),
        ("4714-11-24 00:00:00+00 BC", "4714-11-24 00:00:00+00 BC"),
        ("0001-01-01 00:00:00+05:53:28", "0001-12-31 18:06:32+00 BC"), ("2024-02-29T12:00:00.5Z", "2024-02-29 12:00:00.5+00"),
        ("1969-12-31T23:59:59.999999Z", "1969-12-31 23:59:59.999999+00"),
        ("2024-02-29T01:02:54.100007Z", "2024-02-29 01:02:54.100007+00"),
    ], [
        "2024-02-29T01:02:03", TOO_EARLY, pa.scalar(-(2**63), pa.timestamp("us", "UTC")), "294277-01-01T00:00:00Z",
        "2024-02-29T01:02:03.1234567Z", "2024-02-29T24:00:00.1Z", "4714-11-23T23:59:59Z BC", "2023-02-29t01:02:03z",
        "294276-12-31T23:59:59-01:00", "2024-02-29T01:02:03+24:00", "2024-02-29T01:60:00.0000000Z", pa.scalar(2**60, pa.timestamp("s", "UTC")),
        pa.scalar(1001, pa.timestamp("ns", "UTC")),
    ]),
    "timestamp without time zone": ([
        (datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), "2024-02-29 01:02:03"),
        ("2024-02-29 01:02:03.5", "2024-02-29 01:02:03.5"),
        (pa.scalar(-62135596800000001, pa.timestamp("us")), "0001-12-31 23:59:59.999999 BC"),
        (date(2024, 2, 29), "2024-02-29 00:00:00"), ("infinity", "infinity"), ("-infinity", "-infinity"),
        ("294276-12-31T23:59:59.999999000", "294276-12-31 23:59:59.999999"),
        ("4714-11-24T00:00:00 BC", "4714-11-24 00:00:00 BC"), ("2024-02-29T10:20:30.000100", "2024-02-29 10:20:30.0001"),
        ("2024-02-29T01:02:54.100007", "2024-02-29 01:02:54.100007"), ("2024-02-29T01:02:54.100700", "2024-02-29 01:02:54.1007"),
        (pa.scalar(2**58, pa.timestamp("us")), "11103-08-29 17:22:31.711744"),
        (pa.scalar(-(2**56), pa.timestamp("us")), "0315-08-02 01:39:22.072064 BC"),
    ], ["2024-02-29T01:02:03Z", "10000-01-01T00:00:00Z", pa.scalar(2145042905, pa.date32())]),
    "time without time zone": ([
        (time(23, 59, 59, 999999), "23:59:59.999999"), ("23:59:59.999990", "23:59:59.99999"), ("10:05:54.100007", "10:05:54.100007"), ("00:00", "00:00:00"),
        ("10:05", "10:05:00"), ("10:05:03.25", "10:05:03.25"),
        ("24:00:00", "24:00:00"), ("10:05:03.250000000", "10:05:03.25"), (pa.scalar(86_400_000_000, pa.int64()).cast(
            pa.time64("us")), "24:00:00"),
    ], ["10:65", "24:00:01", "25:00", "10:05:03.1234567", "10", pa.scalar(86_400_000_001, pa.int64()).cast(pa.time64("us"))]),
    "uuid": ([
        ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("{a0eebc999c0b4ef8bb6d6bb9bd380a11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ], ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1", "{a0eebc999c0b4ef8bb6d6bb9bd380a11", ""]),
    "inet": ([
        ("10.0.0.1", "10.0.0.1/32"), ("10.0.0.1/8", "10.0.0.1/8"), ("::ffff:10.0.0.1", "::ffff:10.0.0.1/128"),
        ("2001:db8::1/64", "2001:db8::1/64"), ("10.0.0.1/32", "10.0.0.1/32"), ("::", "::/128"), ("::1", "::1/128"),
        ("2001:DB8:0:0:1::1/64", "2001:db8::1:0:0:1/64"), ("::1.2.3.4", "::1.2.3.4/128"), ("::0.1.0.2", "::0.1.0.2/128"),
        ("::ffff:0:1", "::ffff:0.0.0.1/128"), ("1:0:0:2:0:0:0:3", "1:0:0:2::3/128"), ("::ffff:0.0.0.0/96", "::ffff:0.0.0.0/96"),
        ("fe80::1/128", "fe80::1/128"),
    ], ["fe80::1%eth0", "10.0.0.1/255.0.0.0", "10.0.0.256", "crawler.example.com"]),
    "cidr": ([
        ("10.0.0.0/8", "10.0.0.0/8"), ("10.0.0.1", "10.0.0.1/32"), ("2001:db8::/32", "2001:db8::/32"),
        ("::ffff:1.2.3.0/120", "::ffff:1.2.3.0/120"),
    ], ["10.0.0.1/8"]),
    "macaddr": ([
        ("08:00:2b:01:02:03", "08:00:2b:01:02:03"), ("08-00-2B-01-02-03", "08:00:2b:01:02:03"),
        ("0800.2b01.0203", "08:00:2b:01:02:03"), ("0800-2b01-0203", "08:00:2b:01:02:03"),
        ("08002b:010203", "08:00:2b:01:02:03"), ("08002b-010203", "08:00:2b:01:02:03"),
        ("08002b010203", "08:00:2b:01:02:03"),
    ], ["08:00:2b:01:02"]),
    "json": ([
        ('{"a": [1, 2.50, "x"], "a": null}', '{"a": [1, 2.50, "x"], "a": null}'), ('"\\u0000"', '"\\u0000"'),
        ("1e200000", "1e200000"),
    ], ["{'a': 1}", "NaN", "", '{"a":1} {}', '"a\tb"', DEEP]),
    "jsonb": ([
        ('{"b": 1, "a": 2.50}', '{"a": 2.50, "b": 1}'), ('"\\ud83d\\ude00"', '"😀"'), ("null", "null"),
    ], ['"\\u0000"', '{"\\u0000": 1}', '{"a": "\\u0000", "a": 1}', '"\\ud800"', "1e200000", "1e-20000"]),
    "interval": ([
        ("1 day 02:03:04.5", "1 day 02:03:04.5"),
        ("1 year 2 mons -3 days +04:05:06", "1 year 2 mons -3 days +04:05:06"),
        ("P1Y2M3DT4H5M6.7S", "1 year 2 mons 3 days 04:05:06.7"), ("-04:05", "-04:05:00"), ("90 minutes", "01:30:00"),
        ("1.5 seconds", "00:00:01.5"),
    ], ["P", "1 fortnight", "1 day 2 days", "99999999999 years", "soon", ""]),
}  # fmt: skip
AS_WRITTEN = ("json", "jsonb", "interval")
"""Types that a key or a header shows as they were written."""
SHOWN = [(text, value, shown) for text, (taken, _) in MATRIX.items() for value, shown in taken]
REFUSED = [(text, value) for text, (_, refused) in MATRIX.items() for value in refused]


def _id(case: Any) -> str:
    if isinstance(case, pa.Scalar):  # Python has no dates beyond the year 9999
        return str(case.type)
    return ascii(case)[:40]


def _cast(text: str, value: Any) -> Cast:
    array: pa.Array[Any] = pa.array([value], value.type if isinstance(value, pa.Scalar) else None)
    return cast_column("v", array, column_type(text))


@pytest.fixture(scope="module")
def cursor(new_database: Callable[[], str]) -> Iterator[Any]:
    settings = "SET timezone = 'UTC'; SET intervalstyle = 'postgres'; SET client_encoding = 'UTF8'"
    with holding(new_database(), settings) as cursor:
        yield cursor


def _copied(cursor: Any, text: str, array: pa.Array[Any]) -> list[list[Any]]:
    """What PostgreSQL shows of a column, carried as its type is, and as text."""
    found = []
    for others in ({}, {"other": "interval"}):  # an interval is carried as text, and takes the whole table along
        columns = {"v": text, **others}
        declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        cursor.execute(f"DROP TABLE IF EXISTS pg_temp.matrix; CREATE TEMP TABLE matrix (at serial, {declared})")
        encoder = CopyEncoder(columns)
        assert encoder.carrier is (Carrier.TEXT if others else column_type(text).carrier)
        arrays = [array, *(pa.nulls(len(array), pa.string()) for _ in others)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=record_schema(columns))
        data = io.BytesIO(encoder.begin() + encoder.encode(batch) + encoder.end())
        cursor.copy_expert(f"COPY pg_temp.matrix ({', '.join(columns)}) FROM STDIN WITH ({encoder.copy_options})", data)
        cursor.execute("SELECT v::text FROM pg_temp.matrix ORDER BY at")
        found.append([shown for (shown,) in cursor.fetchall()])
    return found


@pytest.mark.parametrize(("text", "value", "shown"), SHOWN, ids=_id)
def test_a_value_is_read_back_as_it_was(cursor: Any, text: str, value: Any, shown: str) -> None:
    """From a table, and as the text of a key or header, in which an address has no mask of its own."""
    cast, column = _cast(text, value), column_type(text)

    assert cast.problems == {}
    again = cast_column("v", cast.array, column)
    assert (again.problems, again.array.type, str(again.array)) == ({}, cast.array.type, str(cast.array))
    assert _copied(cursor, text, cast.array) == [[shown], [shown]]
    if text != "bytea":
        as_key = value if text in AS_WRITTEN else re.sub("/(32|128)$", "", shown) if text == "inet" else shown
        assert as_text(cast.array, column).to_pylist() == [as_key]


@pytest.mark.parametrize("text", MATRIX)
def test_values_of_different_lengths_are_read_back_from_one_batch(cursor: Any, text: str) -> None:
    """Some types are encoded by columns, at the width of the longest value; NULLs and a slice move the others."""
    taken, _ = MATRIX[text]
    kind = record_schema({"v": text}).field("v").type
    values = [_cast(text, value).array for value, _ in [*taken, *reversed(taken)]]
    rows = [pa.nulls(1, kind), *values, pa.nulls(2, kind)]

    copied = _copied(cursor, text, pa.concat_arrays([rows[1], *rows]).slice(1))

    shown = [text for _, text in taken]
    assert copied == [[None, *shown, *reversed(shown), None, None]] * 2


@pytest.mark.parametrize(("text", "value"), REFUSED, ids=_id)
def test_a_value_that_does_not_fit_is_refused(text: str, value: Any) -> None:
    cast = _cast(text, value)

    assert list(cast.problems) == [0]
    assert cast.problems[0].startswith("v: ")
    assert cast.array.null_count == 1


@pytest.mark.parametrize("text", [*SUPPORTED, "numeric(12,2)", "numeric(60,4)", "character varying(5)"])
def test_null_stays_null_in_either_carrier(cursor: Any, text: str) -> None:
    nulls = cast_column("v", pa.nulls(2), column_type(text)).array

    assert _copied(cursor, text, nulls) == [[None, None]] * 2
    assert text == "bytea" or as_text(nulls, column_type(text)).to_pylist() == [None, None]


def test_the_matrix_has_every_supported_type() -> None:
    assert {column_type(text).name for text in MATRIX} == set(SUPPORTED)


def test_what_the_matrix_refuses_as_text_postgresql_refuses_or_alters(cursor: Any) -> None:
    """Of the texts refused, these few PostgreSQL would have taken as they are: the price of being careful."""
    too_careful = []
    for text, value in REFUSED:
        if not isinstance(value, str) or "\0" in value:
            continue
        cursor.execute("SAVEPOINT attempt")
        try:
            cursor.execute(f"SELECT cast(cast(%s AS text) AS {text})::text", (value,))
            if cursor.fetchone()[0].lower() == value.lower():
                too_careful.append((text, value[:20]))
        except psycopg2.Error:
            cursor.execute("ROLLBACK TO attempt")

    assert too_careful == [("numeric(12,2)", "NaN"), ("numeric", "nan"), ("json", DEEP[:20])]  # fmt: skip
