"""What a pipeline makes of values, as its author's tests ask it: defaults, placeholders and frames of JSON, and texts."""

import hashlib
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from epochline import Bytes, Files, Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Regex, Text
from epochline.arrow.formats import json_values
from epochline.declare.parsers import ReadyMadeParser
from epochline.errors import DeclarationError
from epochline.testing import parse_values
from tests.declaring import pipeline
from tests.unit.flows import parse

COLUMNS = {"id": "bigint", "amount": "numeric(12,2)"}


def orders(bad_records: str = "quarantine", **table: Any) -> Pipeline:
    sink = PostgresTable(table="orders", columns=COLUMNS, **table)
    return pipeline(sink, parse=Json(columns=COLUMNS), bad_records=bad_records)


def test_rows_have_their_values_and_place_and_refused_records_their_reason() -> None:
    parsed = parse_values(orders(), [b'{"id": 1, "amount": 12.5}', b"no order", b'{"id": 3}'])

    assert parsed.read == 3
    assert [(row["id"], row["amount"], row["_offset"]) for row in parsed.rows] == [
        (1, Decimal("12.50"), 0),
        (3, None, 2),
    ]
    assert [(one.offset, one.reason) for one in parsed.refused] == [(1, "not JSON: Expecting value at character 0")]


def test_a_record_that_a_sink_refuses_gives_no_row() -> None:
    parsed = parse_values(orders(mode="upsert", key="id"), [b'{"amount": 1}', b'{"id": 2}'])

    assert [row["id"] for row in parsed.rows] == [2]
    assert [one.reason for one in parsed.refused] == ["orders: NULL in the key column id"]


def test_every_bad_record_is_shown_although_the_policy_would_end_with_the_first() -> None:
    parsed = parse_values(orders("fail"), [b"one", b"two"])

    assert [one.offset for one in parsed.refused] == [0, 1]


TIMES = {"at": "timestamptz", "day": "date", "clock": "time"}
STRANGE = [
    b'{"at": "infinity"}', b'{"day": "-infinity"}', b'{"clock": "24:00:00"}', b'{"at": "294276-01-01T00:00:00Z"}',
]  # fmt: skip
PLAIN = [b'{"at": "9999-12-31T23:59:59-14:00"}', b'{"day": "0044-03-15 BC"}', b'{"clock": "23:59:59.999999000"}']


def test_a_value_that_python_has_not_is_shown_as_psql_shows_it() -> None:
    table = PostgresTable(table="t", columns=TIMES)

    parsed = parse_values(pipeline(table, parse=Json(columns=TIMES)), [*STRANGE, *PLAIN])

    shown = [next(str(row[name]) for name in TIMES if row[name] is not None) for row in parsed.rows]
    assert shown == [
        "infinity", "-infinity", "24:00:00", "294276-01-01 00:00:00.000000+00", "10000-01-01 13:59:59.000000+00",
        "0044-03-15 BC", "23:59:59.999999",
    ]  # fmt: skip
    assert parsed.refused == []


@pytest.mark.parametrize(
    ("sinks", "more", "bad"),
    [
        (lambda: PostgresTable(table="t", columns=TIMES), {"transform": "user_code:as_is"}, [0, 1, 3]),
        (lambda: PostgresTable(table="t", columns=TIMES, select="user_code:as_is"), {}, [0, 1, 2, 3]),
        (lambda: Files(path="/tmp/no-file-is-written", format="parquet", columns=TIMES), {}, [0, 1, 2, 3]),
        (lambda: KafkaTopic(topic="o", value="user_code:made", columns=TIMES), {}, [0, 1, 2, 3]),
    ],
    ids=["transform", "select", "parquet", "serializer"],
)
def test_what_would_take_a_value_for_another_one_does_not_get_it(
    functions: Callable[..., None], sinks: Callable[[], Any], more: dict[str, str], bad: list[int]
) -> None:
    """Arrow has no infinity and no 24:00:00: a function, Spark or a reader of Parquet would see other times. Spark gets a time as text."""
    functions(as_is=lambda rows: rows, made=lambda rows: pa.record_batch({"value": pa.array([b""] * rows.num_rows)}))
    declared = pipeline(sinks(), parse=Json(columns=TIMES), bad_records="quarantine", **more)

    refused = parse_values(declared, [*STRANGE, *PLAIN]).refused

    assert [one.offset for one in refused if "an infinite date" in one.reason] == bad


def test_texts_take_every_value() -> None:
    files = Files(path="/tmp/no-file-is-written", format="csv", columns=TIMES)

    assert parse_values(pipeline(files, parse=Json(columns=TIMES)), STRANGE).refused == []


P = "__debezium_unavailable_value"
BASE64 = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="


# Defaults

PLAN = Json(
    columns={"id": "bigint", "plan": "text", "n": "numeric(6,2)", "on": "boolean", "more": "jsonb", "city": "text"},
    paths={"city": "$.address.city"},
    defaults={"plan": "free", "n": 1.5, "on": False, "more": {"a": [1]}, "city": "Bern"},
)
DEFAULTS: dict[str, Any] = {"plan": "free", "n": "1.50", "on": False, "more": '{"a":[1]}', "city": "Bern"}
NULLS = dict.fromkeys(DEFAULTS)
GIVEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"plan": None}, {"plan": None}),
    ({"plan": "gold", "on": True}, {"plan": "gold", "on": True}),
    ({"plan": "", "n": 0, "on": None}, {"plan": "", "n": "0.00", "on": None}),
    ({"address": {}}, {}),
    ({"address": None}, {"city": None}),
    ({"address": {"city": None}}, {"city": None}),
    ({"address": {"city": "Ulm"}, "city": "no"}, {"city": "Ulm"}),
    ({"x": {"plan": "gold"}, "more": None}, {"more": None}),
    (dict.fromkeys(("plan", "n", "on", "more", "address")), NULLS),
]  # fmt: skip


@pytest.mark.parametrize("at_once", [True, False])
def test_a_missing_member_has_its_default_and_null_is_null(at_once: bool) -> None:
    """Whatever other records are in its batch, and whichever reader reads them."""
    values = [json.dumps({"id": number, **given}).encode() for number, (given, _) in enumerate(GIVEN)]
    spelled = [*values, b'{"id":10,"\\u0070lan":"gold","n":1.5}', b'{"id":11,"plan":"gold","plan":null}']
    with mock.patch.object(json_values, "_ONE_BY_ONE", 2 if at_once else 10**9):
        rows = parse(PLAN, spelled)

    shown = [row | {"n": None if row["n"] is None else str(row["n"])} for row in rows]
    expected = [{"id": number, **DEFAULTS, **differs, "_error": None} for number, (_, differs) in enumerate(GIVEN)]
    expected += [
        {"id": 10, **DEFAULTS, "plan": "gold", "_error": None},
        {"id": 11, **DEFAULTS, "plan": None, "_error": None},
    ]
    assert shown == expected


def test_a_default_makes_no_bad_record_good_and_a_tombstone_takes_none() -> None:
    rows = parse(PLAN, [b"[]", b'{"n":"x"}', b'{"address":3}', b"\xff", None, None], [None] * 5 + [b'{"id":7}'])

    assert [row["_error"] is not None for row in rows] == [True] * 4 + [False] * 2
    assert rows[4] == {"id": None, **NULLS, "_error": None}
    assert rows[5] == {"id": 7, **NULLS, "_error": None}


def test_a_default_that_its_column_does_not_hold_is_refused_before_any_record() -> None:
    with pytest.raises(DeclarationError, match="parse.defaults: .* give a default that the column holds"):
        parse(Json(columns={"n": "numeric(3,2)"}, defaults={"n": 12.345}), [])


# Placeholders

FORMS = {
    "text": ("text", P), "varchar": ("varchar(80)", P), "document": ("jsonb", P), "bytes": ("bytea", BASE64),
    "bytes in hex": ("bytea", P.encode().hex()), "array of texts": ("jsonb", [P]), "map": ("jsonb", {P: P}),
    "array of bytes": ("jsonb", [BASE64]), "array of integers": ("jsonb", list(P.encode())), "time": ("timestamptz", P),
    "number": ("numeric(12,2)", P), "map as text": ("text", f'{{"{P}":"{P}"}}'), "integer": ("integer", P),
    "array of floats": ("jsonb", [float(byte) for byte in P.encode()]), "array": ("text[]", [P]),
    "array of uuids": ("jsonb", ["PLACEHOLDER"]), "uuid": ("uuid", "PLACEHOLDER"),
}  # fmt: skip
NO_FORM = ["", P + "x", {P: 1}, [], list(P.encode())[1:], None, "95,95"]


@pytest.mark.parametrize("form", FORMS)
def test_a_placeholder_is_recognized_in_every_form(form: str) -> None:
    """Debezium makes it from the bytes of its setting, for each type of a column that PostgreSQL may not log."""
    kind, value = FORMS[form]
    parser = Json(columns={"k": "text", "v": kind, "w": kind}, unavailable=P)
    records: list[dict[str, Any]] = [
        {"k": "a", "v": value, "w": value},
        {"k": P, "v": None},
        {"k": "b", "w": value, "x": value},
    ]
    values = [json.dumps(record).replace("PLACEHOLDER", _md5_uuid()).encode() for record in records]
    values.append(values[0].replace(b"__debezium", b"\\u005f_debezium"))

    rows = parse(parser, values)

    assert [row["_error"] for row in rows] == [None] * 4
    assert [row["_unavailable"] for row in rows[:3]] == [["v", "w"], ["k"], ["w"]]
    assert [(row["v"], row["w"]) for row in rows] == [(None, None)] * 4


def _md5_uuid() -> str:
    """As Java's ``UUID.nameUUIDFromBytes`` makes it."""
    digits = list(hashlib.md5(P.encode(), usedforsecurity=False).hexdigest())
    digits[12] = "3"
    digits[16] = "89ab"[int(digits[16], 16) % 4]
    text = "".join(digits)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


@pytest.mark.parametrize("value", NO_FORM, ids=str)
def test_what_is_no_placeholder_stays_the_value(value: Any) -> None:
    [row] = parse(Json(columns={"v": "jsonb"}, unavailable=P), [json.dumps({"v": value}).encode()])

    assert row["_unavailable"] is None
    assert (None if row["v"] is None else json.loads(row["v"])) == value


@pytest.mark.parametrize("value", [[P, P], {"a": P}, {P: P, "a": 1}, ["a", {"b": [P]}], {"a": [BASE64]}], ids=str)
def test_a_placeholder_among_other_values_is_a_bad_record(value: Any) -> None:
    """A document with a part that is not there is no value that a table may hold."""
    kind = "text[]" if value == [P, P] else "jsonb"

    [row] = parse(Json(columns={"v": kind}, unavailable=P), [json.dumps({"v": value}).encode()])

    assert "v: the value holds the placeholder of a value that its connector did not have" in row["_error"]


KV = {"k": "text", "v": "text"}
SINKS = {
    "append": PostgresTable(table="t", columns=KV),
    "replace": PostgresTable(table="t", columns=KV, mode="replace"),
    "add": PostgresTable(table="t", columns={"k": "text", "n": "bigint"}, mode="add", key="k", measures="n"),
    "upsert that keeps nothing": PostgresTable(table="t", columns=KV, mode="upsert", key="k"),
    "key": PostgresTable(table="t", columns=KV, mode="upsert", key=("k", "v"), keep_unavailable=True),
    "order": PostgresTable(
        table="t", columns={"k": "text"}, mode="upsert", key="k", order_by="v", keep_unavailable=True
    ),
    "topic": KafkaTopic(topic="t", value=Json(columns=KV)),
    "files": Files(path="/nowhere", columns=KV),
    "upsert that keeps": PostgresTable(table="t", columns=KV, mode="upsert", key="k", keep_unavailable=True),
    "without the column": PostgresTable(table="t", columns={"k": "text"}),
}


@pytest.mark.parametrize("sink", SINKS)
def test_only_an_upsert_that_keeps_takes_a_record_without_the_value(sink: str) -> None:
    parser = Json(columns={**KV, "n": "bigint"}, unavailable=P)
    left_out = {"k": "a", "v": P, "n": P} if sink == "add" else {"k": "a", "v": P, "n": 1}
    declared = pipeline(SINKS[sink], parse=parser, source=KafkaSource(topics="s"))

    found = parse_values(declared, [json.dumps(left_out).encode(), b'{"k":"a","v":"b","n":1}'])

    if sink in ("upsert that keeps", "without the column"):
        assert found.refused == []
    else:
        [refused] = found.refused
        assert f"the record does not give {'n' if sink == 'add' else 'v'}" in refused.reason
        assert ("keep_unavailable=True" in refused.reason) == (sink == "upsert that keeps nothing")


# Framing

FRAMED_JSON, FRAMED_AVRO = b'\0\0\0\x01\x2a{"a": 1}', b"\0\0\0\0\x07\x02\x06abc"


@pytest.mark.parametrize(
    "parser", [Json(columns={"a": "int"}), Text(), Regex(pattern="(?P<a>.*)")], ids=["json", "text", "regex"]
)
def test_a_framed_record_is_bad_with_what_it_is_and_what_to_declare(parser: ReadyMadeParser) -> None:
    as_json, as_avro, plain = parse(parser, [FRAMED_JSON, FRAMED_AVRO, b'{"a": "\0"}'])

    assert "in a schema registry's framing (a zero byte and the schema id 298 " in as_json["_error"]
    assert "declare parse=Json(columns=…, framed=True)" in as_json["_error"]
    assert "schema id 7 " in as_avro["_error"]
    assert "declare parse=Avro(columns=…) if it is Avro" in as_avro["_error"]
    assert "holds a NUL byte" in plain["_error"]


def test_what_is_framed_is_read_as_declared() -> None:
    keys = [None, None, None, b'\0\0\0\0\x07{"a": 7}', b'{"a": 8}', None]

    values = [FRAMED_JSON, b'{"a": 2}', b"\0\0\0\0\0", None, None, FRAMED_AVRO]

    rows = parse(Json(columns={"a": "int"}, framed=True), values, keys)

    assert [row["a"] for row in rows] == [1, None, None, 7, 8, None]
    assert ["framing" in (row["_error"] or "") for row in rows] == [False, True, True, False, False, False]
    assert rows[5]["_error"] is not None
    assert parse(Bytes(), [FRAMED_JSON])[0]["value"] == FRAMED_JSON
