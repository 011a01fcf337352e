"""`feed`: each line once, byte for byte, in a partition that is known beforehand."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from kafka import KafkaProducer
from typer.testing import CliRunner, Result

from epochline.cli import feed as feed_cli
from epochline.cli import stack as stack_cli
from epochline.errors import ConfigurationError, SourceError, SourceUnavailableError, StackError
from epochline.kafka.feed import FeedReport, feed
from epochline.local.stack import Stack
from tests.integration.kafka_topics import read_topic

Cli = Callable[..., Result]
Fed = Callable[..., FeedReport]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="ep-feed-", dir="/tmp"))
    stack = Stack(folder / "home")
    try:
        stack.up(("kafka",), report=lambda _line: None)
        yield stack
    finally:
        stack.down(wipe=True)
        shutil.rmtree(folder)


@pytest.fixture
def servers(stack: Stack) -> str:
    return stack.kafka.bootstrap_servers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of one line."""
    (tmp_path / "file").write_bytes(b"x\n")
    return tmp_path / "file"


@pytest.fixture
def fed(servers: str, topic_name: str, file: Path) -> Fed:
    """Feeds a file with this content."""

    def feed_it(content: bytes, **options: Any) -> FeedReport:
        file.write_bytes(content)
        return feed(servers, file, topic_name, **options)

    return feed_it


@pytest.fixture
def cli(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("EPOCHLINE_HOME", str(stack.home))
    app = typer.Typer()
    feed_cli.register(app)
    stack_cli.register(app)
    return lambda *arguments, **options: CliRunner().invoke(app, [str(a) for a in arguments], **options)


def _read(servers: str, topic: str) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for record in read_topic(servers, topic):
        assert record.key is None
        found.setdefault(record.partition, []).append(record.value)
    return found


def numbers(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(count))


HOSTILE = [b'{"a": 1}', b"", b"  spaces\t", b"carriage\r", b"\xff\xfe no UTF-8 \x00", "käse".encode()]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\n".join(HOSTILE) + b"\n", {0: HOSTILE}),
        (b"one\ntwo", {0: [b"one", b"two"]}),
        (numbers(10), {0: [b"0", b"4", b"8"], 1: [b"1", b"5", b"9"], 2: [b"2", b"6"], 3: [b"3", b"7"]}),
    ],
    ids=["byte for byte", "a last line without newline", "partitions in turn from the first"],
)
def test_each_line_is_one_record(
    fed: Fed, servers: str, topic_name: str, content: bytes, expected: dict[int, list[bytes]]
) -> None:
    report = fed(content, partitions=len(expected))

    assert _read(servers, topic_name) == expected
    assert report.records == {partition: len(values) for partition, values in expected.items()}
    payload = sum(len(value) for values in expected.values() for value in values)
    assert (report.total, report.payload, report.created) == (sum(report.records.values()), payload, True)


def test_an_existing_topic_is_used_as_it_is(fed: Fed) -> None:
    fed(b"x\n" * 4, partitions=2)

    report = fed(b"x\n" * 4, partitions=8)

    assert (report.created, report.records) == (False, {0: 2, 1: 2})


def test_more_lines_than_are_kept_in_flight_arrive_once(fed: Fed, servers: str, topic_name: str) -> None:
    seen: list[int] = []

    report = fed(numbers(30_000), partitions=3, progress=seen.append)

    found = _read(servers, topic_name)
    assert report.records == {0: 10_000, 1: 10_000, 2: 10_000}
    assert sorted(int(value) for values in found.values() for value in values) == list(range(30_000))
    assert sum(seen) == len(numbers(30_000))


def test_a_ten_megabyte_line_arrives(fed: Fed) -> None:
    assert fed(b"x" * 10_000_000 + b"\n", partitions=1).payload == 10_000_000


def test_the_rate_is_kept(fed: Fed) -> None:
    start = time.monotonic()

    fed(b"x\n" * 20, partitions=1, rate=20)

    assert time.monotonic() - start >= 19 / 20


def test_the_producer_is_idempotent_and_waits_for_all_replicas(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def recorded(**config: Any) -> KafkaProducer:
        made.append(config)
        return KafkaProducer(**config)

    monkeypatch.setattr("epochline.kafka.feed.KafkaProducer", recorded)

    fed(b"x\n")

    assert [(config["acks"], config["enable_idempotence"]) for config in made] == [("all", True)]


def test_a_broker_that_does_not_answer_is_retryable_and_a_bad_name_or_file_is_not(
    servers: str, topic_name: str, file: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="absent"):
        feed(servers, tmp_path / "absent", topic_name)
    with pytest.raises(SourceUnavailableError) as unanswered:
        feed("127.0.0.1:1", file, topic_name)
    with pytest.raises(SourceError, match="no topic") as refused:
        feed(servers, file, "no topic")

    assert (unanswered.value.retryable, refused.value.retryable) == (True, False)


def test_the_command_finds_the_running_stack_and_reports_each_partition(cli: Cli, topic_name: str, file: Path) -> None:
    file.write_bytes(b"x\n" * 5)

    result = cli("feed", file, "--topic", topic_name, "--partitions", 2)

    assert result.exit_code == 0
    assert f"made topic {topic_name} with 2 partitions" in result.output
    assert "partition 0: 3 records" in result.output
    assert "5 records, 5 bytes" in result.output
    assert "exists with 2 partitions, not 4" in cli("feed", file, "--topic", topic_name).output


def test_the_command_reads_standard_input(cli: Cli, servers: str, topic_name: str) -> None:
    result = cli("feed", "-", "--topic", topic_name, "--partitions", 1, input=b"a\nb\n")

    assert result.exit_code == 0
    assert _read(servers, topic_name) == {0: [b"a", b"b"]}


def test_without_a_stack_feed_says_how_to_start_one_and_down_is_no_error(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "nothing"))

    fed, down = cli("feed", file, "--topic", "t"), cli("down")

    assert isinstance(fed.exception, StackError)
    assert "epochline up" in str(fed.exception)
    assert down.exit_code == 0
    assert "no stack" in down.output
    assert not (tmp_path / "nothing").exists()


def test_status_is_for_people_and_for_programs_and_ends_with_3_if_a_part_is_down(cli: Cli, servers: str) -> None:
    people, programs = cli("status"), cli("status", "--json")

    assert (people.exit_code, programs.exit_code) == (3, 3)
    assert servers in people.output
    assert json.loads(programs.output)["kafka"]["bootstrap_servers"] == servers
    assert json.loads(programs.output)["postgres"]["state"] == "stopped"
