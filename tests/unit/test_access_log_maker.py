"""The generated log: the same for a seed, sound where it says so, malformed where it says so."""

import hashlib
import re
from pathlib import Path
from random import Random

import pytest

from epochline_examples.access_log.check import parse
from epochline_examples.access_log.maker import MALFORMED, ODD, Line, lines, main

LINE = Line(
    client="192.0.2.7",
    user="-",
    time="17/May/2015:10:05:03 +0000",
    request="GET /index.html HTTP/1.1",
    status="200",
    size="203023",
    tail=' "http://www.example.com/" "curl/7.35.0"',
)


@pytest.fixture(scope="module")
def log() -> list[bytes]:
    return list(lines(10_000, 7))


def test_a_seed_and_a_count_give_the_same_bytes_in_every_version_of_python_and_of_this_module(log: list[bytes]) -> None:
    assert list(lines(10_000, 7)) == log
    digest = hashlib.sha256(b"\n".join(log)).hexdigest()
    assert digest == "318e25326052ec25eaf5d34434e38e5b72b4ecf050fc45851e956e7416d5365f"


def test_ten_thousand_lines_of_utf_8_hold_25_malformed_ones_and_no_line_end(log: list[bytes]) -> None:
    assert sum(parse(line) is None for line in log) == 25
    assert not any(b"\n" in line or b"\r" in line or not line for line in log)
    assert all(line.decode() for line in log)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_line_is_sound(kind: str) -> None:
    line = str(ODD[kind](Random(1), LINE))

    assert line != str(LINE)
    assert parse(line.encode()) is not None


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_line_cannot_be_read_whatever_it_was_made_of(kind: str, log: list[bytes]) -> None:
    pattern = re.compile(
        r'(?P<client>\S+) - (?P<user>\S+) \[(?P<time>.+?)\] "(?P<request>.*?)" (?P<status>\d{3}) (?P<size>\d+|-)(?P<tail>.*)'
    )
    regular = [line.decode() for line in log if parse(line)]

    for seed, line in enumerate([str(LINE), *regular[:500]], start=1):
        parts = pattern.fullmatch(line)
        assert parts is not None
        made = MALFORMED[kind](Random(seed), Line(**parts.groupdict()))
        assert parse(made.encode()) is None, made


def test_the_command_writes_the_lines_each_with_a_line_end(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    out = tmp_path / "access.log"

    assert main(["--lines", "50", "--seed", "3", "--out", str(out)]) == 0
    assert main(["--lines", "50", "--seed", "3"]) == 0

    assert out.read_bytes() == b"".join(line + b"\n" for line in lines(50, 3))
    assert capsysbinary.readouterr().out == out.read_bytes()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lines", "1", "--out", str(tmp_path / "missing" / "access.log")]) == 2

    assert "missing/access.log cannot be written" in capsys.readouterr().err
