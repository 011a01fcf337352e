"""`feed --from-jsonl`: what a line means as a record, and which lines are refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.kafka.outgoing import Outgoing, json_record, plain_record


@pytest.mark.parametrize("line", [b"", b"{}", b" a\r", b"\xff\x00"])
def test_a_plain_line_is_a_value_byte_for_byte(line: bytes) -> None:
    assert plain_record(line + b"\n") == plain_record(line) == Outgoing(key=None, value=line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"value": "a"}\n', Outgoing(None, b"a")),
        (b' { "value" : "" , "key" : "" } \r\n', Outgoing(b"", b"")),
        (b'{"key": "k", "value": null}', Outgoing(b"k", None)),
        (b'{"key": null, "value": "\xc3\xa4\\u00e4"}', Outgoing(None, "ää".encode())),
        (b'{"value": {"n": 12.50, "big": 12345678901234567890123, "e": 1e2}}',
         Outgoing(None, b'{"n": 12.50, "big": 12345678901234567890123, "e": 1e2}')),
        (b'{"value": [1,  true]}', Outgoing(None, b"[1,  true]")),
        (b'{"value": 1.10}', Outgoing(None, b"1.10")),
        (b'{"value": false}', Outgoing(None, b"false")),
        (b'{"key_base64": "/w==", "value_base64": "AAE="}', Outgoing(b"\xff", b"\x00\x01")),
        (b'{"key_base64": null, "value_base64": null}', Outgoing(None, None)),
        (b'{"value": 1, "headers": {"a": "x", "b": null}}', Outgoing(None, b"1", (("a", b"x"), ("b", None)))),
        (b'{"value": 1, "headers": [["a", "x"], ["a", null]]}', Outgoing(None, b"1", (("a", b"x"), ("a", None)))),
        (b'{"value": 1, "headers": null, "partition": null, "timestamp": null}', Outgoing(None, b"1")),
        (b'{"value": 1, "partition": 0}', Outgoing(None, b"1", partition=0)),
        (b'{"value": 1, "timestamp": 1772362800001}', Outgoing(None, b"1", timestamp_ms=1772362800001)),
        (b'{"value": 1, "timestamp": "2026-03-01T11:00:00.001Z"}', Outgoing(None, b"1", timestamp_ms=1772362800001)),
    ],
)  # fmt: skip
def test_a_json_line_says_what_the_record_is(line: bytes, expected: Outgoing) -> None:
    assert json_record(line) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "is not one JSON object"), (b"[]", "is not one JSON object"), (b'"canary"', "is not one JSON object"),
        (b'{"value": 1} {"value": 2}', "Extra data"), (b'{"value": 1', "is not one JSON object"), (b"{}", "is not one"),
        (b'{"value": canary}', "is not one JSON object"), (b'{1: 2}', "a name in quotes"), (b"\xff", "is not UTF-8"),
        (b'{"value": NaN}', "has NaN, which is not JSON"), (b'{"value": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"value": 1, "values": "canary"}', "has the member 'values'; a record has key, key_base64, value"),
        (b'{"key": "canary"}', "has no value; write null for a tombstone"),
        (b'{"value": "canary", "value_base64": ""}', "has both value and value_base64"),
        (b'{"value": 1, "value": 2}', "has the member 'value' twice"),
        (b'{"value": 1, "key": 7}', "has a key that is neither a text nor null; write it in quotes"),
        (b'{"value": "\\ud800"}', "half a surrogate pair in value"),
        (b'{"value_base64": "canary!"}', "value_base64 that is not base64"), (b'{"value_base64": 7}', "is not base64"),
        (b'{"value": 1, "headers": "canary"}', "neither an object nor a list of pairs"),
        (b'{"value": 1, "headers": {"a": 1}}', "neither an object nor a list of pairs"),
        (b'{"value": 1, "headers": [["a"]]}', "neither an object nor a list of pairs"),
        (b'{"value": 1, "headers": {"\\ud800": "a"}}', "half a surrogate pair in headers"),
        (b'{"value": 1, "partition": -1}', "partition that is not a number from 0"),
        (b'{"value": 1, "partition": "0"}', "partition that is not"), (b'{"value": 1, "partition": true}', "partition"),
        (b'{"value": 1, "timestamp": "2026-03-01T11:00:00"}', "without a zone"),
        (b'{"value": 1, "timestamp": "canary"}', "not ISO 8601"), (b'{"value": 1, "timestamp": 0}', "positive"),
        (b'{"value": 1, "timestamp": 1.5}', "a positive number"), (b'{"value": 1, "timestamp": "1960-01-01Z"}', "ISO"),
        (b'{"value": 1, "timestamp": 9223372036854775808}', "a positive number"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_is_refused_without_showing_its_values(line: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        json_record(line)

    assert said in str(refused.value)
    assert "canary" not in str(refused.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_any_value_but_a_text_or_null_is_sent_as_its_json_text(value: object) -> None:
    text = json.dumps(value)

    sent = json_record(f'{{"key": "k", "value": {text}}}'.encode()).value

    expected = None if value is None else value.encode() if isinstance(value, str) else text.encode()
    assert sent == expected
