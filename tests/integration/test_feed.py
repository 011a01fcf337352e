"""`feed`: each line once, byte for byte, in a partition that is known beforehand."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from kafka import KafkaProducer
from typer.testing import CliRunner

from epochline.cli import feed as feed_cli
from epochline.cli import stack as stack_cli
from epochline.errors import ConfigurationError, SourceError, SourceUnavailableError, StackError
from epochline.kafka.feed import feed
from epochline.local.stack import Stack
from tests.integration.kafka_topics import read_topic


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
def servers(stack) -> str:
    return stack.kafka.bootstrap_servers


@pytest.fixture
def topic(request) -> str:
    return request.node.name.replace("[", "-").replace("]", "").replace(" ", "-")


@pytest.fixture
def cli(stack, monkeypatch):
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


def test_each_line_is_one_record_byte_for_byte(servers, topic, tmp_path):
    lines = [b'{"a": 1}', b"", b"  spaces\t", b"carriage\r", b"\xff\xfe no UTF-8 \x00", "käse".encode()]
    (tmp_path / "file").write_bytes(b"\n".join(lines) + b"\n")

    report = feed(servers, tmp_path / "file", topic, partitions=1)

    assert _read(servers, topic) == {0: lines}
    assert (report.total, report.payload, report.created) == (6, sum(map(len, lines)), True)


def test_a_last_line_without_newline_counts(servers, topic, tmp_path):
    (tmp_path / "file").write_bytes(b"one\ntwo")

    feed(servers, tmp_path / "file", topic, partitions=1)

    assert _read(servers, topic) == {0: [b"one", b"two"]}


def test_partitions_are_filled_in_turn_from_the_first(servers, topic, tmp_path):
    (tmp_path / "file").write_bytes(b"".join(b"%d\n" % number for number in range(10)))

    report = feed(servers, tmp_path / "file", topic, partitions=4)

    assert _read(servers, topic) == {0: [b"0", b"4", b"8"], 1: [b"1", b"5", b"9"], 2: [b"2", b"6"], 3: [b"3", b"7"]}
    assert report.records == {0: 3, 1: 3, 2: 2, 3: 2}


def test_an_existing_topic_is_used_as_it_is(servers, topic, tmp_path):
    (tmp_path / "file").write_bytes(b"x\n" * 4)
    feed(servers, tmp_path / "file", topic, partitions=2)

    report = feed(servers, tmp_path / "file", topic, partitions=8)

    assert (report.created, report.records) == (False, {0: 2, 1: 2})


def test_more_lines_than_are_kept_in_flight_arrive_once(servers, topic, tmp_path):
    (tmp_path / "file").write_bytes(b"".join(b"%d\n" % number for number in range(30_000)))
    seen: list[int] = []

    report = feed(servers, tmp_path / "file", topic, partitions=3, progress=seen.append)

    found = _read(servers, topic)
    assert report.records == {0: 10_000, 1: 10_000, 2: 10_000}
    assert sorted(int(value) for values in found.values() for value in values) == list(range(30_000))
    assert sum(seen) == (tmp_path / "file").stat().st_size


def test_a_ten_megabyte_line_arrives(servers, topic, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 10_000_000 + b"\n")

    assert feed(servers, tmp_path / "file", topic, partitions=1).payload == 10_000_000


def test_the_rate_is_kept(servers, topic, tmp_path):
    (tmp_path / "file").write_bytes(b"x\n" * 20)
    start = time.monotonic()

    feed(servers, tmp_path / "file", topic, partitions=1, rate=20)

    assert time.monotonic() - start >= 19 / 20


def test_the_producer_is_idempotent_and_waits_for_all_replicas(servers, topic, tmp_path, monkeypatch):
    made = []

    class Recorded(KafkaProducer):
        def __init__(self, **config):
            made.append(config)
            super().__init__(**config)

    monkeypatch.setattr("epochline.kafka.feed.KafkaProducer", Recorded)
    (tmp_path / "file").write_bytes(b"x\n")

    feed(servers, tmp_path / "file", topic)

    assert [(config["acks"], config["enable_idempotence"]) for config in made] == [("all", True)]


def test_a_missing_file_is_named(servers, topic, tmp_path):
    with pytest.raises(ConfigurationError, match="absent"):
        feed(servers, tmp_path / "absent", topic)


def test_a_name_that_kafka_refuses_is_no_matter_for_a_retry(servers, tmp_path):
    (tmp_path / "file").write_bytes(b"x\n")

    with pytest.raises(SourceError, match="no topic") as caught:
        feed(servers, tmp_path / "file", "no topic")

    assert not caught.value.retryable


def test_a_broker_that_does_not_answer_is_retryable(topic, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"x\n")

    with pytest.raises(SourceUnavailableError) as caught:
        feed("127.0.0.1:1", tmp_path / "file", topic)

    assert caught.value.retryable


def test_the_command_finds_the_running_stack_and_reports_each_partition(cli, servers, topic, tmp_path):
    (tmp_path / "file").write_bytes(b"x\n" * 5)

    result = cli("feed", tmp_path / "file", "--topic", topic, "--partitions", 2)

    assert result.exit_code == 0
    assert f"made topic {topic} with 2 partitions" in result.output
    assert "partition 0: 3 records" in result.output
    assert "5 records, 5 bytes" in result.output
    again = cli("feed", tmp_path / "file", "--topic", topic)
    assert "exists with 2 partitions, not 4" in again.output


def test_the_command_reads_standard_input(cli, servers, topic):
    result = cli("feed", "-", "--topic", topic, "--partitions", 1, input=b"a\nb\n")

    assert result.exit_code == 0
    assert _read(servers, topic) == {0: [b"a", b"b"]}


def test_the_command_without_a_stack_says_how_to_start_one(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "nothing"))
    (tmp_path / "file").write_bytes(b"x\n")

    result = cli("feed", tmp_path / "file", "--topic", "t")

    assert isinstance(result.exception, StackError)
    assert "epochline up" in str(result.exception)
    assert not (tmp_path / "nothing").exists()


def test_status_is_for_people_and_for_programs_and_ends_with_3_if_a_part_is_down(cli, servers):
    people, programs = cli("status"), cli("status", "--json")

    assert (people.exit_code, programs.exit_code) == (3, 3)
    assert servers in people.output
    assert json.loads(programs.output)["kafka"]["bootstrap_servers"] == servers
    assert json.loads(programs.output)["postgres"]["state"] == "stopped"


def test_down_without_a_stack_is_no_error(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "nothing"))

    result = cli("down")

    assert result.exit_code == 0
    assert "no stack" in result.output
    assert not (tmp_path / "nothing").exists()
