"""Avro with a real schema registry: what is written, what is read, and what becomes of records that cannot be read."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from epochline import Avro, KafkaSource, Pipeline, PostgresTable
from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.outbox import TopicEncoder
from epochline.arrow.formats.parsers import build_parser
from epochline.arrow.stage.encoding import CopyEncoder
from epochline.config.registry import Registries, with_header
from epochline.coordinator import abort
from epochline.declare.topic import KafkaTopic
from epochline.errors import ConfigurationError, SinkError, SourceUnavailableError
from epochline.protocol.offsets import TopicPartition
from tests.contract.worlds import orders
from tests.databases import holding
from tests.integration.in_process import over_records
from tests.integration.registry import SchemaRegistry
from tests.ports import free_port
from tests.reading import source_batch

REGISTRY = "epochline_registry"
A = {"a": "text"}
PERSON = {"id": "bigint", "name": "text"}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    one = SchemaRegistry(free_port(), tmp_path_factory.mktemp("registry"))
    try:
        one.start()
        yield one
    finally:
        one.stop()


@pytest.fixture(scope="module")
def client(server: SchemaRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": server.url})


@pytest.fixture(autouse=True)
def known(server: SchemaRegistry) -> None:
    Registries({REGISTRY: {"url": server.url}}).install()


def subject() -> str:
    return f"s{next(_numbers)}-value"


def record(*fields: tuple[str, Any], name: str = "r") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


PERSON_SCHEMA = record(("id", "long"), ("name", "string"))


def registered(client: SchemaRegistryClient, schema: Any, **more: Any) -> int:
    return client.register_schema(subject(), Schema(json.dumps(schema), "AVRO", **more))


def written(schema_id: int, schema: Any, value: Any) -> bytes:
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return with_header(schema_id, body.getvalue())


def batch(*values: bytes | None, keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    tp = TopicPartition(topic="t", partition=0, topic_id="id")
    return source_batch(tp, range(len(values)), values, key=keys or [None] * len(values))


def parsed(columns: dict[str, str], source: pa.RecordBatch, **declared: Any) -> tuple[pa.RecordBatch, list[str | None]]:
    parse, sink = Avro(columns=columns, **declared), PostgresTable(table="t")
    rows = build_parser(Pipeline(name="p", source=KafkaSource(topics="t"), parse=parse, sinks=sink).spec)(source)
    kept = [name for name in rows.schema.names if name != "_error"]
    for name, kind in columns.items():  # not cast again, because it would change nothing
        again = cast_column(name, rows.column(name), column_type(kind))
        assert (again.problems, str(again.array)) == ({}, str(rows.column(name)))
    return rows.select(kept), rows.column("_error").to_pylist()


def read(columns: dict[str, str], source: pa.RecordBatch) -> tuple[list[dict[str, Any]], list[str | None]]:
    rows, errors = parsed(columns, source)
    return rows.to_pylist(), errors


def encoder(value: Avro, **declared: Any) -> TopicEncoder:
    return TopicEncoder(KafkaTopic(topic=f"out{next(_numbers)}", value=value, **declared).outbox("p").spec)


def rows(columns: dict[str, str], *given: dict[str, Any]) -> pa.RecordBatch:
    cast = {
        name: cast_column(name, pa.array([row.get(name) for row in given]), column_type(kind))
        for name, kind in columns.items()
    }
    assert not any(one.problems for one in cast.values())
    return pa.record_batch({name: one.array for name, one in cast.items()})


EVERY = {
    "ok": "boolean", "small": "smallint", "i": "integer", "big": "bigint", "r": "real", "d": "double precision",
    "t": "text", "v": "varchar(10)", "b": "bytea", "n": "numeric", "p": "numeric(20,3)", "day": "date",
    "clock": "time", "at": "timestamptz", "local": "timestamp", "doc": "jsonb", "ref": "uuid", "ip": "inet",
}  # fmt: skip
FULL = {
    "ok": True, "small": -(2**15), "i": 2**31 - 1, "big": -(2**63), "r": 0.5, "d": float("nan"), "t": "ü\n", "v": "",
    "b": b"\0\xff", "n": "123456789012345678901234567890.10", "p": Decimal("-12345678901234567.891"),
    "day": date(1, 1, 1), "clock": time(23, 59, 59, 999999), "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    "local": datetime(1900, 1, 1, tzinfo=UTC).replace(tzinfo=None), "doc": '{"a":[1.50,null]}', "ref": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "ip": "10.0.0.1/8",
}  # fmt: skip


def test_a_row_that_is_written_is_read_back_as_the_same_row() -> None:
    given = rows(EVERY, FULL, {})

    out, problems = encoder(Avro(columns=EVERY)).encode(given)
    back, errors = read(EVERY, batch(*out.column("value").to_pylist()))

    assert (problems, errors) == ({}, [None, None])
    assert repr(back) == repr(given.to_pylist())  # NaN is equal to nothing


def test_a_schema_is_registered_once_under_the_topic_or_the_declared_subject(client: SchemaRegistryClient) -> None:
    named = subject()
    derived, declared = encoder(Avro(columns=A)), encoder(Avro(columns=A, subject=named))
    before = set(client.get_subjects())

    for one in (derived, declared, derived):
        one.encode(rows(A, {"a": "x"}))

    (own,) = set(client.get_subjects()) - before - {named}
    assert re.fullmatch("out.*-value", own)
    assert [client.get_versions(one) for one in (named, own)] == [[1], [1]]


def test_a_row_that_a_schema_cannot_hold_is_its_own_problem() -> None:
    """A declared schema, and a year that Avro has no number for."""
    enum = {"type": "enum", "name": "size", "symbols": ["S", "L"]}
    number = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    schema = record(("a", "string"), ("n", number), ("e", enum))
    columns = {"a": "text", "n": "numeric(5,2)", "e": "text"}
    sound = {"a": "x", "n": Decimal("1.50"), "e": "S"}

    given = rows(columns, sound, {**sound, "a": None}, {"a": "y", "n": Decimal("12.50"), "e": "M"})
    out, problems = encoder(Avro(columns=columns, schema_=schema), key="a").encode(given)

    assert list(problems) == [1, 2]
    assert out.column("key").to_pylist() == [b"x", None, None]
    assert read(columns, batch(out.column("value")[0].as_py()))[0] == [sound]

    days = pa.record_batch({"day": pa.array([0, 3_000_000, None], pa.int32()).cast(pa.date32())})
    out, problems = encoder(Avro(columns={"day": "date"})).encode(days)
    assert list(problems) == [1]
    assert [value is None for value in out.column("value").to_pylist()] == [False, True, False]


def logical(base: str, meaning: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": meaning, **more}


def unscaled(number: int, size: int | None = None) -> bytes:
    return number.to_bytes(size or (number.bit_length() + 8) // 8, "big", signed=True)


def dec(precision: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


PADDED = logical("fixed", "decimal", name="padded", size=20, precision=4, scale=2)
IDENTITY = logical("fixed", "uuid", name="identity", size=16)
AGE = logical("fixed", "duration", name="age", size=12)
REF = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
MILLIS, MICROS, NANOS = (logical("long", f"timestamp-{unit}") for unit in ("millis", "micros", "nanos"))
YEAR_11476, FIRST = 300_000_000_000_000_000, -210_866_803_200_000_000

VARIABLE = record(("scale", "int"), ("value", "bytes"), name="variable")

# Avro's type, the plain value in the record, the column's type, and what PostgreSQL shows of the row or the reason.
LOGICAL: list[tuple[Any, Any, str, str]] = [
    (dec(4, 2), unscaled(123456789), "numeric(12,2)", "1234567.89"),
    (dec(4, 2), unscaled(123449), "numeric", "1234.49"),
    (dec(4, 2), unscaled(-1, 30), "numeric(12,2)", "-0.01"),
    (dec(4, 2), b"", "numeric(12,2)", "!no bytes"),
    (dec(4, 2), unscaled(123456789), "numeric(5,2)", "!"),
    (dec(4, 2), unscaled(-(10**200) - 1), "numeric", "-1" + "0" * 198 + ".01"),
    (dec(4, 2), b"\x7f" * 70_000, "numeric", "!out of range"),
    (dec(38, 38), unscaled(1), "numeric", "0." + "0" * 37 + "1"),
    (dec(10, 4), unscaled(12345), "numeric(12,2)", "!"),
    (dec(4, 2), unscaled(1234), "text", "!not a text"),
    (PADDED, unscaled(123456789, 20), "numeric", "1234567.89"),
    (PADDED, unscaled(-(2**159), 20), "numeric", f"{-(2**159) // 100 + 1}.{2**159 % 100:02d}"),
    # What the specification calls invalid is no logical type: the bytes are bytes.
    (dec(0, 0), unscaled(5), "numeric", "!not a number"),
    (dec(0, 0), unscaled(5), "bytea", "\\x05"),
    (dec(2, 4), unscaled(5), "bytea", "\\x05"),
    (dec(4, -2), unscaled(5), "bytea", "\\x05"),
    (logical("int", "timestamp-micros"), 5, "integer", "5"),
    (logical("long", "unheard-of"), 5, "bigint", "5"),
    (logical("fixed", "uuid", name="odd", size=4), b"abcd", "bytea", "\\x61626364"),
    (logical("int", "date"), -2_440_588, "date", "4714-11-24 BC"),
    (logical("int", "date"), 2_145_042_905, "date", "5874897-12-31"),
    (logical("int", "date"), -2_440_589, "date", "!outside 4713 BC to 5874897 AD"),
    (logical("int", "date"), -(2**31), "date", "!outside 4713 BC to 5874897 AD"),
    (logical("int", "date"), -(2**31) + 10_957, "date", "!outside 4713 BC to 5874897 AD"),
    (logical("int", "date"), 5, "integer", "!not an integer"),
    (MICROS, YEAR_11476, "timestamptz", "11476-08-15 05:20:00+00"),
    (MICROS, FIRST, "timestamptz", "4714-11-24 00:00:00+00 BC"),
    (MICROS, FIRST - 1, "timestamptz", "!outside 4713 BC to 294276 AD"),
    (MICROS, 2**63 - 1, "timestamptz", "294247-01-10 04:00:54.775807+00"),
    (MICROS, -(2**63), "timestamptz", "!outside 4713 BC to 294276 AD"),
    (MICROS, -(2**63) + 946_684_800_000_000, "timestamp", "!outside 4713 BC to 294276 AD"),
    (MILLIS, 9_224_318_015_999_999, "timestamptz", "294276-12-31 23:59:59.999+00"),
    (MILLIS, 9_224_318_016_000_000, "timestamptz", "!outside 4713 BC to 294276 AD"),
    (MILLIS, -1, "timestamp", "1969-12-31 23:59:59.999"),
    (NANOS, 2**63 - 808, "timestamptz", "2262-04-11 23:47:16.854775+00"),
    (NANOS, 1_001, "timestamptz", "!more than six digits of a second"),
    (logical("long", "local-timestamp-millis"), 1, "timestamp", "1970-01-01 00:00:00.001"),
    (logical("long", "local-timestamp-micros"), YEAR_11476, "timestamp", "11476-08-15 05:20:00"),
    (logical("long", "local-timestamp-nanos"), -1_000, "timestamp", "1969-12-31 23:59:59.999999"),
    (logical("int", "time-millis"), 86_399_999, "time", "23:59:59.999"),
    (logical("int", "time-millis"), 86_400_000, "time", "24:00:00"),
    (logical("int", "time-millis"), -1, "time", "!not within a day"),
    (logical("long", "time-micros"), 86_400_000_001, "time", "!not within a day"),
    (logical("string", "uuid"), REF, "uuid", REF),
    (logical("string", "uuid"), "soon", "text", "soon"),
    (logical("string", "uuid"), "soon", "uuid", "!not a uuid"),
    (IDENTITY, bytes.fromhex(REF.replace("-", "")), "uuid", REF),
    (AGE, b"\1\0\0\0\2\0\0\0\5\0\0\0", "interval", "1 mon 2 days 00:00:00.005"),
    (["null", "string", MILLIS, dec(4, 2)], unscaled(123456789), "numeric", "1234567.89"),
    (["null", "string", MILLIS, dec(4, 2)], YEAR_11476 // 1000, "timestamptz", "11476-08-15 05:20:00+00"),
    ("string", "2024-02-29T00:00:00.123456789Z", "timestamptz", "!more than six digits of a second"),
    ("string", "2024-02-29T00:00:00.123456000z", "timestamptz", "2024-02-29 00:00:00.123456+00"),
    ("string", "0044-03-15T00:00:00 BC", "timestamp", "0044-03-15 00:00:00 BC"),
    ("string", "2024-02-29T00:00:00", "timestamptz", "!no offset from UTC"),
    ({"type": "array", "items": logical("int", "time-millis")}, [86_400_001], "json", "!a time that is not within a day"),
    ({"type": "array", "items": logical("long", "time-micros")}, [-1], "json", "!a time that is not within a day"),
    ("string", "2024-02-29", "date", "2024-02-29"),
    ("string", "infinity", "date", "infinity"),
    ("string", "2024-02-30", "date", "!not a date"),
    ("string", "24:00:00", "time", "24:00:00"),
    ("string", "23:59:60", "time", "!not a time of day"),
    ("string", "NaN", "numeric", "NaN"),
    # A decimal of a column without a scale, and times as plain integers: what Debezium sends.
    (VARIABLE, {"scale": 3, "value": unscaled(-1234567)}, "numeric(12,3)", "-1234.567"),
    (VARIABLE, {"scale": -2, "value": unscaled(15)}, "numeric", "1500"),
    (VARIABLE, {"scale": 3, "value": unscaled(1)}, "numeric(12,2)", "!"),
    (VARIABLE, {"scale": 200_000, "value": unscaled(1)}, "numeric", "!out of range"),
    (VARIABLE, {"scale": 2, "value": b""}, "numeric", "!no bytes"),
    ("long", 1_700_000_000_123_456, "timestamptz", "!not a timestamp"),
    ("long", 1_700_000_000_123_456, "timestamptz in us", "2023-11-14 22:13:20.123456+00"),
    ("long", YEAR_11476, "timestamp in us", "11476-08-15 05:20:00"),
    ("long", 2**63 - 1, "timestamp in ms", "!outside 4713 BC to 294276 AD"),
    ("long", 1_001, "timestamptz in ns", "!more than six digits of a second"),
    ("int", 19_675, "date in days", "2023-11-14"),
    ("int", 86_400_001, "time in ms", "!not within a day"),
    ("double", 1.5, "timestamp in s", "!not a timestamp"),
    ("boolean", True, "date in days", "!not a date"),
    (MILLIS, 1, "timestamptz in s", "1970-01-01 00:00:00.001+00"),
    ("string", "2024-02-29T00:00:00Z", "timestamptz in s", "2024-02-29 00:00:00+00"),
    ("long", 2**53 + 1, "double precision", "!more digits than a floating-point number keeps"),
    ("long", 2**53, "double precision", "9.007199254740992e+15"),
    ({"type": "enum", "name": "size", "symbols": ["S", "L"]}, "L", "text", "L"),
    ({"type": "array", "items": MICROS}, [YEAR_11476, FIRST, 0], "jsonb",
     '["+11476-08-15T05:20:00+00:00","-4713-11-24T00:00:00+00:00","1970-01-01T00:00:00+00:00"]'),
    ({"type": "map", "values": dec(4, 2)}, {"a": unscaled(123456789)}, "json", '{"a":"1234567.89"}'),
    (record(("at", logical("long", "local-timestamp-millis")), ("day", logical("int", "date")),
            ("clock", logical("int", "time-millis")), name="inner"),
     {"at": 1, "day": 0, "clock": 1}, "json", '{"at":"1970-01-01T00:00:00.001000","day":"1970-01-01","clock":"00:00:00.001000"}'),
]  # fmt: skip


def bare(schema: Any) -> Any:
    """A schema without logical types: what is written with it are the plain values."""
    if isinstance(schema, list):
        return [bare(one) for one in schema]
    return {k: bare(v) for k, v in schema.items() if k != "logicalType"} if isinstance(schema, dict) else schema


@pytest.mark.parametrize(("kind", "value", "column", "shown"), LOGICAL, ids=lambda case: ascii(case)[:40])
def test_a_logical_value_is_stored_exactly_or_refused_for_its_true_reason(
    client: SchemaRegistryClient, cursor: Any, kind: Any, value: Any, column: str, shown: str
) -> None:
    """Whatever the schema says of itself: no value is rounded, wrapped or cut."""
    schema = record(("v", kind), name=f"r{next(_numbers)}")
    schema_id = registered(client, schema)
    column, _, unit = column.partition(" in ")

    found, (error,) = parsed(
        {"v": column}, batch(written(schema_id, bare(schema), {"v": value})), unit={"v": unit} if unit else {}
    )

    if shown.startswith("!"):
        assert error is not None
        assert shown[1:] in error
        assert "not Avro" not in error
        return
    assert error is None
    assert stored(cursor, {"v": column}, found) == [shown]


@pytest.fixture(scope="module")
def cursor(new_database: Callable[[], str]) -> Iterator[Any]:
    with holding(new_database(), "SET TimeZone = 'UTC'") as cursor:
        yield cursor


def stored(cursor: Any, columns: dict[str, str], found: pa.RecordBatch) -> list[str]:
    """What PostgreSQL shows of the column ``v``."""
    codec = CopyEncoder(columns)
    data = BytesIO(codec.begin() + codec.encode(found) + codec.end())
    cursor.execute(f"DROP TABLE IF EXISTS pg_temp.one; CREATE TEMP TABLE one (v {columns['v']})")
    cursor.copy_expert(f"COPY pg_temp.one FROM STDIN WITH ({codec.copy_options})", data)
    cursor.execute("SELECT v::text FROM pg_temp.one")
    return [text.replace('", "', '","') for (text,) in cursor.fetchall()]


P = "__debezium_unavailable_value"
MD5 = hashlib.md5(P.encode(), usedforsecurity=False).digest()
INNER = record(("a", "int"), ("b", "string"), name="inner")
MAP, ARRAY, INTEGERS = {"type": "map", "values": "string"}, *({"type": "array", "items": i} for i in ("string", "int"))
# Avro's type, the value in the record, the column's type, and whether the column keeps its value.
PLACEHOLDERS: list[tuple[Any, Any, str, bool]] = [
    (["null", "string"], P, "text", True),
    ("string", P, "timestamptz", True),
    ("string", f'{{"{P}":"{P}"}}', "jsonb", True),
    ("string", str(UUID(bytes=MD5, version=3)), "uuid", True),
    ("bytes", P.encode(), "bytea", True),
    (dec(64, 2), P.encode(), "numeric(12,2)", True),
    (IDENTITY, UUID(bytes=MD5, version=3).bytes, "uuid", True),
    (ARRAY, [P], "text[]", True),
    ({"type": "array", "items": "bytes"}, [P.encode()], "bytea[]", True),
    (INTEGERS, list(P.encode()), "int[]", True),
    ({"type": "array", "items": logical("int", "date")}, list(P.encode()), "date[]", True),
    ({"type": "array", "items": "double"}, list(P.encode()), "jsonb", True),
    (MAP, {P: P}, "jsonb", True),
    (ARRAY, [P, "x"], "text[]", False),
    (MAP, {"a": P}, "jsonb", False),
    (INNER, {"a": 1, "b": P}, "jsonb", False),
    ({"type": "array", "items": INNER}, [{"a": 1, "b": P}], "json", False),
]


@pytest.mark.parametrize(("kind", "value", "column", "kept"), PLACEHOLDERS, ids=lambda case: ascii(case)[:40])
def test_a_placeholder_of_debezium_leaves_the_column_out_or_is_a_bad_record(
    client: SchemaRegistryClient, kind: Any, value: Any, column: str, kept: bool
) -> None:
    """In each form that Debezium has for a type; never a value of the column. Without the declaration it is a value."""
    schema = record(("k", "string"), ("v", kind), name=f"r{next(_numbers)}")
    columns = {"k": "text", "v": column}
    value = written(registered(client, schema), bare(schema), {"k": "a", "v": value})

    found, (error,) = parsed(columns, batch(value), unavailable=P)
    plain, _ = parsed(columns, batch(value))

    assert "_unavailable" not in plain.schema.names
    if kept:
        assert error is None
        assert found.to_pylist() == [{"k": "a", "v": None, "_unavailable": ["v"]}]
    else:
        assert str(error).startswith("v: the value holds the placeholder")


def test_a_tombstone_is_no_avro_record() -> None:
    given = rows(A, {"a": "x"}).append_column("_deleted", pa.array([True]))

    out, problems = encoder(Avro(columns=A), key="a").encode(given)

    assert (out.column("key").to_pylist(), out.column("value").to_pylist(), problems) == ([b"x"], [None], {})


def test_a_schema_that_the_registry_refuses_is_an_error_that_no_repeat_mends(client: SchemaRegistryClient) -> None:
    named = subject()
    client.register_schema(named, Schema(json.dumps(record(("a", "int"))), "AVRO"))
    client.set_compatibility(named, level="BACKWARD")

    with pytest.raises(SinkError, match=named) as raised:
        encoder(Avro(columns=A, subject=named)).encode(rows(A, {"a": "x"}))

    assert not raised.value.retryable


def test_records_of_several_schemas_are_read_by_the_names_of_their_fields(client: SchemaRegistryClient) -> None:
    old, new = record(("id", "int"), ("gone", "string")), record(("name", "string"), ("id", "long"), ("more", "int"))
    first, second = registered(client, old), registered(client, new)

    values = [written(first, old, {"id": number, "gone": "x"}) for number in (1, 3)]
    values.insert(1, written(second, new, {"id": 2**40, "name": "n", "more": 1}))
    found, errors = read(PERSON, batch(*values))

    assert errors == [None] * 3
    assert found == [{"id": 1, "name": None}, {"id": 2**40, "name": "n"}, {"id": 3, "name": None}]


def test_a_schema_that_refers_to_another_subject_is_read(client: SchemaRegistryClient) -> None:
    inner = record(("a", "int"), name="inner")
    inner_subject = subject()
    client.register_schema(inner_subject, Schema(json.dumps(inner), "AVRO"))
    outer = record(("one", "inner"), ("x", "string"), name="outer")
    schema_id = registered(client, outer, references=[SchemaReference("inner", inner_subject, 1)])
    value = written(schema_id, record(("one", inner), ("x", "string"), name="outer"), {"one": {"a": 5}, "x": "y"})

    assert read({"one": "jsonb", "x": "text"}, batch(value)) == ([{"one": '{"a":5}', "x": "y"}], [None])


def test_what_cannot_be_read_is_its_records_error_and_the_others_are_rows(client: SchemaRegistryClient) -> None:
    schema_id = registered(client, PERSON_SCHEMA)
    primitive = registered(client, "string")
    draft = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
    other = client.register_schema(subject(), Schema(draft, "JSON"))
    good = written(schema_id, PERSON_SCHEMA, {"id": 1, "name": "canary"})
    huge = written(schema_id, PERSON_SCHEMA, {"id": 2**40, "name": "n"})

    cases = [
        (good, None),
        (b"", "too short"),
        (b"\0\0\0", "too short"),
        (b"\1" + good[1:], "first byte is not 0"),
        (with_header(999_999, b""), "the registry has no schema 999999"),
        (with_header(999_999, b"x"), "the registry has no schema 999999"),
        (good[:-1], f"not Avro of schema {schema_id}"),
        (good + b"x", "1 bytes are left over"),
        (with_header(schema_id, b"\x02\x04\xff\xfe"), f"not Avro of schema {schema_id}"),
        (with_header(schema_id, b"\x02" + b"\xff" * 9 + b"\x01"), f"not Avro of schema {schema_id}"),
        (written(primitive, "string", "x"), "is not of a record"),
        (with_header(other, b"{}"), "is JSON, not Avro"),
        (huge, "does not fit integer"),
        (good, None),
    ]
    found, errors = read({"id": "integer", "name": "text"}, batch(*(value for value, _ in cases)))

    for error, (_, reason) in zip(errors, cases, strict=True):
        assert (error is None) == (reason is None)
        assert reason is None or reason in str(error)
        assert "canary" not in str(error)
    assert [row for row, error in zip(found, errors, strict=True) if error is None] == [{"id": 1, "name": "canary"}] * 2


@pytest.mark.parametrize("depth", [100, 1_000, 200_000])
def test_a_record_of_any_depth_ends_no_process(client: SchemaRegistryClient, depth: int) -> None:
    """The reader in C has no limit but the stack of the process: one record would kill each attempt."""
    schema_id = registered(client, record(("n", ["null", "r"])))

    _, (error,) = read({"n": "jsonb"}, batch(with_header(schema_id, b"\2" * depth + b"\0")))

    assert (error is None) if depth == 100 else ("nested deeper than 256" in str(error))


def test_a_tombstone_takes_its_columns_from_an_avro_key_and_from_no_other(client: SchemaRegistryClient) -> None:
    schema = record(("id", "long"))
    key = written(registered(client, schema), schema, {"id": 7})

    found, errors = read({"id": "bigint"}, batch(None, None, None, None, keys=[key, None, b"7", b"\0" * 8]))

    assert errors == [None] * 4
    assert found == [{"id": 7}, {"id": None}, {"id": None}, {"id": None}]


def test_a_schema_that_is_registered_later_is_found_by_the_next_task(client: SchemaRegistryClient) -> None:
    schema = record(("id", "long"), ("late", "int"))
    ahead = registered(client, record(("something", "int"))) + 1
    value = written(ahead, schema, {"id": 1, "late": 2})
    before = read({"id": "bigint"}, batch(value))[1]

    assert registered(client, schema) == ahead

    assert before == [f"the registry has no schema {ahead}"]
    assert read({"id": "bigint"}, batch(value)) == ([{"id": 1}], [None])


def test_a_registry_that_is_down_fails_the_attempt_retryably_and_spoils_no_record(
    dsn: str, client: SchemaRegistryClient, server: SchemaRegistry
) -> None:
    """A registry without an answer is not the record's fault: no quarantine, and the next attempt gives every row."""
    sinks = [PostgresTable(table="avro_t", columns=PERSON)]
    pipeline = orders(name="avro", source=KafkaSource(topics="avro"), parse=Avro(columns=PERSON), sinks=sinks)
    value = written(registered(client, PERSON_SCHEMA), PERSON_SCHEMA, {"id": 1, "name": "x"})
    one = over_records(dsn, pipeline, [value])
    planned, run = one.planned()
    ticket = one.attempt(planned, run)
    Registries({REGISTRY: {"url": f"http://127.0.0.1:{free_port()}", "login": "me", "password": "canary"}}).install()

    with pytest.raises(SourceUnavailableError, match=REGISTRY) as raised:
        one.stage(planned, ticket)
    abort(one.ledger, one.pipeline.name, 1, run, reason="the registry is down")
    Registries({REGISTRY: {"url": server.url}}).install()
    one.epoch()

    assert raised.value.retryable
    assert "canary" not in str(raised.value)
    assert one.sql("SELECT id, name FROM avro_t") == [(1, "x")]
    assert one.sql("SELECT count(*) FROM epochline.quarantine") == [(0,)]


def test_an_address_that_is_no_registry_is_an_error_of_the_connection(server: SchemaRegistry) -> None:
    """Were it taken for an unknown schema, one wrong path would quarantine a whole topic."""
    Registries({REGISTRY: {"url": server.url.replace("ccompat", "elsewhere")}}).install()

    with pytest.raises(ConfigurationError, match="HTTP 404"):
        read({"id": "bigint"}, batch(with_header(1, b"")))
