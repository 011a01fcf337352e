"""From a topic's rows to records: what a consumer will find in key, value, headers and partition."""

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import column_type, record_schema
from epochline.arrow.formats.outbox import TopicEncoder
from epochline.arrow.formats.parsers import build_parser
from epochline.declare.parsers import Bytes, Json, Text
from epochline.declare.topic import KafkaTopic
from tests.declaring import pipeline

AT = datetime(2024, 2, 29, 23, 59, 59, 1000, tzinfo=UTC)
ODD = datetime(2024, 2, 29, 23, 59, 54, 100_007, tzinfo=UTC)


def topic(value: Any, **declared: Any) -> KafkaTopic:
    return KafkaTopic(topic="out", value=value, **declared)


def rows(declared: KafkaTopic, *given: dict[str, Any], deleted: list[bool | None] | None = None) -> pa.RecordBatch:
    columns = {}
    for name, text in declared.record.items():
        cast = cast_column(name, pa.array([row.get(name) for row in given]), column_type(text))
        assert not cast.problems
        columns[name] = cast.array
    if deleted is not None:
        columns["_deleted"] = pa.array(deleted, pa.bool_())
    return pa.record_batch(columns)


def encode(declared: KafkaTopic, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
    return TopicEncoder(declared.outbox("p").spec).encode(batch)


def encoded(declared: KafkaTopic, *given: dict[str, Any], **more: Any) -> tuple[pa.RecordBatch, dict[int, str]]:
    batch, problems = encode(declared, rows(declared, *given, **more))
    outbox = {"key": "bytea", "value": "bytea", "headers": "text", "partition": "integer"}
    orders = {f"order_{at}": declared.record[name] for at, name in enumerate(declared.order_by, 1)}
    assert batch.schema.equals(record_schema(outbox | orders))
    assert batch.num_rows == len(given)
    return batch, problems


def test_texts_and_bytes_are_sent_as_they_are_and_only_their_null_is_a_tombstone() -> None:
    texts, _ = encoded(topic(Text()), {"value": "grün"}, {"value": ""}, {"value": None})
    raw, _ = encoded(topic(Bytes()), {"value": b"\0\xff"}, {"value": b""})
    documents, _ = encoded(topic(Json(columns={"a": "text"})), {"a": None})

    assert texts.column("value").to_pylist() == ["grün".encode(), b"", None]
    assert raw.column("value").to_pylist() == [b"\0\xff", b""]
    assert documents.column("value").to_pylist() == [b'{"a":null}']


def test_members_stand_in_the_declared_order_lose_no_digit_and_are_read_back_as_the_same_row() -> None:
    columns = {
        "z": "numeric", "p": "numeric(30,20)", "d": "double precision", "r": "real", "i": "bigint", "ok": "boolean",
        "at": "timestamptz", "local": "timestamp", "day": "date", "clock": "time", "raw": "bytea", "ref": "uuid",
        "doc": "jsonb", "a": "text", "n": "integer", "ip": "inet", "js": "json",
    }  # fmt: skip
    given = [
        {"z": "1234567890123456789012345678901234567890.10", "p": Decimal("1E-20"), "d": 0.1, "r": 0.5, "i": -(2**63),
         "ok": True, "at": AT, "local": AT.replace(tzinfo=None), "day": date(1, 1, 1), "clock": time(1, 2, 3),
         "raw": b"\xff\x00", "ref": "{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}", "doc": '{"n": 1.50, "l": [ true ]}',
         "a": 'q"\\\n\x01ü', "n": 1, "ip": "10.0.0.1/8", "js": '{"a":"\\u00fc"}'},
        {"z": "-0.50", "d": 1e300, "a": "\u2028\x7f", "day": date(9999, 12, 31), "clock": time(23, 59, 59, 999999),
         "raw": b"", "ok": False, "at": ODD, "local": ODD.replace(tzinfo=None)},
        {},
    ]  # fmt: skip
    declared = topic(Json(columns=columns))

    batch, problems = encoded(declared, *given)
    back = build_parser(pipeline(parse=declared.value).spec)(batch.select(["key", "value"]))

    assert problems == {}
    assert batch.column("value")[0].as_py().decode() == (
        '{"z":1234567890123456789012345678901234567890.10,"p":0.00000000000000000001,"d":0.1,"r":0.5,'
        '"i":-9223372036854775808,"ok":true,"at":"2024-02-29T23:59:59.001000Z","local":"2024-02-29T23:59:59.001000",'
        '"day":"0001-01-01","clock":"01:02:03.000000","raw":"/wA=","ref":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",'
        '"doc":{"n":1.50,"l":[true]},"a":"q\\"\\\\\\n\\u0001ü","n":1,"ip":"10.0.0.1/8","js":{"a":"ü"}}'
    )
    moments = b'"at":"2024-02-29T23:59:54.100007Z","local":"2024-02-29T23:59:54.100007"'
    assert moments in batch.column("value")[1].as_py()
    assert back.column("_error").null_count == 3
    assert back.column("js").to_pylist() == ['{"a":"ü"}', None, None]
    same = [name for name in columns if name not in ("doc", "js", "ref")]
    assert back.select(same).to_pylist() == rows(declared, *given).select(same).to_pylist()


@pytest.mark.parametrize(
    ("kind", "value"),
    [("double precision", float("nan")), ("real", float("-inf")), ("date", 3_000_000), ("timestamptz", -(2**56))],
)
def test_a_value_that_json_has_no_text_for_is_its_rows_problem_alone(kind: str, value: Any) -> None:
    declared = topic(Json(columns={"id": "bigint", "v": kind}), key="id", order_by="id", headers={"h": "id"})
    values = pa.array([None, value], record_schema(declared.record).field("v").type)
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int64()), "v": values})

    out, problems = encode(declared, batch)

    assert list(problems) == [1]
    assert problems[1].startswith("kafka:out: v: ")
    assert out.to_pylist()[0] == {
        "key": b"1", "value": b'{"id":1,"v":null}', "headers": '[["h", "MQ=="]]', "partition": None, "order_1": 1,
    }  # fmt: skip
    assert set(out.to_pylist()[1].values()) == {None}


def test_half_a_surrogate_pair_in_a_document_stays_the_escape_that_it_was() -> None:
    document = r'{"a":"\ud800x","\udfff":["\ud83d\ude00"]}'

    batch, problems = encoded(topic(Json(columns={"doc": "json"})), {"doc": document})

    value = batch.column("value")[0].as_py()
    assert problems == {}
    assert value.decode() == r'{"doc":{"a":"\ud800x","\udfff":["😀"]}}'
    assert json.loads(value) == {"doc": json.loads(document)}


def test_one_column_of_a_key_is_its_text_and_several_are_an_object() -> None:
    kinds = {"id": "bigint", "b": "bytea", "n": "numeric(5,2)", "at": "timestamptz"}
    row = {"id": 7, "b": b"\0k", "n": Decimal("1.50"), "at": AT, "value": "v"}

    def keys(*key: str) -> list[bytes | None]:
        return list(encoded(topic(Text(), key=key, columns=kinds), row, {})[0].column("key").to_pylist())

    assert keys("id") == [b"7", None]
    assert keys("b") == [b"\0k", None]
    assert keys("n") == [b"1.50", None]
    assert keys("at") == [b"2024-02-29 23:59:59.001+00", None]
    assert keys("n", "id", "b") == [b'{"n":1.50,"id":7,"b":"AGs="}', b'{"n":null,"id":null,"b":null}']
    assert keys() == [None, None]


def test_headers_are_a_list_in_the_declared_order_with_null_kept_apart_from_empty() -> None:
    declared = topic(Text(), headers={'b"': "raw", "a": "value"}, columns={"raw": "bytea"})

    batch, _ = encoded(declared, {"value": "x", "raw": b"\xff"}, {"value": "", "raw": None}, {"value": "x", "raw": b""})

    found = [json.loads(text.as_py()) for text in batch.column("headers")]
    assert [[(name, None if v is None else base64.b64decode(v)) for name, v in one] for one in found] == [
        [('b"', b"\xff"), ("a", b"x")],
        [('b"', None), ("a", b"")],
        [('b"', b""), ("a", b"x")],
    ]


def test_a_deleted_row_is_a_tombstone_with_its_key_whatever_its_other_columns_hold() -> None:
    declared = topic(Json(columns={"id": "bigint", "v": "double precision"}), key="id")

    batch, problems = encoded(
        declared, {"id": 1, "v": 1.5}, {"id": 2, "v": float("nan")}, {"id": 3, "v": float("nan")},
        deleted=[None, True, False],
    )  # fmt: skip

    assert list(problems) == [2]
    assert batch.column("key").to_pylist() == [b"1", b"2", None]
    assert batch.column("value").to_pylist() == [b'{"id":1,"v":1.5}', None, None]


def test_a_partition_is_taken_from_its_column_and_a_negative_one_is_refused() -> None:
    declared = topic(Text(), partition="p", columns={"p": "smallint"})

    batch, problems = encoded(declared, {"value": "a", "p": 3}, {"value": "b"}, {"value": "c", "p": -1})

    assert batch.column("partition").to_pylist() == [3, None, None]
    assert problems == {2: "kafka:out: p is negative; partitions count from 0"}


def test_no_rows_give_no_rows() -> None:
    declared = topic(Json(columns={"id": "bigint"}), key=("id",), headers={"h": "id"}, order_by="id")

    assert encoded(declared)[1] == {}
