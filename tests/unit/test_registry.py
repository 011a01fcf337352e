"""Schema registries: the connection, the answers that are no schema, and declarations of Avro."""

import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from epochline import Avro, Pipeline
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.avro_values import derived_schema
from epochline.config.connections import Connection
from epochline.config.registry import (
    Registries,
    Registry,
    UndecodableError,
    registry,
    registry_connections,
    registry_settings,
    split_header,
    with_header,
)
from epochline.declare.columns import SUPPORTED, avro_type
from epochline.errors import (
    ConfigurationError,
    DeclarationError,
    EpochlineError,
    SourceAuthenticationError,
    SourceUnavailableError,
)
from tests.declaring import pipeline, read_back


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"host": "h"}, "http://h"),
        ({"host": "h", "port": 8081}, "http://h:8081"),
        ({"host": "h", "port": 8081, "schema": "https"}, "https://h:8081"),
        ({"host": "https://h/root/"}, "https://h/root"),
        ({"host": "https://h/root", "port": 8081}, "https://h:8081/root"),
        ({"host": "https://h:1", "port": 8081}, "https://h:1"),
        ({"host": "h", "extra": {"path": "/apis/ccompat/v7/"}}, "http://h/apis/ccompat/v7"),
    ],
)
def test_an_http_connection_names_a_registry(given: dict[str, Any], url: str) -> None:
    assert registry_settings(Connection(where="it", **given)) == {"url": url, "login": "", "password": ""}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"host": ""}, "names no registry"),
        ({"host": "ftp://h"}, "names no registry"),
        ({"host": "http://me:canary@h"}, "names no registry"),
        ({"host": "h", "extra": {"timeout": "canary"}}, "timeout is not supported"),
    ],
)
def test_a_connection_that_would_not_do_what_it_says_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        registry_settings(Connection(where="it", **given))

    assert "canary" not in str(raised.value)


def test_settings_reach_another_process_and_are_shown_nowhere() -> None:
    registries = Registries({"there": {"url": "http://h", "login": "me", "password": "canary"}})

    again: Registries = pickle.loads(pickle.dumps(registries))  # noqa: S301 - our own
    again.install()

    assert registry("there").settings["password"] == "canary"
    assert "canary" not in repr(again) + str(registry("there"))


def test_a_registry_without_settings_is_an_error_that_says_where_to_give_them() -> None:
    with pytest.raises(ConfigurationError, match="'nowhere'.*registries"):
        registry("nowhere")


def test_a_registry_is_kept_until_its_settings_change() -> None:
    Registries({"kept": {"url": "http://h"}}).install()
    first = registry("kept")

    Registries({"kept": {"url": "http://h"}}).install()
    assert registry("kept") is first
    Registries({"kept": {"url": "http://other"}}).install()
    assert registry("kept") is not first


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[Registry]:
    status, text = request.param

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Registry("it", {"url": f"http://127.0.0.1:{server.server_port}", "login": "me", "password": "canary"})
        server.shutdown()


@pytest.mark.parametrize(
    ("answering", "error", "retryable"),
    [
        ((401, "{}"), SourceAuthenticationError, False),
        ((403, "no"), SourceAuthenticationError, False),
        ((503, "<html>"), SourceUnavailableError, True),
        ((429, "{}"), SourceUnavailableError, True),
        ((404, '{"error_code": 404}'), ConfigurationError, False),
        ((200, "<html>"), ConfigurationError, False),
        ((200, "[]"), ConfigurationError, False),
    ],
    indirect=["answering"],
)
def test_an_answer_that_is_not_about_the_schema_is_never_a_records_error(
    answering: Registry, error: type[EpochlineError], retryable: bool
) -> None:
    with pytest.raises(error, match="'it'") as raised:
        answering.schema(1)

    assert raised.value.__class__.retryable is retryable
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    "answering",
    [
        (404, json.dumps({"error_code": 40403, "message": "Schema not found"})),
        (200, json.dumps({"schema": "message M {}", "schemaType": "PROTOBUF"})),
        (200, json.dumps({"schema": "no JSON"})),
        (200, json.dumps({"schema": '{"type": "unheard of"}'})),
    ],
    indirect=True,
)
def test_a_schema_that_nobody_can_read_is_the_records_error(answering: Registry) -> None:
    with pytest.raises(UndecodableError, match="schema 1"):
        answering.schema(1)


def test_the_header_is_a_zero_byte_and_four_of_the_id() -> None:
    assert with_header(0x01020304, b"body") == b"\0\1\2\3\4body"
    assert split_header(b"\0\1\2\3\4body") == 0x01020304


def test_a_derived_schema_can_be_null_everywhere_and_keeps_exact_types() -> None:
    kinds = {"i": "integer", "n": "numeric", "p": "numeric(9,2)", "at": "timestamptz", "ref": "uuid", "doc": "jsonb"}

    schema = derived_schema({name: column_type(text) for name, text in kinds.items()}, "1-shop.orders")

    assert schema["name"] == "_1_shop_orders"
    assert {one["name"]: one["type"][1] for one in schema["fields"]} == {
        "i": "int",
        "n": "string",
        "p": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "ref": {"type": "string", "logicalType": "uuid"},
        "doc": "string",
    }
    assert all(one["type"][0] == "null" and one["default"] is None for one in schema["fields"])


def of(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": list(fields)}


A_TEXT = {"name": "a", "type": "string"}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"columns": {"a-b": "text"}}, "no field named 'a-b'"),
        ({"columns": {"a": "cash"}}, "unsupported type"),
        ({"columns": {"a": "text"}, "schema_": {"type": "unheard of"}}, "not an Avro schema"),
        ({"columns": {"a": "text"}, "schema_": {"type": "array", "items": "int"}}, "must be a record"),
        ({"columns": {"a": "text"}, "schema_": of({"name": "b", "type": "int"})}, "no field a"),
        ({"columns": {"a": "text"}, "schema_": of(A_TEXT, {"name": "b", "type": "int"})}, "b has no default"),
    ],
)
def test_avro_that_could_not_work_is_refused_when_it_is_declared(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Avro(**declared)


def logical(base: str, kind: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


ENUM = {"type": "enum", "name": "e", "symbols": ["a"]}
OTHERWISE = [
    ("bigint", "int"), ("bigint", "double"), ("integer", "float"), ("double precision", "float"), ("numeric", "long"),
    ("numeric", "double"), ("numeric(10,2)", "double"), ("text", "boolean"), ("text", "null"), ("timestamptz", "long"),
    ("date", "int"), ("bytea", "string"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "avro", "found"),
    [
        *((kind, avro, avro) for kind, avro in OTHERWISE),
        ("bigint", ["null", "int"], "int"),
        ("bigint", ["int", "long"], "int"),
        ("double precision", ["null", "double", "long"], "long"),
        ("numeric(10,2)", logical("bytes", "decimal", precision=3, scale=2), r"bytes decimal\(3,2\)"),
        ("numeric(10,2)", logical("bytes", "decimal", precision=12, scale=1), r"bytes decimal\(12,1\)"),
        ("numeric(10,2)", logical("bytes", "decimal", precision=10, scale=3), r"bytes decimal\(10,3\)"),
        ("text", logical("string", "uuid"), "string uuid"),
        ("text", ["null"], "null"),
        ("timestamptz", logical("long", "timestamp-millis"), "long timestamp-millis"),
        ("timestamp", ["null", logical("long", "local-timestamp-millis")], "long local-timestamp-millis"),
        ("time", logical("int", "time-millis"), "int time-millis"),
        ("jsonb", {"type": "map", "values": "string"}, "map"),
    ],
)
def test_a_field_that_would_hold_its_columns_values_otherwise_is_refused(kind: str, avro: Any, found: str) -> None:
    with pytest.raises(DeclarationError, match=f"field a has the Avro type {found}, which .* declare the field as ."):
        Avro(columns={"a": kind}, schema_=of({"name": "a", "type": avro}))


@pytest.mark.parametrize(
    ("kind", "avro"),
    [
        ("integer", ["null", "long"]),
        ("smallint", "float"),
        ("bigint", logical("long", "timestamp-millis")),
        ("real", "double"),
        ("text", {"type": "string", "avro.java.string": "String"}),
        ("text", logical("string", "of their own")),
        ("varchar(3)", ["null", ENUM, "string"]),
        ("bytea", {"type": "fixed", "name": "f", "size": 2}),
        ("numeric(10,2)", logical("bytes", "decimal", precision=11, scale=3)),
        ("numeric(4,2)", logical("fixed", "decimal", precision=4, scale=2, size=4, name="d")),
        ("timestamptz", logical("long", "local-timestamp-micros")),
        ("uuid", "string"),
        ("numeric", "string"),
    ],
)
def test_a_field_that_holds_every_value_of_its_column_is_taken(kind: str, avro: Any) -> None:
    Avro(columns={"a": kind}, schema_=of({"name": "a", "type": avro}))


def test_a_field_may_name_a_type_of_another() -> None:
    schema = of({"name": "a", "type": ENUM}, {"name": "b", "type": ["null", "x.e"]}) | {"namespace": "x"}

    Avro(columns={"a": "text", "b": "text"}, schema_=schema)
    with pytest.raises(DeclarationError, match="field b has the Avro type enum"):
        Avro(columns={"a": "text", "b": "bigint"}, schema_=schema)


@pytest.mark.parametrize("kind", [*SUPPORTED, "numeric(38,4)"])
def test_a_derived_schema_and_the_type_that_is_proposed_hold_their_columns(kind: str) -> None:
    Avro(columns={"a": kind}, schema_=derived_schema({"a": column_type(kind)}, "t"))
    Avro(columns={"a": kind}, schema_=of({"name": "a", "type": avro_type(column_type(kind))}))


def test_a_stored_declaration_with_a_narrower_field_is_read() -> None:
    declared = pipeline(parse=Avro(columns={"a": "bigint"}, schema_=of({"name": "a", "type": "long"})))
    stored = declared.stored().replace('"long"', '"int"')

    again = Pipeline.from_stored(stored)

    assert stored != declared.stored()
    assert again.stored() == stored


def test_a_declaration_with_avro_survives_the_ledger_and_names_its_registry() -> None:
    declared = pipeline(parse=Avro(columns={"a": "text"}, schema_=of(A_TEXT), registry="theirs"))

    assert registry_connections(read_back(declared)) == ("theirs",)
