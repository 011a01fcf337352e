"""The access log's parse: every line a server may write, and nothing altered."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochline_examples.access_log import check
from pipelines import access_log

LINE = (
    b'83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 203023 "http://x/" "Mozilla/5.0 (X; Y)"'
)
PARSED: dict[str, Any] = {
    "client": "83.149.9.216", "ts": datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC), "method": "GET", "path": "/a?b=1",
    "protocol": "HTTP/1.1", "status": 200, "bytes": 203023, "referrer": "http://x/",
    "user_agent": "Mozilla/5.0 (X; Y)", "_error": None,
}  # fmt: skip


def parsed(*lines: bytes | None) -> pa.RecordBatch:
    return access_log.parse(pa.record_batch({"value": pa.array(lines, pa.binary())}))


def parse(*lines: bytes | None) -> list[dict[str, Any]]:
    return list(parsed(*lines).to_pylist())


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        (b' "http://x/" "Mozilla/5.0 (X; Y)"', b"", {"referrer": None, "user_agent": None}),
        (b' "Mozilla/5.0 (X; Y)"', b"", {"user_agent": None}),
        (b' "http://x/" "Mozilla/5.0 (X; Y)"', b' "http://x/', {"user_agent": None}),
        (b'(X; Y)"', b"(X; Y", {"user_agent": "Mozilla/5.0 (X; Y"}),
        (b'(X; Y)"', b"(X\\", {"user_agent": "Mozilla/5.0 (X\\"}),
        (b'(X; Y)"', b'(X; Y)" "more" 12', {}),
        (b'(X; Y)"', b'(X; Y)"\r\n', {}),
        (b"Mozilla/5.0 (X; Y)", b'say \\"hi\\" \\\\', {"user_agent": 'say \\"hi\\" \\\\'}),
        (b"Mozilla/5.0 (X; Y)", "Müller 🐎".encode(), {"user_agent": "Müller 🐎"}),
        (b"Mozilla/5.0 (X; Y)", b"-", {"user_agent": "-"}),
        (b"Mozilla/5.0 (X; Y)", b"", {"user_agent": ""}),
        (b"Mozilla", b"Mo\xffilla", {"user_agent": "Mo\\xffilla/5.0 (X; Y)"}),
        (b"Mozilla", b"Mo\0illa", {"user_agent": "Mo\\x00illa/5.0 (X; Y)"}),
        (b"GET /a?b=1 HTTP/1.1", b'GET /a"b HTTP/1.1', {"path": '/a"b'}),
        (b"http://x/", b'a\\"b', {"referrer": 'a\\"b'}),
        (b"203023", b"-", {"bytes": None}),
        (b"203023", b"0", {"bytes": 0}),
        (b"203023", b"999999999999999999", {"bytes": 999999999999999999}),
        (b"83.149.9.216", b"crawler.example.com", {"client": "crawler.example.com"}),
        (b"83.149.9.216", b"2001:db8::1", {"client": "2001:db8::1"}),
        (b"83.149.9.216", b"::ffff:192.0.2.7", {"client": "::ffff:192.0.2.7"}),
        (b"83.149.9.216", b"fe80::1%eth0", {"client": "fe80::1%eth0"}),
        (b"83.149.9.216", b"unknown", {"client": "unknown"}),
        (b"83.149.9.216", b"h\xff\0st", {"client": "h\\xff\\x00st"}),
        (b"83.149.9.216", b"-", {"client": "-"}),
        (b"216 - -", b"216 1001 -", {}),
        (b"216 - -", b"216 - -frank", {}),
        (b"216 - -", b"216 - -  ", {}),
        (b"216 - -", b"216 ident frank", {}),
        (b"216 - -", b"216 - a user [of sorts]", {}),
        (b"216 - -", b'216 - "a user"', {}),
        (b"GET /a?b=1 HTTP/1.1", b"-", {"method": None, "path": "-", "protocol": None}),
        (b"GET /a?b=1 HTTP/1.1", b"", {"method": None, "path": "", "protocol": None}),
        (b"GET /a?b=1 HTTP/1.1", b"GET /old", {"method": None, "path": "GET /old", "protocol": None}),
        (b"GET /a?b=1 HTTP/1.1", b"GET /a b c HTTP/1.1", {"path": "/a b c"}),
        (b"GET /a?b=1 HTTP/1.1", b'GET /\\"x HTTP/1.0', {"path": '/\\"x', "protocol": "HTTP/1.0"}),
        (b"GET /a?b=1 HTTP/1.1", b"\\x16\\x03\\x01", {"method": None, "path": "\\x16\\x03\\x01", "protocol": None}),
        (b"10:05:03 +0000", b"10:05:03 +0530", {"ts": datetime(2015, 5, 17, 4, 35, 3, tzinfo=UTC)}),
        (b"10:05:03 +0000", b"10:05:03 -0800", {"ts": datetime(2015, 5, 17, 18, 5, 3, tzinfo=UTC)}),
        (b"17/May", b"17/MAY", {}),
        (b"10:05:03 +0000", b"15:50:03 +0545", {}),
        (b"17/May/2015:10:05:03", b"29/Feb/2016:00:00:00", {"ts": datetime(2016, 2, 29, tzinfo=UTC)}),
        (b"17/May/2015:10:05:03", b"31/Dec/1969:23:59:59", {"ts": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)}),
    ],
)  # fmt: skip
def test_a_combined_line_gives_every_column_and_an_odd_line_passes(
    old: bytes, new: bytes, differs: dict[str, Any]
) -> None:
    assert old in LINE

    row = PARSED | differs
    assert parse(LINE, LINE.replace(old, new), LINE) == [PARSED, row, PARSED]
    expected = check.parse(LINE.replace(old, new).rstrip(b"\r\n"))
    assert expected is not None
    assert expected.core == (row["client"], int(row["ts"].timestamp()) * 10**6, row["status"], row["bytes"])
    texts = [row[name] for name in ("method", "path", "protocol", "referrer", "user_agent")]
    assert expected.matches(texts)


BEFORE_THE_CLIENT = [
    "192.0.2.16, 192.0.2.22, 10.2.2.22 - -", "192.0.2.16,10.0.0.1 - -", "unknown, 10.0.0.1 - -", "192.0.2.16 10.0.0.1 - -",
    "2001:db8::1, 10.0.0.1 - frank", "10.0.0.1, proxy.example.com - -", "2001:db8::1,2001:db8::2 - -", "a.example.com 2001:db8::1 - -",
    "shop.example.com:443 192.0.2.7 - -", "shop.example.com 192.0.2.7 - -", "shop.example.com crawler.example.net - -",
    "shop.example.com:443 crawler.example.net - frank", "192.0.2.7 shop.example.com - frank", "[2001:db8::1]:443 192.0.2.7 - -",
    "192.0.2.7:51234 - -", "[2001:db8::1]:51234 - -", "[2001:db8::1] - -", "shop.example.com:443 - -", "-, 192.0.2.7 - -",
]  # fmt: skip


@pytest.mark.parametrize("strange", ["", " [of sorts]"], ids=["fast", "slow"])
@pytest.mark.parametrize("fields", BEFORE_THE_CLIENT)
def test_a_first_field_that_is_not_one_client_is_counted_under_no_name(fields: str, strange: str) -> None:
    """A list of proxies, a virtual host, a port: which address is the client, the line does not say (field f10)."""
    line = LINE.replace(b"83.149.9.216 - -", f"{fields}{strange}".encode())

    good, bad = parse(LINE, line)

    assert (good, bad["client"]) == (PARSED, None)
    assert bad["_error"] == "one client, ident and user are not what stands before the time"
    assert check.parse(line) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "places"), (b"hello", "places"), (LINE.replace(b" 200 ", b" OK "), "places"),
        (LINE.replace(b" 200 ", b" 2000 "), "places"), (LINE.replace(b" 203023", b""), "places"),
        (LINE.replace(b" 203023", b" 12x"), "places"), (LINE.replace(b" 203023", b" 1234567890123456789"), "places"),
        (LINE.replace(b"83.149.9.216 ", b""), "places"), (LINE.replace(b'HTTP/1.1"', b"HTTP/1.1"), "places"),
        (LINE.replace(b"17/May/2015:10:05:03 +0000", b"yesterday"), "no such time"),
        (LINE.replace(b"17/May", b"31/Feb"), "no such time"), (LINE.replace(b"17/May", b"17/Foo"), "no such time"),
        (LINE.replace(b"10:05:03", b"10:65:03"), "no such time"),
    ],
)  # fmt: skip
def test_a_line_without_its_fields_is_an_error_of_its_own(line: bytes, reason: str) -> None:
    good, bad, other = parse(LINE, line, LINE)

    assert good == other == PARSED
    assert reason in bad["_error"]
    assert check.parse(line) is None


def test_a_record_without_a_value_is_no_error_and_no_lines_give_no_rows() -> None:
    assert parse(None) == [dict.fromkeys(PARSED)]
    assert parse() == []


def test_per_client_counts_each_line_once_and_no_size_as_nothing() -> None:
    assert access_log.per_client(parsed(LINE, LINE.replace(b"203023", b"-"))).to_pylist() == [
        {"client": "83.149.9.216", "requests": 1, "bytes": 203023},
        {"client": "83.149.9.216", "requests": 1, "bytes": 0},
    ]


def test_a_real_log_passes_as_a_whole() -> None:
    name = os.environ.get("EPOCHLINE_TEST_LOG")
    if not name:
        pytest.skip("EPOCHLINE_TEST_LOG names no access log")
    lines = Path(name).read_bytes().splitlines()

    rows = parse(*lines)

    assert [row["_error"] for row in rows if row["_error"]] == []
    assert sum(row["bytes"] is None for row in rows) == sum(
        b'" ' in line and b" - " in line.split(b'"')[2] + b" " for line in lines
    )
    assert not any(row["method"] is None for row in rows)
