"""The comparison of an access log with its tables, fed by hand, and the maker of such logs."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from epochline_examples.access_log import maker
from epochline_examples.access_log.check import Comparison, Report, Row, main, parse, read_lines
from epochline_examples.access_log.maker import MALFORMED as NO_LINE
from epochline_examples.access_log.maker import ODD, Line, lines

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


OTHER_VALUES = ("192.0.2.8", 0, 201, None, None, "/", "HTTP/1.0", None, "curl")
ALTERED = [(*CLEAN_ROW[:at], value, *CLEAN_ROW[at + 1 :]) for at, value in enumerate(OTHER_VALUES)]
DIFFERENCES: dict[str, tuple[dict[str, Any], str, str]] = {
    **{
        f"value {at}": ({"rows": [row, DASH_ROW, ESCAPED_ROW]}, "altered", f"altered: {CLEAN.decode()} became")
        for at, row in enumerate(ALTERED)
    },
    "no line": ({"rows": [*ROWS, ("x", 1, 2, 3, None, "", None, None, None)]}, "not produced", ""),
    "not quarantined": ({"quarantine": []}, "quarantine differing", "malformed, not quarantined: "),
    "quarantined twice": ({"quarantine": [MALFORMED] * 2}, "quarantine differing", "quarantined too often: "),
    "sound": ({"quarantine": [MALFORMED, CLEAN]}, "quarantine differing", "quarantined, not malformed: "),
    "no value": ({"quarantine": [MALFORMED, None]}, "quarantine differing", "quarantined, not malformed: NULL"),
    "no client": ({"clients": CLIENTS[:1]}, "requests_per_client differing", ""),
    "a client too many": ({"clients": [*CLIENTS, ("192.0.2.9", 1, 1)]}, "requests_per_client differing", ""),
    "requests": ({"clients": [("192.0.2.7", 3, 10), CLIENTS[1]]}, "requests_per_client differing", ""),
    "bytes": ({"clients": [("192.0.2.7", 2, 20), CLIENTS[1]]}, "requests_per_client differing", ""),
}  # fmt: skip


@pytest.mark.parametrize(("held", "verdict", "sample"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_each_difference_is_named_with_a_sample(log: Path, held: dict[str, Any], verdict: str, sample: str) -> None:
    """In rows, in the quarantine, which holds the malformed lines and no others, and in the sums per client."""
    report = compare(log, **held)

    assert report.verdict == f"NOT EXACT: {verdict} 1"
    assert not sample or report.samples[0].startswith(sample)


def test_equal_lines_and_a_log_named_twice_are_counted_not_merged(log: Path) -> None:
    log.write_bytes(CLEAN + b"\n" + CLEAN + b"\n")
    clients: Clients = [("192.0.2.7", 2, 20)]

    assert compare(log, [CLEAN_ROW] * 2, [], clients).exact
    assert compare(log, [CLEAN_ROW], [], clients).verdict == "NOT EXACT: missing 1"
    assert compare(log, [CLEAN_ROW] * 3, [], clients).verdict == "NOT EXACT: duplicates 1"
    log.write_bytes(CLEAN + b"\n")
    assert compare(log, [CLEAN_ROW] * 2, [], clients, times_named=2).exact


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


REGULAR = Line(
    client="192.0.2.7", user="-", time="17/May/2015:10:05:03 +0000", request="GET /index.html HTTP/1.1", status="200",
    size="203023", tail=' "http://www.example.com/" "curl/7.35.0"',
)  # fmt: skip


@pytest.fixture(scope="module")
def lines_of_the_maker() -> list[bytes]:
    return list(lines(10_000, 7))


def test_a_seed_and_a_count_give_the_same_bytes_in_every_version_of_python_and_of_this_module(
    lines_of_the_maker: list[bytes],
) -> None:
    assert list(lines(10_000, 7)) == lines_of_the_maker
    digest = hashlib.sha256(b"\n".join(lines_of_the_maker)).hexdigest()
    assert digest == "318e25326052ec25eaf5d34434e38e5b72b4ecf050fc45851e956e7416d5365f"


def test_ten_thousand_lines_of_utf_8_hold_25_malformed_ones_and_no_line_end(lines_of_the_maker: list[bytes]) -> None:
    assert sum(parse(line) is None for line in lines_of_the_maker) == 25
    assert not any(b"\n" in line or b"\r" in line or not line for line in lines_of_the_maker)
    assert all(line.decode() for line in lines_of_the_maker)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_line_is_sound(kind: str) -> None:
    line = str(ODD[kind](Random(1), REGULAR))

    assert line != str(REGULAR)
    assert parse(line.encode()) is not None


@pytest.mark.parametrize("kind", NO_LINE)
def test_a_malformed_line_cannot_be_read_whatever_it_was_made_of(kind: str, lines_of_the_maker: list[bytes]) -> None:
    pattern = re.compile(
        r'(?P<client>\S+) - (?P<user>\S+) \[(?P<time>.+?)\] "(?P<request>.*?)" (?P<status>\d{3}) (?P<size>\d+|-)(?P<tail>.*)'
    )
    regular = [line.decode() for line in lines_of_the_maker if parse(line)]

    for seed, line in enumerate([str(REGULAR), *regular[:500]], start=1):
        parts = pattern.fullmatch(line)
        assert parts is not None
        made = NO_LINE[kind](Random(seed), Line(**parts.groupdict()))
        assert parse(made.encode()) is None, made


def test_the_command_writes_the_lines_each_with_a_line_end(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    out = tmp_path / "access.log"

    assert maker.main(["--lines", "50", "--seed", "3", "--out", str(out)]) == 0
    assert maker.main(["--lines", "50", "--seed", "3"]) == 0

    assert out.read_bytes() == b"".join(line + b"\n" for line in lines(50, 3))
    assert capsysbinary.readouterr().out == out.read_bytes()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert maker.main(["--lines", "1", "--out", str(tmp_path / "missing" / "access.log")]) == 2

    assert "missing/access.log cannot be written" in capsys.readouterr().err
