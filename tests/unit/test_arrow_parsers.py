"""Ready-made parsers: all at once or one by one, a record means the same."""

from __future__ import annotations

import ipaddress
import json
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import re2
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.jsontext import check_json, read_json, write_json
from epochline.arrow.cast.numbers import unscaled
from epochline.arrow.cast.reasons import DoesNotFitError, printable
from epochline.arrow.formats import json_values
from epochline.arrow.formats.json_cut import all_without_spaces, without_spaces
from epochline.arrow.formats.parsers import build_parser
from epochline.arrow.formats.texts import as_text
from epochline.arrow.stage.wire import wire_form
from epochline.declare.avro import Avro
from epochline.declare.columns import parse_type
from epochline.declare.parsers import Bytes, Json, ReadyMadeParser, Regex, Text
from epochline.declare.pipeline import Pipeline
from epochline.errors import DeclarationError
from tests.declaring import pipeline
from tests.unit.flows import parse, parsed

COLUMNS = {
    "b": "boolean", "i": "bigint", "s": "smallint", "f": "double precision", "r": "real", "t": "text",
    "d": "date", "ts": "timestamptz", "n": "numeric(4,2)", "w": "numeric(40,3)", "z": "numeric(9,9)",
}  # fmt: skip
CUT = {
    "j": "jsonb", "k": "json", "m": "numeric", "y": "bytea", "u": "uuid", "p": "inet", "v": "interval",
    "a": "integer[]",
}  # fmt: skip
"""Columns whose members no reader of Arrow gives: they are cut out of the records."""

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["2024-02-29", "2024-02-29T01:02:03Z", "1", "true", "NaN"]) | st.decimals(-200, 200, places=3).map(float)
    | st.sampled_from(["1.50", "-.5", "1.", ".", "+1", "1e1", " 1", "", "99.994", "100", "9" * 37, "1" + "0" * 40, "1_0"])
)  # fmt: skip
FITTING = st.sampled_from(
    ["AAE=", "\\x00ff", "6f9619ff-8b86-d011-b42d-00cf4fc964ff", "10.0.0.1/8", "P1D", "1 day", "\\", '"', "\0"]
)
DOCUMENTS = st.dictionaries(
    st.sampled_from([*COLUMNS, *CUT, "x"]),
    SCALARS | FITTING | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(), SCALARS | FITTING),
).flatmap(
    lambda document: st.builds(
        lambda separators, escaped: json.dumps(document, separators=separators, ensure_ascii=escaped).encode("utf-8", "replace"),
        st.sampled_from([None, (",", ":"), (" ,\n", " :\t")]), st.booleans(),
    )
)  # fmt: skip
ODD = st.sampled_from(
    [b"", b" ", b"{}", b"{}{}", b'{"i":1},"x":{"i":2}', b'{"i":[{}', b"]}", b'{"i":1', b'}', b'{"t":"a', b'"}', b"null",
     b' {"i":1} ', b'{"i":1}\n{"i":2}', b'{\n"i":1}', b'{"i":1,"i":2}', b'{"i":01}', b'{"f":1e400}', b'{"f":1e-400}',
     b'{"f":NaN}', b'{"x":Infinity,"i":1}', b'{"i":-0}', b'{"i":1e3}', b'{"f":-0.0}', b'\xef\xbb\xbf{"i":1}',
     b'{"x":' + b"[" * 300 + b"]" * 300 + b"}", b'{"t":"\\u0000"}', b'{"\\u0069":7}', b'{"x":"\\ud800","i":1}',
     b'{"ts":"2024-02-29T01:02:03"}', b'{"n":999}', b'{"n":99.99}', b'{"n":1.500}', b'{"n":1.505}', b'{"n":1e1}',
     b'{"n":1e-400}', b'{"n":-0.00}', b'{"w":' + b"9" * 37 + b'.125}', b'{"w":' + b"9" * 38 + b'}', b'{"z":1}',
     b'{"z":0.000000001}', b'{"z":"1e-9"}', b"\xff", b"{\"t\":\"\xc3\xa4\"}",
     b'{"j":1,"j":[2 , -0]}', b'{"\\u006a":{"a":1.00,"a":2}}', b'{"j":{"a":"\\ud83d\\ude00\\/"}}', b'{"j":"\\ud800"}', b'{"j":{"a":"\\u0000","a":1}}',
     b'{"x":"\\ud800","j":[ 1 ]}', b'{"j":"\\u0000"}', b'{"k":"\\u0000"}', b'{"j":1e131072}', b'{"j":"1e9999"}', b'{"k":1E+131072}',
     b'{"j":NaN}', b'{"m":-Infinity}', b'{"m":"NaN"}', b'{"t":"Information","j":{}}', b'{"m":1e9}', b'{"m":-0.00}', b'{"m":"1\\u0030"}',
     b'{"m":{"scale":2,"value":"AAE="}}', b'{"j":' + b"[" * 254 + b"]" * 254 + b"}", b'{"j":' + b"[" * 256 + b"]" * 256 + b"}",
     b'{"j":{}}{"j":{}}', b'{"j":[{}', b'{"j":truex}', b'{"j":01}', b'{"j":"a\x01"}', b'{"y":"AA"}', b'{"y":"A=A="}', b'{"j":' + b"7" * 15_001 + b"}"]
)  # fmt: skip


def digits(most: int) -> st.SearchStrategy[str]:
    """Also digits that are nearly all 0 or 9, as far as a decimal of Arrow reaches and much further."""
    lengths = st.integers(1, most) | st.sampled_from([38, 39, 46, 76, 77, 400])
    return st.text("0123456789", min_size=1, max_size=most) | lengths.flatmap(
        lambda length: st.sampled_from(["0" * length, "9" * length, "1" * length, "1" + "0" * length])
    )


NUMERALS = st.builds(
    lambda sign, whole, fraction, exponent: sign + (whole.lstrip("0") or "0") + fraction + exponent,
    st.sampled_from(["", "-"]), digits(12), st.just("") | digits(12).map(".{}".format),
    st.just("") | st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-", "-0"]),
                            st.integers(0, 80) | st.sampled_from([308, 324, 400, 99_999, 10**9 - 1, 10**9])),
)  # fmt: skip
FRACTIONS = ["numeric(12,2)", "numeric(38,0)", "numeric(38,18)", "numeric(38,38)", "numeric(60,4)", "numeric(76,70)",
             "real", "double precision"]  # fmt: skip


def held(numeral: str, kind: str) -> Any:
    """The value of a number in a column; None if the column has no such value."""
    mantissa, _, exponent = numeral.lower().partition("e")
    is_zero = not mantissa.strip("-0.")
    if not kind.startswith("numeric"):
        number = float(numeral)
        with np.errstate(over="ignore", under="ignore"):
            number = float(np.float32(number)) if kind == "real" else number
        return None if np.isinf(number) or (number == 0 and not is_zero) else number
    precision, scale = parse_type(kind).precision or 0, parse_type(kind).scale or 0
    if len(exponent.lstrip("+-0")) > 9:
        return None
    if is_zero:
        return 0
    value = Fraction(mantissa) * Fraction(10) ** (int(exponent or 0) if abs(int(exponent or 0)) < 2000 else 2000)
    return value if abs(value) < 10 ** (precision - scale) and (value * 10**scale).denominator == 1 else None


@settings(deadline=None)
@given(NUMERALS, st.sampled_from(FRACTIONS))
@example("1e-41", "numeric(12,2)")
@example("1" + "0" * 45, "numeric(12,2)")
@example("9" * 39, "numeric(38,0)")
@example("99", "numeric(38,38)")
@example("1" * 31 + "e9", "numeric(12,2)")
@example("1e-1000000000", "numeric(60,4)")
@example("1e-999999999", "numeric(60,4)")
@example("0e-0999999999", "numeric(12,2)")
@example("1e0000000001", "numeric(12,2)")
@example("1.8e308", "double precision")
@example("1" + "0" * 309, "real")
@example("-1e-400", "double precision")
@example("0." + "0" * 400 + "1", "double precision")
def test_a_number_of_any_length_is_the_same_number_or_is_refused(numeral: str, kind: str) -> None:
    """Arrow's decimals wrap around in silence, and its numbers with a fraction overflow to infinity or to 0."""
    parser = Json(columns={"v": kind})

    [alone] = parse(parser, [b'{"v":%s}' % numeral.encode()])
    [among_many, *_] = parse(parser, [b'{"v":%s}' % numeral.encode(), *[b'{"v": 0}'] * 300])

    assert alone == among_many
    assert (alone["v"] is None) == (alone["_error"] is not None)
    assert alone["v"] == held(numeral, kind)


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**34), max_value=10**34),
    st.sampled_from(FRACTIONS[:-2]),
)
@example(Decimal("3887946.501"), "numeric(38,32)")
def test_a_decimal_of_a_function_is_the_same_number_or_is_refused(value: Decimal, kind: str) -> None:
    """Arrow wraps around as well where the scale of a decimal grows."""
    cast = cast_column("v", pa.array([value], pa.decimal128(38, 3)), parse_type(kind))

    assert (cast.array[0].as_py() is None) == (cast.problems != {})
    assert cast.array[0].as_py() == held(str(value), kind)


@given(st.binary(min_size=1, max_size=120), st.integers(-40, 400))
@example(b"\xff", 1)
@example(b"\0\0", 2)
@example(b"\x80" + b"\0" * 5000, 2)
def test_an_unscaled_decimal_keeps_its_value_and_its_scale(digits: bytes, scale: int) -> None:
    text = unscaled(digits, scale)

    assert Fraction(Decimal(text)) == int.from_bytes(digits, "big", signed=True) / Fraction(10) ** scale
    assert len(text.partition(".")[2]) == max(scale, 0)
    assert re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", text)


def test_good_json_is_read_all_at_once() -> None:
    values = [json.dumps({"i": n, "t": f"n{n}", "f": n / 3, "x": [n], "n": n % 100 / 4}).encode() for n in range(1000)]
    with mock.patch.object(json_values.JsonReader, "read_each", side_effect=AssertionError):
        rows = parse(Json(columns=COLUMNS), values)

    assert rows[999] == dict.fromkeys([*COLUMNS, "_error"]) | {"i": 999, "t": "n999", "f": 333.0, "n": Decimal("24.75")}


NESTED = Json(
    columns={"i": "bigint", "city": "text", "as_text": "text", "lat": "double precision", "n": "numeric(4,2)",
             "j": "jsonb", "again": "jsonb", "m": "numeric"},
    paths={
        "city": "$.a.city", "as_text": "$.a.city", "lat": '$.a["b c"].lat', "n": "$.a['b c'].n",
        "j": '$.a["b c"]', "again": '$.a["b c"]', "m": "$.a.x",
    },
)  # fmt: skip
INNER = st.dictionaries(st.sampled_from(["lat", "n", "x"]), SCALARS)
OUTER = st.dictionaries(st.sampled_from(["city", "b c", "x"]), INNER | SCALARS | st.lists(INNER, max_size=2))
NESTED_DOCUMENTS = st.dictionaries(st.sampled_from(["i", "a", "x"]), OUTER | SCALARS | st.lists(OUTER, max_size=2)).map(
    lambda document: json.dumps(document).encode()
)
NESTED_ODD = st.sampled_from(
    [b'{"a":{}}', b'{"a":null}', b'{"a":{"b c":null}}', b'{"a":{"city":"x"},"a":{}}', b'{"a":{"city":"x","city":"y"}}',
     b'{"a":{"b c":{"lat":1,"lat":2}}}', b'{"a":{"city":1}}', b'{"a":{"b c":[]}}', b'{"a":"{}"}',
     b'{"a":{"city":"\\u0000"}}', b'{"a":{"b c":{"n":1.505,"x":{"city":1}}}}', b'{"a.city":"x"}', b'{"a":{"a":{"city":1}}}']
)  # fmt: skip


@pytest.mark.parametrize(
    ("parser", "documents"),
    [
        (Json(columns=COLUMNS), DOCUMENTS | ODD),
        (Json(columns=COLUMNS | CUT), DOCUMENTS | ODD),
        (Json(columns=CUT), DOCUMENTS | ODD),
        (NESTED, NESTED_DOCUMENTS | NESTED_ODD | ODD),
    ],
    ids=["read", "read and cut", "cut", "nested"],
)
@settings(deadline=None)
@given(data=st.data())
def test_json_means_the_same_all_at_once_and_one_by_one(
    parser: Json, documents: st.SearchStrategy[bytes], data: st.DataObject
) -> None:
    """Also in the keys of records without a value."""
    keys = documents | st.sampled_from([None, b'{"i":1\0}', b'{"t":"\0"}', b'{"i":1}\0', b'\0{"i":1}'])
    values = data.draw(st.lists(documents, max_size=8) | st.lists(st.none() | documents, max_size=8))
    their_keys = data.draw(st.lists(keys, min_size=len(values), max_size=len(values))) if None in values else ()

    with mock.patch.object(json_values, "_ONE_BY_ONE", 2):
        at_once = parse(parser, values, their_keys)
    with mock.patch.object(json_values, "_ONE_BY_ONE", 10**9):
        one_by_one = parse(parser, values, their_keys)

    assert repr(at_once) == repr(one_by_one)  # NaN is not equal to itself


ARRAYS = {"b": "jsonb[]", "t": "text[]", "f": "real[]", "y": "bytea[]", "ts": "timestamptz[]", "v": "interval[]"}


@pytest.mark.parametrize(
    "parser",
    [
        Json(columns=COLUMNS | CUT),
        Json(columns=CUT | ARRAYS),
        Text(),
        Bytes(),
        Regex(pattern='{"(?P<k>[^"]*)": ?(?P<j>.*)}', columns={"j": "jsonb"}),
    ],
    ids=["json", "arrays", "text", "bytes", "regex"],
)
@settings(deadline=None)
@given(st.lists(DOCUMENTS | ODD, max_size=8))
def test_a_cast_of_what_a_ready_made_parser_gives_would_change_nothing(
    parser: ReadyMadeParser, values: list[bytes]
) -> None:
    """So these columns are not cast again."""
    columns = parsed(parser, values)

    for name, text in parser.record.items():
        column = columns.column(name)
        again = cast_column(name, column, parse_type(text))
        assert again.problems == {}
        assert again.array.type == column.type
        assert repr(again.array.to_pylist()) == repr(column.to_pylist())  # NaN is not equal to itself


OCTETS = st.integers(0, 299).map(str) | st.sampled_from(["", "00", "01", "0x1", "+1", " 1", "1e1", "\u0663", "\uff11"])
IPV4 = st.lists(st.integers(0, 255).map(str) | OCTETS, min_size=3, max_size=5).map(".".join)
GROUPS = st.sampled_from(["", "0", "1", "ffff", "FF", "00001", "g", "1.2.3.4"])
ADDRESSES = st.ip_addresses().map(str) | IPV4 | st.lists(GROUPS, min_size=2, max_size=9).map(":".join)
MASKS = st.sampled_from(
    ["", "/0", "/8", "/32", "/33", "/128", "/08", "/", "/255.0.0.0", "/\u0668", "%eth0", " ", "\n", "\0"]
)


def address(text: str, *, is_network: bool) -> bytes | None:
    """As PostgreSQL receives an address, by Python's own module; None if it is refused."""
    if "%" in text or not re.fullmatch("[^/]*(/(0|[1-9][0-9]{0,2}))?", text):
        return None
    try:
        found = ipaddress.ip_interface(text)
        ipaddress.ip_network(text, strict=is_network)
    except ValueError:
        return None
    return (
        bytes((2 if found.version == 4 else 3, found.network.prefixlen, is_network, len(found.packed))) + found.packed
    )


@pytest.mark.parametrize("kind", ["inet", "cidr"])
@settings(deadline=None)
@given(st.lists(st.none() | st.builds("{}{}".format, ADDRESSES, MASKS) | st.text(max_size=5), max_size=8))
@example(["10.0.0.1", None, "10.0.0.0/8", "10.0.0.1", "::1"])
@example(["1.2.3.4\n"])
def test_addresses_are_those_of_pythons_module_or_are_refused(kind: str, texts: list[str | None]) -> None:
    """Plain ones are checked and encoded all at once."""
    expected = [None if text is None else address(text, is_network=kind == "cidr") for text in texts]

    cast = cast_column("p", pa.array(texts, pa.string()), parse_type(kind))

    assert wire_form(cast.array, parse_type(kind)).to_pylist() == expected
    assert cast.array.to_pylist() == [text if held else None for text, held in zip(texts, expected, strict=True)]
    refused = [row for row, text in enumerate(texts) if text is not None and expected[row] is None]
    assert sorted(cast.problems) == refused


ADDRESS = Json(
    columns={"id": "bigint", "city": "text", "lat": "double precision"},
    paths={"city": "$.address.city", "lat": "$.address.geo.lat"},
)


def test_good_nested_json_is_read_all_at_once_and_null_where_an_object_is_missing() -> None:
    full = b'{"id": 1, "address": {"city": "Bern", "zip": 3000, "geo": {"lat": 46.9, "lon": 7.4}}, "city": "other"}'
    values = [full, b'{"id": 2, "address": {"city": "Ulm"}}', b'{"id": 3, "address": null}', b'{"id": 4}'] * 100
    with mock.patch.object(json_values.JsonReader, "read_each", side_effect=AssertionError):
        rows = parse(ADDRESS, values)

    assert [tuple(row.values()) for row in rows[:4]] == [
        (1, "Bern", 46.9, None), (2, "Ulm", None, None), (3, None, None, None), (4, None, None, None),
    ]  # fmt: skip
    assert rows == rows[:4] * 100


@pytest.mark.parametrize("others", [0, 700])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"address": 5}', "city: 5 at $.address is not an object"),
        (b'{"address": [{"city": "Bern"}]}', 'city: [{"city":"Bern"}] at $.address is not an object'),
        (b'{"address": {"geo": "46.9"}}', 'lat: "46.9" at $.address.geo is not an object'),
        (b'{"address": {"city": 5}}', "city: 5 does not fit text (not a text in quotes)"),
    ],
)
def test_what_is_no_object_on_a_path_is_that_records_error(value: bytes, reason: str, others: int) -> None:
    good = [b'{"id": 1, "address": {"city": "Bern"}}'] * others

    rows = parse(ADDRESS, [*good, value, *good])

    assert [row["city"] for row in rows] == [*["Bern"] * others, None, *["Bern"] * others]
    assert [printable(row["_error"]) for row in rows if row["_error"]] == [reason]


def test_an_object_and_a_member_of_it_are_two_columns() -> None:
    parser = Json(
        columns={"address": "jsonb", "city": "text", "price": "numeric"},
        paths={"city": "$.address.city", "price": "$.item.price"},
    )

    rows = parse(parser, [b'{"address": {"city": "Bern", "no": 1.50}, "item": {"price": 1.10}}', b'{"address": []}'])

    assert rows[0] == {"address": '{"city":"Bern","no":1.50}', "city": "Bern", "price": "1.10", "_error": None}
    assert printable(rows[1]["_error"]) == "city: [] at $.address is not an object"


def test_nested_members_of_json_columns_keep_their_text() -> None:
    value = b'{"j": {"a": [1, 2.50, "\xc3\xa4\\n", null, true], "b": 1e2}, "n": 1.10, "k": "text"}'

    (row,) = parse(Json(columns={"j": "jsonb", "k": "json", "n": "numeric"}), [value])

    assert row == {"j": '{"a":[1,2.50,"ä\\n",null,true],"b":1e2}', "k": '"text"', "n": "1.10", "_error": None}


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_texts_are_written_as_they_were_read(value: Any) -> None:
    text = json.dumps(value)
    assume("NaN" not in text and "Infinity" not in text)

    assert json.loads(write_json(read_json(text))) == json.loads(text)


JSON_TEXTS = st.builds(
    lambda value, separators: json.dumps(value, separators=separators, ensure_ascii=False).encode(),
    st.recursive(
        st.none() | st.integers() | st.text('a, :[]{}\t\\"'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("a ,:}"), inner),
        max_leaves=8,
    ),
    st.sampled_from([(",", ":"), (", ", ": "), (",\n", ":"), ("\t,", ":"), (",", "\r: ")]),
)


@given(st.lists(JSON_TEXTS, max_size=4))
@example([b"[ ]"])
@example([b"{\n}", b"1"])
@example([b'{"a":"b, c"}', b"null"])
def test_texts_that_seem_to_have_no_spaces_between_their_parts_have_none(texts: list[bytes]) -> None:
    assert all_without_spaces(texts) == [without_spaces(text) for text in texts]


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a\nb"])
def test_a_member_of_any_name_is_a_document(name: str) -> None:
    path = f"$['{name}']" if '"' in name else f'$["{name}"]'

    rows = parse(Json(columns={"j": "jsonb"}, paths={"j": path}), [json.dumps({name: [1, 2]}).encode()] * 300)

    assert rows == [{"j": "[1,2]", "_error": None}] * 300


@pytest.mark.parametrize("kind", ["json", "jsonb"])
@settings(deadline=None)
@given(st.lists((DOCUMENTS | ODD).map(lambda value: value.decode(errors="replace")), max_size=4))
def test_a_document_is_refused_as_the_check_of_each_refuses_it(kind: str, texts: list[str]) -> None:
    """PostgreSQL would take or refuse it so; msgspec's parser only says which texts need no closer look."""

    def is_refused(text: str) -> bool:
        try:
            check_json(text, binary=kind == "jsonb")
        except DoesNotFitError:
            return True
        return False

    cast = cast_column("j", pa.array(texts, pa.string()), parse_type(kind))

    assert [row in cast.problems for row in range(len(texts))] == [is_refused(text) or "\0" in text for text in texts]
    assert all(value in (text, None) for value, text in zip(cast.array.to_pylist(), texts, strict=True))


@pytest.mark.parametrize(
    ("key", "expected", "error"),
    [
        (b'{"id":7,"x":1}', (7, None), None), (b'{"id": 7, "address": {"city": "Bern"}}', (7, "Bern"), None),
        (b"7", (None, None), None), (None, (None, None), None), (b"\xff", (None, None), None), (b"[1]", (None, None), None),
        (b'{"address": 1}', (None, None), "key: city: 1 at $.address is not an object"),
    ],
)  # fmt: skip
def test_a_json_tombstone_takes_its_columns_from_its_key_by_the_same_paths(
    key: bytes | None, expected: tuple[int | None, str | None], error: str | None
) -> None:
    rows = parse(ADDRESS, [b'{"id":1}', None, b'{"id":3}'], [None, key, b'{"id":9}'])

    assert [(row["id"], row["city"]) for row in rows] == [(1, None), expected, (3, None)]
    assert [row["_error"] and printable(row["_error"]) for row in rows] == [None, error, None]


def test_bytes_are_given_as_they_are() -> None:
    values = [b"\x00\xff", None, b""]

    assert parse(Bytes(), values) == [{"value": value, "_error": None} for value in values]


def test_a_regex_gives_columns_nulls_and_errors() -> None:
    parser = Regex(pattern=r"(?P<k>\w+)=(?P<v>\d*)(?P<unit>kg|)(;(?P<note>.*))?", columns={"v": "integer"})

    rows = parse(parser, [b"a=1", b"a=2kg;", b"b=", b"a=1\n", b"x", b"\xff", None, b"a=99999999999", b"n=1;hey"])

    assert [tuple(row.values())[:4] for row in rows] == [
        ("a", 1, "", None),
        ("a", 2, "kg", ""),
        ("b", None, "", None),
        *[(None, None, None, None)] * 4,
        ("a", None, "", None),
        ("n", 1, "", "hey"),
    ]
    errors = [row["_error"] or "" for row in rows]
    assert [bool(error) for error in errors] == [False, False, True, True, True, True, False, True, False]
    assert "does not match" in errors[3]
    assert printable(errors[7]).startswith("v: '99999999999' does not fit integer")


# Pieces of RE2's syntax that Python's re reads in another way or refuses, beside ordinary ones.
PIECES = st.sampled_from(
    ["a", ".", " ", "[[:alpha:]]", "[^[:^digit:]]", "[]a]", "[^](]", r"[\])]", r"\pL", r"\p{Greek}", r"\PN", r"\d", r"\x{3b1}",
     r"\Qa(\E", r"\Q\\E", r"\(", r"\\", r"\b", "$", "^", r"\A", r"\z", "(?i)", "(?U)", "(?s)", "(?m)", "(?i:a)", "(a)", "(?:a|)"]
)  # fmt: skip
REPEATS = st.sampled_from(["", "?", "*", "+", "{2}", "*?", "??"])


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Named groups that may be absent, empty, nested or repeated, between pieces."""
    parts: list[str] = []
    for name in draw(st.lists(st.sampled_from(["g", "größe", "_1", "B"]), min_size=1, max_size=3, unique=True)):
        inner = "".join(draw(st.lists(st.tuples(PIECES, REPEATS).map("".join), max_size=3)))
        named = f"({draw(st.sampled_from(['?P', '?']))}<{name}>{inner}){draw(REPEATS)}"
        parts += [named, draw(st.sampled_from(["", "|", *parts])), draw(PIECES)]
    closing = draw(st.sampled_from(["", r"\Qa", r"\Q", "(?P<last>[[:space:]]+)?"]))
    return "".join(parts) + closing


@settings(max_examples=400, deadline=None)
@example("(?P<g>a*?(a)*?)*|a", ["aa"])  # without the unnamed group RE2 finds another g
@example("(?P<unnamed0>a)(b)", ["ab"])
@given(patterns(), st.lists(st.text("aA1 \n(\\αé", max_size=6), max_size=6))
def test_one_engine_decides_match_and_groups(pattern: str, texts: list[str]) -> None:
    """A group that took no part is NULL and an empty one is empty, in RE2's syntax (field f06)."""
    try:
        parser = Regex(pattern=pattern)
    except DeclarationError:
        assume(False)
    compiled = re2.compile(pattern)

    rows = parse(parser, [text.encode() for text in texts])

    assert list(parser.record) == sorted(compiled.groupindex, key=compiled.groupindex.__getitem__)
    for text, row in zip(texts, rows, strict=True):
        match = compiled.fullmatch(text)
        assert (row["_error"] is None) == (match is not None)
        assert {name: row[name] for name in parser.record} == (
            match.groupdict() if match else dict.fromkeys(parser.record)
        )


def test_an_absent_group_is_null_and_no_empty_text() -> None:
    parser = Regex(pattern=r"(?P<word>[[:alpha:]]+)(?: (?P<n>\pN+))?(?: (?P<unit>[a-z]*))?", columns={"n": "integer"})

    rows = parse(parser, [b"abc", b"abc 7", b"abc ", b"abc 7 kg"])

    assert [tuple(row.values()) for row in rows] == [
        ("abc", None, None, None), ("abc", 7, None, None), ("abc", None, "", None), ("abc", 7, "kg", None),
    ]  # fmt: skip


def test_a_match_takes_no_time_that_doubles_with_each_letter() -> None:
    """Nested repeats and an absent group: with a backtracking engine the test does not end (field f05)."""
    parser = Regex(pattern=r"(?P<what>(?:\S+\s*)+) at (?P<place>(?:[a-z/]+)+)(?: by (?P<who>\S+))?")

    rows = parse(parser, [b"disk full at " + b"/var/lib" * 10_000, b"disk full at " + b"/var/lib" * 10_000 + b"!"])

    assert (rows[0]["what"], rows[0]["who"], rows[0]["_error"]) == ("disk full", None, None)
    assert rows[1]["_error"] is not None


def test_a_stored_pattern_that_re2_refuses_stays_readable_and_is_refused_before_any_record() -> None:
    """Older versions checked a pattern with Python's re alone; its epoch must be abortable."""
    stored = pipeline(parse=Regex(pattern="(?P<a>x)")).stored()

    read = Pipeline.from_stored(stored.replace("(?P<a>x)", "(?P<a>x(?=y))y"))

    assert read.parsed_columns == {"a": "text"}
    with pytest.raises(DeclarationError, match="RE2"):
        build_parser(read.spec)


# A column's type, its unit or scale, the member's text, and the value as text; None: refused.
NUMBERS: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("timestamptz", {"unit": "s"}, "1700000000", "2023-11-14 22:13:20+00"),
    ("timestamptz", {"unit": "s"}, "1700000000.123456", "2023-11-14 22:13:20.123456+00"),
    ("timestamptz", {"unit": "s"}, "1700000000.1234567", None),
    ("timestamptz", {"unit": "ms"}, "1700000000123", "2023-11-14 22:13:20.123+00"),
    ("timestamptz", {"unit": "ms"}, "-1", "1969-12-31 23:59:59.999+00"),
    ("timestamptz", {"unit": "ms"}, "9224318015999999", "294276-12-31 23:59:59.999+00"),
    ("timestamptz", {"unit": "ms"}, "9224318016000000", None),
    ("timestamptz", {"unit": "ms"}, "9223372036854775807", None),
    ("timestamptz", {"unit": "ms"}, "-9223372036854775808", None),
    ("timestamp", {"unit": "us"}, "1700000000123456", "2023-11-14 22:13:20.123456"),
    ("timestamp", {"unit": "us"}, "-210866803200000000", "4714-11-24 00:00:00 BC"),
    ("timestamp", {"unit": "us"}, "-210866803200000001", None),
    ("timestamp", {"unit": "us"}, "-9222425352054775808", None),
    ("timestamp", {"unit": "ns"}, "1700000000123456000", "2023-11-14 22:13:20.123456"),
    ("timestamp", {"unit": "ns"}, "1700000000123456789", None),
    ("timestamp", {"unit": "days"}, "19782", "2024-02-29 00:00:00"),
    ("date", {"unit": "days"}, "19782", "2024-02-29"),
    ("date", {"unit": "days"}, "2145042905", "5874897-12-31"),
    ("date", {"unit": "days"}, "2145042906", None),
    ("date", {"unit": "days"}, "-2147472691", None),
    ("date", {"unit": "days"}, "-2147472692", None),
    ("date", {"unit": "ms"}, "1709164800000", "2024-02-29"),
    ("date", {"unit": "ms"}, "1709164800001", None),
    ("time", {"unit": "ms"}, "86399999", "23:59:59.999"),
    ("time", {"unit": "us"}, "86400000000", "24:00:00"),
    ("time", {"unit": "us"}, "86400000001", None),
    ("time", {"unit": "us"}, "-1", None),
    ("timestamptz", {"unit": "ms"}, '"2024-02-29T00:00:00Z"', "2024-02-29 00:00:00+00"),
    ("timestamptz", {"unit": "ms"}, '"1700000000123"', None),
    ("timestamptz", {"unit": "ms"}, "1e12", None),
    ("timestamptz", {"unit": "ms"}, "true", None),
    ("timestamptz", {}, "1700000000123", None),
    ("numeric(12,2)", {"scale": {"v": 2}}, '"B1vNFQ=="', "1234567.89"),
    ("numeric(12,2)", {"scale": {"v": 4}}, '"B1vNFQ=="', None),
    ("numeric", {"scale": {"v": 4}}, '"B1vNFQ=="', "12345.6789"),
    ("numeric", {"scale": {"v": 0}}, '"/w=="', "-1"),
    ("numeric", {"scale": {"v": -2}}, '"AQ=="', "100"),
    ("numeric", {"scale": {"v": 2}}, '""', None),
    ("numeric", {"scale": {"v": 2}}, '"B1vNFQ"', None),
    ("numeric", {"scale": {"v": 2}}, "12.5", None),
    ("numeric", {}, '{"scale": 2, "value": "B1vNFQ=="}', "1234567.89"),
    ("numeric(12,2)", {}, '{"scale": 3, "value": "B1vNFQ=="}', None),
    ("numeric", {}, '{"scale": 2.5, "value": "B1vNFQ=="}', None),
    ("numeric", {}, '{"scale": 2, "value": "B1vNFQ==", "more": 1}', None),
]


@pytest.mark.parametrize("records", [1, 600], ids=["one by one", "at once"])
@pytest.mark.parametrize(("kind", "declared", "member", "shown"), NUMBERS, ids=str)
def test_a_number_that_stands_for_a_time_or_a_decimal_is_exact_or_refused(
    kind: str, declared: dict[str, Any], member: str, shown: str | None, records: int
) -> None:
    values = [b"{}"] * (records - 1) + [f'{{"v": {member}}}'.encode()]

    rows = parsed(Json(columns={"v": kind}, **declared), values)

    error = rows.column("_error")[-1].as_py()
    assert (error is None) is (shown is not None), error
    assert as_text(rows.column("v"), parse_type(kind))[-1].as_py() == shown
    assert rows.column("_error").null_count == records - (shown is None)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"unit": "minutes"}, "minutes is no unit"),
        ({"unit": {"n": "ms"}}, "n is not a column of type date"),
        ({"unit": {"x": "ms"}}, "x is not a column of type date"),
        ({"scale": {"at": 2}}, "at is not a column of type numeric"),
    ],
)
def test_a_unit_or_scale_that_no_column_can_have_is_refused(declared: dict[str, Any], said: str) -> None:
    for parser in (Json, Avro) if "unit" in declared else (Json,):
        with pytest.raises(DeclarationError, match=said):
            parser(columns={"n": "numeric", "at": "timestamptz"}, **declared)


@pytest.mark.parametrize("kind", [Json, Avro])
def test_a_unit_counts_for_each_column_of_a_time(kind: type[Json | Avro]) -> None:
    parser = kind(columns={"n": "numeric", "at": "timestamptz", "day": "date"}, unit="ms")

    assert parser.units == {"at": "ms", "day": "ms"}
