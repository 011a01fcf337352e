"""The generated log: the same for a seed, sound where it says so, malformed where it says so."""

import hashlib
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
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
def log():
    return list(lines(10_000, 7))


def test_the_same_seed_and_count_give_the_same_bytes(log):
    assert list(lines(10_000, 7)) == log


def test_the_bytes_do_not_change_between_versions_of_python_and_of_this_module(log):
    digest = hashlib.sha256(b"\n".join(log)).hexdigest()

    assert digest == "318e25326052ec25eaf5d34434e38e5b72b4ecf050fc45851e956e7416d5365f"


def test_another_seed_gives_another_log(log):
    assert not set(log) & set(lines(1_000, 8))


def test_nearly_every_line_is_unique(log):
    assert len(set(log)) >= len(log) - 5


def test_ten_thousand_lines_hold_25_malformed_ones(log):
    assert sum(parse(line) is None for line in log) == 25


def test_some_clients_make_many_requests_and_most_make_few(log):
    requests = Counter(line.split()[0] for line in log if parse(line)).most_common()

    assert requests[0][1] > 500
    assert sum(count < 30 for _, count in requests) > len(requests) / 2


def test_clients_are_addresses_of_both_kinds_and_host_names(log):
    clients = {parsed.client for line in log if (parsed := parse(line))}

    assert any(re.fullmatch(r"[\d.]+", client) for client in clients)
    assert any(client.startswith("2001:db8:") for client in clients)
    assert any(client.endswith(".crawl.example.net") for client in clients)


def test_times_go_on_over_days_with_jitter_in_several_zones(log):
    times = [datetime.fromtimestamp(parsed.seconds, UTC) for line in log if (parsed := parse(line))]
    zones = {zone[1] for line in log if (zone := re.search(rb" ([+-]\d{4})\]", line))}

    assert times[-1] - times[0] > timedelta(days=3)
    assert times != sorted(times)
    assert all(later - earlier > timedelta(minutes=-1) for earlier, later in pairwise(times))
    assert {b"+0000", b"-0700", b"+0545", b"-0330"} <= zones


def test_no_line_holds_a_line_end_and_all_are_utf_8(log):
    assert not any(b"\n" in line or b"\r" in line or not line for line in log)
    assert all(line.decode() for line in log)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_line_is_sound(kind):
    line = str(ODD[kind](Random(1), LINE))

    assert line != str(LINE)
    assert parse(line.encode()) is not None


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_line_cannot_be_read(kind):
    assert parse(MALFORMED[kind](Random(1), LINE).encode()) is None


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_line_stays_malformed_whatever_it_was_made_of(kind, log):
    regular = [line.decode() for line in log if parse(line)]
    pattern = re.compile(r'(\S+) - (\S+) \[(.+?)\] "(.*?)" (\d{3}) (\d+|-)(.*)')

    for seed, line in enumerate(regular[:500]):
        parts = pattern.fullmatch(line)
        names = ("client", "user", "time", "request", "status", "size", "tail")
        made = MALFORMED[kind](Random(seed), Line(**dict(zip(names, parts.groups(), strict=True))))

        assert parse(made.encode()) is None, made


def test_the_command_writes_the_lines_each_with_a_line_end(tmp_path, capsysbinary):
    out = tmp_path / "access.log"

    assert main(["--lines", "50", "--seed", "3", "--out", str(out)]) == 0
    assert main(["--lines", "50", "--seed", "3"]) == 0

    assert out.read_bytes() == b"".join(line + b"\n" for line in lines(50, 3))
    assert capsysbinary.readouterr().out == out.read_bytes()


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    assert main(["--lines", "1", "--out", str(tmp_path / "missing" / "access.log")]) == 2

    assert "missing/access.log cannot be written" in capsys.readouterr().err
