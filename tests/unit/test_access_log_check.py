"""The independent reading of a line, and the comparison, fed by hand."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochline_examples.access_log.check import ANYTHING, Comparison, Expected, Report, Row, main, parse, read_lines

Clients = list[tuple[str, int | None, int | None]]

CLEAN = b'192.0.2.7 - - [17/May/2015:12:05:03 +0200] "GET /a?b=1 HTTP/1.1" 200 10 "http://x/" "curl/7"'
DASH = b'192.0.2.7 - frank [17/May/2015:10:05:04 +0000] "GET /b HTTP/1.0" 304 - "-" "-"'
ESCAPED = rb'host.example - - [17/May/2015:10:05:05 +0000] "GET /c HTTP/1.1" 200 7 "-" "a \"b\" c"'
MALFORMED = b'192.0.2.7 - - [32/Foo/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 10 "-" "-"'
SECONDS = 1431857103

CLEAN_ROW: Row = ("192.0.2.7", SECONDS * 10**6, 200, 10, "GET", "/a?b=1", "HTTP/1.1", "http://x/", "curl/7")
DASH_ROW: Row = ("192.0.2.7", (SECONDS + 1) * 10**6, 304, None, "GET", "/b", "HTTP/1.0", "-", "-")
ESCAPED_ROW: Row = ("host.example", (SECONDS + 2) * 10**6, 200, 7, "GET", "/c", "HTTP/1.1", "-", r"a \"b\" c")
ROWS = [CLEAN_ROW, DASH_ROW, ESCAPED_ROW]
CLIENTS: Clients = [("192.0.2.7", 2, 10), ("host.example", 1, 7)]

TIME, REQUEST = b"17/May/2015:10:05:03 +0000", b"GET / HTTP/1.1"
LINE = b'h - - [%s] "%s" 200 1' % (TIME, REQUEST)


def sound(text: bytes) -> Expected:
    parsed = parse(text)
    assert parsed is not None
    return parsed


def test_every_column_of_a_regular_line_is_sure() -> None:
    parsed = sound(CLEAN)

    assert (parsed.client, parsed.seconds, parsed.status, parsed.size) == ("192.0.2.7", SECONDS, 200, 10)
    assert parsed.texts == ("GET", "/a?b=1", "HTTP/1.1", "http://x/", "curl/7")
    assert parsed.sure


@pytest.mark.parametrize(
    ("request_text", "columns"),
    [
        pytest.param(b"", (None, "", None), id="empty"),
        pytest.param(b"-", (None, "-", None), id="dash"),
        pytest.param(b"GET /x", (None, "GET /x", None), id="no protocol"),
        pytest.param(b"HELP", (None, "HELP", None), id="one word"),
        pytest.param(b"GET /a b HTTP/1.1", (ANYTHING,) * 3, id="space in the path"),
        pytest.param(b"GET / RTSP/1.0", (ANYTHING,) * 3, id="another protocol"),
        pytest.param(b"GET /a/1.0", (None, "GET /a/1.0", None), id="a path like a protocol"),
        pytest.param(b"get / HTTP/1.1", (ANYTHING,) * 3, id="small letters"),
        pytest.param(b'GET /"x HTTP/1.1', (ANYTHING,) * 3, id="unescaped quote"),
        pytest.param(rb"\x16\x03", (None, frozenset({r"\x16\x03", "\x16\x03"}), None), id="bytes"),
        pytest.param(rb"GET /\" HTTP/1.1", ("GET", frozenset({r"/\"", '/"'}), "HTTP/1.1"), id="escaped quote"),
    ],
)
def test_a_request_is_regular_or_odd_or_may_be_read_in_several_ways(
    request_text: bytes, columns: tuple[object, ...]
) -> None:
    assert sound(LINE.replace(REQUEST, request_text)).texts[:3] == columns


@pytest.mark.parametrize(
    ("tail", "columns"),
    [
        pytest.param(b"", (None, None), id="common log format"),
        pytest.param(b' "-" "-"', ("-", "-"), id="dashes"),
        pytest.param(b' "-" "Mozilla', (ANYTHING, ANYTHING), id="no closing quote"),
        pytest.param(b' "-"', (ANYTHING, ANYTHING), id="no agent"),
        pytest.param(' "-" "Обозреватель 🦊"'.encode(), ("-", "Обозреватель 🦊"), id="other scripts"),
        pytest.param(b' "-" "caf\xe9"', ("-", ANYTHING), id="not utf-8"),
        pytest.param(rb' "-" "\xe9\n\\"', ("-", frozenset({r"\xe9\n\\", "\xe9\n\\"})), id="escapes"),
    ],
)
def test_referrer_and_agent_are_sure_where_the_tail_is_regular(tail: bytes, columns: tuple[object, ...]) -> None:
    assert sound(LINE + tail).texts[3:] == columns


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (TIME, SECONDS), (b"17/May/2015:15:50:03 +0545", SECONDS), (b"17/May/2015:06:35:03 -0330", SECONDS),
        (b"17/MAY/2015:10:05:03 +0000", SECONDS), (b"29/Feb/2016:00:00:00 +0000", 1456704000),
        (b"31/Dec/1969:23:59:59 +0000", -1),
    ],
)  # fmt: skip
def test_a_time_is_an_instant_whatever_its_zone(time: bytes, seconds: int) -> None:
    assert sound(LINE.replace(TIME, time)).seconds == seconds


@pytest.mark.parametrize(
    "malformed",
    [
        b"", b" \t ", b'{"client": "192.0.2.7"}', b"h - - [17/May/20", MALFORMED,
        LINE.replace(TIME, b"29/Feb/2015:10:05:03 +0000"), LINE.replace(TIME, b"17/May/2015:25:05:03 +0000"),
        LINE.replace(TIME, b"17/May/2015:10:05:03"), LINE.replace(TIME, b"17/May/2015:10:05:03 +0075"),
        LINE.replace(b" 200 ", b" abc "), LINE.replace(b" 200 ", b" 20 "), LINE.removesuffix(b"1"),
        LINE.removesuffix(b"1") + b"12kB", LINE.removesuffix(b"1") + b"9223372036854775808",
        LINE.removeprefix(b"h - - "), LINE.replace(b' "GET / HTTP/1.1"', b""), LINE.replace(b'1.1"', b"1.1"),
    ],
)  # fmt: skip
def test_a_line_without_client_time_request_status_or_size_in_its_place_is_malformed(malformed: bytes) -> None:
    assert parse(malformed) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(LINE.replace(b"- -", b"- frank the tank"), id="user with spaces"),
        pytest.param(LINE.replace(b"- -", b"-"), id="no user"),
        pytest.param(LINE + b"\r", id="carriage return"),
        pytest.param(LINE + b' "-" "-"  ', id="blanks at the end"),
        pytest.param(LINE + b' "-" "-" "192.0.2.1" 0.003', id="more fields"),
    ],
)
def test_a_line_with_all_five_is_sound_whatever_else_it_holds(text: bytes) -> None:
    assert sound(text).seconds == SECONDS


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "access.log"
    log.write_bytes(b"\n".join([CLEAN, DASH, ESCAPED, MALFORMED]) + b"\n")
    return log


def test_only_line_ends_are_taken_off(log: Path) -> None:
    log.write_bytes(b" a \r\n\n\xff\nlast")

    assert list(read_lines(log)) == [b" a \r", b"", b"\xff", b"last"]


def compare(
    log: Path,
    rows: Sequence[Row] = ROWS,
    quarantine: Sequence[bytes | None] = (MALFORMED,),
    clients: Clients = CLIENTS,
    *,
    times_named: int = 1,
) -> Report:
    comparison = Comparison([log] * times_named)
    comparison.rows(rows)
    comparison.quarantine(quarantine)
    comparison.clients(clients)
    return comparison.report


@pytest.mark.parametrize("agent", [ESCAPED_ROW[-1], 'a "b" c'], ids=["escapes kept", "escapes resolved"])
def test_a_target_that_holds_each_line_once_is_exact(log: Path, agent: str) -> None:
    report = compare(log, [(*ESCAPED_ROW[:-1], agent), CLEAN_ROW, DASH_ROW])

    assert report.exact
    assert report.verdict == "EXACT: each of 4 lines took effect exactly once (3 rows, 1 quarantined)"
    assert report.samples == []


@pytest.mark.parametrize(
    ("line", "row"), [(CLEAN, CLEAN_ROW), (DASH, DASH_ROW), (ESCAPED, ESCAPED_ROW)], ids=["sure", "dash", "unsure"]
)
def test_a_line_without_a_row_is_missing_and_a_second_row_is_a_duplicate(log: Path, line: bytes, row: Row) -> None:
    less, more = compare(log, [other for other in ROWS if other != row]), compare(log, [*ROWS, row])

    assert less.verdict == "NOT EXACT: missing 1"
    assert less.samples == [f"missing: {line.decode()}"]
    assert more.verdict == "NOT EXACT: duplicates 1"
    assert more.samples[0].startswith(f"duplicate: {row[0]} | 2015-05-17T10:05:0")


ALTERED: list[Row] = [
    ("192.0.2.8", *CLEAN_ROW[1:]), (*CLEAN_ROW[:1], 0, *CLEAN_ROW[2:]), (*CLEAN_ROW[:2], 201, *CLEAN_ROW[3:]),
    (*CLEAN_ROW[:3], None, *CLEAN_ROW[4:]), (*CLEAN_ROW[:4], None, *CLEAN_ROW[5:]), (*CLEAN_ROW[:5], "/", *CLEAN_ROW[6:]),
    (*CLEAN_ROW[:6], "HTTP/1.0", *CLEAN_ROW[7:]), (*CLEAN_ROW[:7], None, *CLEAN_ROW[8:]), (*CLEAN_ROW[:8], "curl"),
]  # fmt: skip


@pytest.mark.parametrize("row", ALTERED, ids=range(9))
def test_a_row_with_another_value_is_altered(log: Path, row: Row) -> None:
    report = compare(log, [row, DASH_ROW, ESCAPED_ROW])

    assert report.verdict == "NOT EXACT: altered 1"
    assert report.samples[0].startswith(f"altered: {CLEAN.decode()} became")


def test_a_row_of_no_line_is_not_produced(log: Path) -> None:
    report = compare(log, [*ROWS, ("x", 1, 2, 3, None, "", None, None, None)])

    assert report.verdict == "NOT EXACT: not produced 1"


def test_equal_lines_and_a_log_named_twice_are_counted_not_merged(log: Path) -> None:
    log.write_bytes(CLEAN + b"\n" + CLEAN + b"\n")
    clients: Clients = [("192.0.2.7", 2, 20)]

    assert compare(log, [CLEAN_ROW] * 2, [], clients).exact
    assert compare(log, [CLEAN_ROW], [], clients).verdict == "NOT EXACT: missing 1"
    assert compare(log, [CLEAN_ROW] * 3, [], clients).verdict == "NOT EXACT: duplicates 1"
    log.write_bytes(CLEAN + b"\n")
    assert compare(log, [CLEAN_ROW] * 2, [], clients, times_named=2).exact


@pytest.mark.parametrize(
    ("quarantine", "sample"),
    [
        pytest.param([], "malformed, not quarantined: ", id="missing"),
        pytest.param([MALFORMED, MALFORMED], "quarantined too often: ", id="twice"),
        pytest.param([MALFORMED, CLEAN], "quarantined, not malformed: ", id="sound"),
        pytest.param([MALFORMED, None], "quarantined, not malformed: NULL", id="no value"),
    ],
)
def test_the_quarantine_holds_the_malformed_lines_and_no_others(
    log: Path, quarantine: list[bytes | None], sample: str
) -> None:
    report = compare(log, quarantine=quarantine)

    assert report.verdict == "NOT EXACT: quarantine differing 1"
    assert report.samples[0].startswith(sample)


@pytest.mark.parametrize(
    "clients",
    [
        pytest.param(CLIENTS[:1], id="missing"),
        pytest.param([*CLIENTS, ("192.0.2.9", 1, 1)], id="one too many"),
        pytest.param([("192.0.2.7", 3, 10), CLIENTS[1]], id="requests"),
        pytest.param([("192.0.2.7", 2, 20), CLIENTS[1]], id="bytes"),
    ],
)
def test_the_sums_per_client_are_compared(log: Path, clients: Clients) -> None:
    assert compare(log, clients=clients).verdict == "NOT EXACT: requests_per_client differing 1"


def test_at_most_five_samples_are_kept_and_long_ones_are_cut(log: Path) -> None:
    log.write_bytes(b"".join(CLEAN.replace(b"/a", b"/" + b"x" * 400 + b"%d" % n) + b"\n" for n in range(9)))

    report = compare(log, [], [], [("192.0.2.7", 9, 90)])

    assert report.missing == 9
    assert [len(sample) for sample in report.samples] == [300] * 5


def test_a_password_on_the_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--log", __file__, "--dsn", "postgresql://me:secret@127.0.0.1:1/x"]) == 2

    error = capsys.readouterr().err
    assert "PGPASSFILE" in error
    assert "secret" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--log", "/no/such/log", "--dsn", "host=127.0.0.1"], "/no/such/log is not a file", id="log"),
        pytest.param(["--log", __file__, "--dsn", "postgresql://127.0.0.1:1/x"], "port 1 failed", id="server"),
        pytest.param(["--log", __file__, "--dsn", "nonsense"], "missing", id="dsn"),
        pytest.param(["--log", __file__, "--service", "no such"], "no such", id="service"),
    ],
)
def test_what_prevents_the_comparison_is_said_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_comparison_reads_no_module_of_epochline() -> None:
    code = "import sys, epochline_examples.access_log.check; print('epochline' in sys.modules)"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
