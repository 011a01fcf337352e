"""Every supported type through casting, encoding and COPY into PostgreSQL, and what is read back."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import column_type, record_schema
from epochline.arrow.stage.encoding import CopyEncoder
from epochline.declare.columns import SUPPORTED, Carrier

REFUSED = object()
FIRST_MOMENT = pa.scalar(-210866803200000000, pa.timestamp("us", "UTC"))
TOO_EARLY = pa.scalar(-210866803200000001, pa.timestamp("us", "UTC"))
DEEP = "[" * 300 + "]" * 300
LONG = "1" * 131072

# type, value given (and its Arrow type where it matters), what PostgreSQL shows as text, or REFUSED.
MATRIX: list[tuple[str, Any, Any]] = [
    ("boolean", True, "true"),
    ("boolean", False, "false"),
    ("boolean", "true", "true"),
    ("boolean", "maybe", REFUSED),
    ("smallint", 32767, "32767"),
    ("smallint", -32768, "-32768"),
    ("smallint", 32768, REFUSED),
    ("smallint", -32769, REFUSED),
    ("integer", 2147483647, "2147483647"),
    ("integer", -2147483648, "-2147483648"),
    ("integer", 2147483648, REFUSED),
    ("bigint", 9223372036854775807, "9223372036854775807"),
    ("bigint", -9223372036854775808, "-9223372036854775808"),
    ("bigint", "9223372036854775808", REFUSED),
    ("bigint", pa.scalar(2**63, pa.uint64()), REFUSED),
    ("bigint", "12", "12"),
    ("bigint", "0x1f", REFUSED),
    ("bigint", "1.5", REFUSED),
    ("bigint", "", REFUSED),
    ("bigint", 2.0, "2"),
    ("bigint", 2.5, REFUSED),
    ("bigint", float("nan"), REFUSED),
    ("bigint", float("inf"), REFUSED),
    ("bigint", Decimal("7"), "7"),
    ("bigint", Decimal("7.5"), REFUSED),
    ("real", 3.4028234663852886e38, "3.4028235e+38"),
    ("real", 1e39, REFUSED),
    ("real", 1e-60, REFUSED),
    ("real", float("inf"), "Infinity"),
    ("real", float("-inf"), "-Infinity"),
    ("real", float("nan"), "NaN"),
    ("real", "0.1", "0.1"),
    ("double precision", 1.7976931348623157e308, "1.7976931348623157e+308"),
    ("double precision", 5e-324, "5e-324"),
    ("double precision", "1e400", REFUSED),
    ("double precision", "1e-400", REFUSED),
    ("double precision", "inf", "Infinity"),
    ("double precision", float("nan"), "NaN"),
    ("double precision", -0.0, "-0"),
    ("double precision", 2**53, "9.007199254740992e+15"),
    ("double precision", 2**53 + 1, REFUSED),
    ("numeric(12,2)", "9999999999.99", "9999999999.99"),
    ("numeric(12,2)", "-9999999999.99", "-9999999999.99"),
    ("numeric(12,2)", "10000000000", REFUSED),
    ("numeric(12,2)", "1.005", REFUSED),
    ("numeric(12,2)", "1.50000", "1.50"),
    ("numeric(12,2)", "12,5", REFUSED),
    ("numeric(12,2)", "NaN", REFUSED),
    ("numeric(12,2)", float("nan"), REFUSED),
    ("numeric(12,2)", float("inf"), REFUSED),
    ("numeric(12,2)", 0.1, "0.10"),
    ("numeric(12,2)", 0.125, REFUSED),
    ("numeric(12,2)", 5, "5.00"),
    ("numeric(12,2)", Decimal("1.5"), "1.50"),
    ("numeric(12,2)", Decimal("1.555"), REFUSED),
    ("numeric(3,5)", "0.00123", "0.00123"),
    ("numeric(3,5)", "0.01", REFUSED),
    ("numeric(38,0)", "9" * 38, "9" * 38),
    ("numeric(38,0)", "1" + "0" * 38, REFUSED),
    ("numeric(76,6)", "9" * 70 + ".999999", "9" * 70 + ".999999"),
    ("numeric(5)", "99999", "99999"),
    ("numeric", "0.10", "0.10"),
    ("numeric", "1e3", "1000"),
    ("numeric", LONG, LONG),
    ("numeric", LONG + "1", REFUSED),
    ("numeric", "1e131072", REFUSED),
    ("numeric", "1e-16383", "0." + "0" * 16382 + "1"),
    ("numeric", "1e-16384", REFUSED),
    ("numeric", float("nan"), REFUSED),
    ("numeric", "abc", REFUSED),
    ("numeric", 12, "12"),
    ("text", "", ""),
    ("text", "a\tb\nc\\d\"e'f,g", "a\tb\nc\\d\"e'f,g"),
    ("text", "\\.", "\\."),
    ("text", "\\N", "\\N"),
    ("text", "NULL", "NULL"),
    ("text", "žluťoučký 🐎", "žluťoučký 🐎"),
    ("text", "a\0b", REFUSED),
    ("text", b"\xff", REFUSED),
    ("text", b"abc", "abc"),
    ("text", 12, "12"),
    ("character varying(3)", "äöü", "äöü"),
    ("character varying(3)", "abcd", REFUSED),
    ("character varying", "x" * 5000, "x" * 5000),
    ("bytea", b"", "\\x"),
    ("bytea", bytes(range(256)), "\\x" + bytes(range(256)).hex()),
    ("bytea", "ä", "\\xc3a4"),
    ("date", date(2024, 2, 29), "2024-02-29"),
    ("date", "2024-02-29", "2024-02-29"),
    ("date", "2023-02-29", REFUSED),
    ("date", date(1, 1, 1), "0001-01-01"),
    ("date", pa.scalar(-2440588, pa.date32()), "4714-11-24 BC"),
    ("date", pa.scalar(-2440589, pa.date32()), REFUSED),
    ("date", pa.scalar(2145042905, pa.date32()), "5874897-12-31"),
    ("date", pa.scalar(2145042906, pa.date32()), REFUSED),
    ("date", pa.scalar(-719163, pa.date32()), "0001-12-31 BC"),
    ("date", pa.scalar(2932897, pa.date32()), "10000-01-01"),
    ("date", datetime(2024, 1, 1, 12, tzinfo=UTC), REFUSED),
    ("timestamp with time zone", datetime(2024, 2, 29, 1, 2, 3, 456789, UTC), "2024-02-29 01:02:03.456789+00"),
    ("timestamp with time zone", "2024-02-29T01:02:03+02:00", "2024-02-28 23:02:03+00"),
    ("timestamp with time zone", "2024-02-29T01:02:03", REFUSED),
    ("timestamp with time zone", "infinity", REFUSED),
    ("timestamp with time zone", FIRST_MOMENT, "4714-11-24 00:00:00+00 BC"),
    ("timestamp with time zone", TOO_EARLY, REFUSED),
    ("timestamp with time zone", pa.scalar(2**63 - 1, pa.timestamp("us", "UTC")), "294247-01-10 04:00:54.775807+00"),
    ("timestamp with time zone", pa.scalar(2**60, pa.timestamp("s", "UTC")), REFUSED),
    ("timestamp with time zone", pa.scalar(1001, pa.timestamp("ns", "UTC")), REFUSED),
    ("timestamp without time zone", datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), "2024-02-29 01:02:03"),
    ("timestamp without time zone", "2024-02-29 01:02:03.5", "2024-02-29 01:02:03.5"),
    ("timestamp without time zone", "2024-02-29T01:02:03Z", REFUSED),
    ("timestamp without time zone", pa.scalar(-62135596800000001, pa.timestamp("us")), "0001-12-31 23:59:59.999999 BC"),
    ("timestamp without time zone", pa.scalar(2145042905, pa.date32()), REFUSED),
    ("timestamp without time zone", date(2024, 2, 29), "2024-02-29 00:00:00"),
    ("time without time zone", time(23, 59, 59, 999999), "23:59:59.999999"),
    ("time without time zone", "10:05", "10:05:00"),
    ("time without time zone", "10:05:03.25", "10:05:03.25"),
    ("time without time zone", "24:00:00", REFUSED),
    ("time without time zone", "10:65", REFUSED),
    ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("uuid", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("uuid", "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1", REFUSED),
    ("uuid", "{a0eebc999c0b4ef8bb6d6bb9bd380a11", REFUSED),
    ("uuid", "", REFUSED),
    ("inet", "10.0.0.1", "10.0.0.1/32"),
    ("inet", "10.0.0.1/8", "10.0.0.1/8"),
    ("inet", "::ffff:10.0.0.1", "::ffff:10.0.0.1/128"),
    ("inet", "2001:db8::1/64", "2001:db8::1/64"),
    ("inet", "fe80::1%eth0", REFUSED),
    ("inet", "10.0.0.1/255.0.0.0", REFUSED),
    ("inet", "10.0.0.256", REFUSED),
    ("inet", "crawler.example.com", REFUSED),
    ("cidr", "10.0.0.0/8", "10.0.0.0/8"),
    ("cidr", "10.0.0.1", "10.0.0.1/32"),
    ("cidr", "10.0.0.1/8", REFUSED),
    ("macaddr", "08:00:2b:01:02:03", "08:00:2b:01:02:03"),
    ("macaddr", "08-00-2B-01-02-03", "08:00:2b:01:02:03"),
    ("macaddr", "0800.2b01.0203", "08:00:2b:01:02:03"),
    ("macaddr", "0800-2b01-0203", "08:00:2b:01:02:03"),
    ("macaddr", "08002b:010203", "08:00:2b:01:02:03"),
    ("macaddr", "08002b-010203", "08:00:2b:01:02:03"),
    ("macaddr", "08002b010203", "08:00:2b:01:02:03"),
    ("macaddr", "08:00:2b:01:02", REFUSED),
    ("json", '{"a": [1, 2.50, "x"], "a": null}', '{"a": [1, 2.50, "x"], "a": null}'),
    ("json", '"\\u0000"', '"\\u0000"'),
    ("json", "{'a': 1}", REFUSED),
    ("json", "NaN", REFUSED),
    ("json", "", REFUSED),
    ("json", '{"a":1} {}', REFUSED),
    ("json", '"a\tb"', REFUSED),
    ("json", DEEP, REFUSED),
    ("json", "1e200000", "1e200000"),
    ("jsonb", '{"b": 1, "a": 2.50}', '{"a": 2.50, "b": 1}'),
    ("jsonb", '"\\ud83d\\ude00"', '"😀"'),
    ("jsonb", '"\\u0000"', REFUSED),
    ("jsonb", '{"\\u0000": 1}', REFUSED),
    ("jsonb", '"\\ud800"', REFUSED),
    ("jsonb", "1e200000", REFUSED),
    ("jsonb", "1e-20000", REFUSED),
    ("jsonb", "null", "null"),
    ("interval", "1 day 02:03:04.5", "1 day 02:03:04.5"),
    ("interval", "1 year 2 mons -3 days +04:05:06", "1 year 2 mons -3 days +04:05:06"),
    ("interval", "P1Y2M3DT4H5M6.7S", "1 year 2 mons 3 days 04:05:06.7"),
    ("interval", "-04:05", "-04:05:00"),
    ("interval", "90 minutes", "01:30:00"),
    ("interval", "1.5 seconds", "00:00:01.5"),
    ("interval", "P", REFUSED),
    ("interval", "1 fortnight", REFUSED),
    ("interval", "1 day 2 days", REFUSED),
    ("interval", "99999999999 years", REFUSED),
    ("interval", "soon", REFUSED),
    ("interval", "", REFUSED),
]  # fmt: skip


def _id(case: Any) -> str:
    if isinstance(case, pa.Scalar):  # Python has no dates beyond the year 9999
        return str(case.type)
    return "refused" if case is REFUSED else ascii(case)[:40]


def _one(value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, 1)
    return pa.array([value])


@pytest.fixture(scope="module")
def cursor(new_database: Callable[[], str]) -> Iterator[Any]:
    connection = psycopg2.connect(new_database())
    cursor = connection.cursor()
    cursor.execute("SET timezone = 'UTC'; SET intervalstyle = 'postgres'; SET client_encoding = 'UTF8'")
    yield cursor
    connection.rollback()
    connection.close()


def _copied(cursor: Any, columns: dict[str, str], batch: pa.RecordBatch, shown: str) -> list[Any]:
    cursor.execute("DROP TABLE IF EXISTS pg_temp.matrix")
    declared = ", ".join(f"{name} {text}" for name, text in columns.items())
    cursor.execute(f"CREATE TEMP TABLE matrix (at serial, {declared})")
    encoder = CopyEncoder(columns)
    data = encoder.begin() + encoder.encode(batch) + encoder.end()
    cursor.copy_expert(
        f"COPY pg_temp.matrix ({', '.join(columns)}) FROM STDIN WITH ({encoder.copy_options})",
        io.BytesIO(data),
    )
    cursor.execute(f"SELECT {shown}::text FROM pg_temp.matrix ORDER BY at")
    return [row[0] for row in cursor.fetchall()]


def _carriers(text: str) -> list[Carrier]:
    return [Carrier.BINARY, Carrier.TEXT] if column_type(text).carrier is Carrier.BINARY else [Carrier.TEXT]


@pytest.mark.parametrize(("text", "value", "expected"), MATRIX, ids=_id)
def test_a_value_is_refused_or_read_back_as_it_was(cursor: Any, text: str, value: Any, expected: Any) -> None:
    cast = cast_column("v", _one(value), column_type(text))

    if expected is REFUSED:
        assert list(cast.problems) == [0]
        assert cast.problems[0].startswith("v: ")
        assert cast.array.null_count == 1
        return
    assert cast.problems == {}
    for carrier in _carriers(text):
        columns = {"v": text}
        arrays = [cast.array]
        if carrier is Carrier.TEXT and len(_carriers(text)) == 2:
            columns["other"] = "uuid"  # carried as text, and takes the whole table along
            arrays.append(pa.nulls(1, pa.string()))
        assert CopyEncoder(columns).carrier is carrier
        batch = pa.RecordBatch.from_arrays(arrays, schema=record_schema(columns))

        assert _copied(cursor, columns, batch, "v") == [expected], carrier


@pytest.mark.parametrize("text", [*SUPPORTED, "numeric(12,2)", "numeric(60,4)", "character varying(5)"])
def test_null_stays_null_in_either_carrier(cursor: Any, text: str) -> None:
    for extra in ({}, {"other": "uuid"}):
        columns = {"v": text} | extra
        batch = pa.RecordBatch.from_arrays(
            [cast_column("v", pa.nulls(2), column_type(t)).array for t in columns.values()],
            schema=record_schema(columns),
        )

        assert _copied(cursor, columns, batch, "v") == [None, None]


def test_the_matrix_has_every_supported_type() -> None:
    assert {column_type(text).name for text, _, _ in MATRIX} == set(SUPPORTED)


def test_null_and_the_empty_text_are_told_apart_in_either_carrier(cursor: Any) -> None:
    for extra in ({}, {"other": "json"}):
        columns = {"v": "text"} | extra
        arrays = [pa.array(["", None, "x"]), *(pa.nulls(3, pa.string()) for _ in extra)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=record_schema(columns))

        assert _copied(cursor, columns, batch, "v") == ["", None, "x"]


def test_what_the_matrix_refuses_as_text_postgresql_refuses_or_alters(cursor: Any) -> None:
    """Of the texts refused, these few PostgreSQL would have taken as they are: the price of being careful."""
    too_careful = []
    for text, value, expected in MATRIX:
        if expected is not REFUSED or not isinstance(value, str) or "\0" in value:
            continue
        cursor.execute("SAVEPOINT attempt")
        try:
            cursor.execute(f"SELECT cast(cast(%s AS text) AS {text})::text", (value,))
            back = cursor.fetchone()[0]
            if back.lower() == value.lower():
                too_careful.append((text, value[:20]))
        except psycopg2.Error:
            cursor.execute("ROLLBACK TO attempt")

    assert too_careful == [
        ("numeric(12,2)", "NaN"),
        ("timestamp with time zone", "infinity"),
        ("time without time zone", "24:00:00"),
        ("json", DEEP[:20]),
    ]
