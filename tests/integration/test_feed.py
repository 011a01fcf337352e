"""`feed`: each line once, byte for byte, in a partition that is known beforehand."""

import json
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.partitioner import murmur2
from typer.testing import CliRunner, Result

from epochline.cli import app
from epochline.errors import ConfigurationError, SourceError, SourceUnavailableError
from epochline.kafka.feed import FeedReport, feed
from epochline.kafka.outgoing import Partitioner, json_record
from epochline.local.stack import Stack
from tests.integration.kafka_topics import make_topic, read_topic

Cli = Callable[..., Result]
Fed = Callable[..., FeedReport]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"x\n")
    return tmp_path / "file"


@pytest.fixture
def fed(kafka_bootstrap: str, topic_name: str, file: Path) -> Fed:

    def feed_it(content: bytes, **options: Any) -> FeedReport:
        file.write_bytes(content)
        return feed(kafka_bootstrap, file, topic_name, **options)

    return feed_it


@pytest.fixture
def cli(stack: Stack, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("EPOCHLINE_HOME", str(stack.home.root))
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
    fed: Fed, kafka_bootstrap: str, topic_name: str, content: bytes, expected: dict[int, list[bytes]]
) -> None:
    report = fed(content, partitions=len(expected))

    assert _read(kafka_bootstrap, topic_name) == expected
    assert report.records == {partition: len(values) for partition, values in expected.items()}
    payload = sum(len(value) for values in expected.values() for value in values)
    assert (report.total, report.payload, report.created) == (sum(report.records.values()), payload, True)


def test_an_existing_topic_is_used_as_it_is(fed: Fed) -> None:
    fed(b"x\n" * 4, partitions=2)

    report = fed(b"x\n" * 4, partitions=8)

    assert (report.created, report.records) == (False, {0: 2, 1: 2})


def test_more_lines_than_are_kept_in_flight_arrive_once(fed: Fed, kafka_bootstrap: str, topic_name: str) -> None:
    seen: list[int] = []

    report = fed(numbers(30_000), partitions=3, progress=seen.append)

    found = _read(kafka_bootstrap, topic_name)
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

    def recorded(config: dict[str, Any]) -> Producer:
        made.append(config)
        return Producer(config)

    monkeypatch.setattr("epochline.kafka.client.Producer", recorded)

    fed(b"x\n")

    assert [(config["acks"], config["enable.idempotence"]) for config in made] == [("all", True)]


def jsonl(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_a_json_line_is_a_record_with_key_headers_time_and_partition(
    fed: Fed, kafka_bootstrap: str, topic_name: str
) -> None:
    """Another client than the one that sent reads all of it; null is a tombstone, and {} has no key."""
    by_me = {"headers": [["by", "me"], ["by", None]], "timestamp": "2026-03-01T12:00:00+01:00"}
    keyed: dict[str, Any] = {"key": "k", "partition": 2}
    records = {**keyed, "value": {"id": 7}, **by_me}, {**keyed, "value": None}, {"value": "plain", "partition": 1}
    report = fed(jsonl(*records), partitions=3, read=json_record)

    keyless, first, tombstone = read_topic(kafka_bootstrap, topic_name)
    assert (first.key, first.value, first.timestamp) == (b"k", b'{"id": 7}', 1772362800000)
    assert first.headers == [("by", b"me"), ("by", None)]
    assert (tombstone.key, tombstone.value, tombstone.headers) == (b"k", None, [])
    assert (keyless.key, keyless.value) == (None, b"plain")
    assert (report.records, report.payload) == ({0: 0, 1: 1, 2: 2}, len('{"id": 7}plain'))


KEYS = [f"key {number}".encode() for number in range(40)]


@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [
        (Partitioner.MURMUR2, lambda number, key: (murmur2(key) & 0x7FFFFFFF) % 3),
        (Partitioner.CONSISTENT, lambda number, key: zlib.crc32(key) % 3),
        (Partitioner.ROUND_ROBIN, lambda number, key: number % 3),
    ],
    ids=[one.value for one in (Partitioner.MURMUR2, Partitioner.CONSISTENT, Partitioner.ROUND_ROBIN)],
)
def test_the_partitioner_chooses_by_key_as_the_clients_of_that_name_do(
    fed: Fed, kafka_bootstrap: str, topic_name: str, partitioner: Partitioner, expected: Callable[[int, bytes], int]
) -> None:
    """The oracles are kafka-python's hash and zlib's; records without a key go in turn, whatever the partitioner."""
    lines = jsonl(*({"key": key.decode(), "value": None} for key in KEYS), *({"value": n} for n in range(40, 43)))

    fed(lines, partitions=3, read=json_record, partitioner=partitioner)

    found = read_topic(kafka_bootstrap, topic_name)
    assert {one.key: one.partition for one in found if one.key is not None} == {
        key: expected(number, key) for number, key in enumerate(KEYS)
    }
    assert {int(one.value): one.partition for one in found if one.key is None} == {40: 1, 41: 2, 42: 0}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b'{"key": "k"}\n', "line 3 of .* has no value"),
        (b'{"value": 1, "partition": 2}\n', "line 3 of .* is for partition 2, but topic-.* has 2, counted from 0"),
    ],
    ids=["no record", "no such partition"],
)
def test_a_wrong_line_of_a_file_is_refused_before_anything_is_sent_and_of_a_stream_when_it_comes(
    cli: Cli, kafka_bootstrap: str, topic_name: str, file: Path, wrong: bytes, said: str
) -> None:
    content = jsonl({"value": "a"}, {"value": "b"}) + wrong + jsonl({"value": "c"})
    file.write_bytes(content)
    command = ("--topic", topic_name, "--partitions", 2, "--from-jsonl")
    assert cli("feed", "-", *command, input=b"").exit_code == 0  # makes the topic

    of_file = cli("feed", file, *command)
    after_file = _read(kafka_bootstrap, topic_name)
    of_stream = cli("feed", "-", *command, input=content)

    assert isinstance(of_file.exception, ConfigurationError)
    assert re.search(f"{said}.* Nothing was sent", str(of_file.exception))
    assert after_file == {}
    assert isinstance(of_stream.exception, ConfigurationError)
    assert re.search(f"{said}.* Kafka has the 2 lines before it", str(of_stream.exception))
    assert _read(kafka_bootstrap, topic_name) == {0: [b"a"], 1: [b"b"]}


def test_a_partitioner_without_keys_is_wrong_use(cli: Cli, file: Path) -> None:
    result = cli("feed", file, "--topic", "t", "--partitioner", "murmur2")

    assert result.exit_code == 2
    assert "--from-jsonl" in result.output


def test_a_record_that_kafka_refuses_is_named_with_what_is_stored(
    fed: Fed, kafka_bootstrap: str, topic_name: str
) -> None:
    make_topic(kafka_bootstrap, topic_name, 1, **{"max.message.bytes": "1000"})

    with pytest.raises(SourceError, match=r"refused.*Raise max.message.bytes.* Kafka has the first 0 lines") as refused:
        fed(b"x" * 5000 + b"\n")

    assert not refused.value.retryable


def test_a_broker_that_does_not_answer_is_retryable_and_a_bad_name_or_file_is_not(
    kafka_bootstrap: str, topic_name: str, file: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="absent"):
        feed(kafka_bootstrap, tmp_path / "absent", topic_name)
    with pytest.raises(SourceUnavailableError) as unanswered:
        feed("127.0.0.1:1", file, topic_name)
    with pytest.raises(SourceError, match="no topic") as refused:
        feed(kafka_bootstrap, file, "no topic")

    assert (unanswered.value.retryable, refused.value.retryable) == (True, False)


def test_the_command_finds_the_running_stack_and_reports_each_partition(cli: Cli, topic_name: str, file: Path) -> None:
    file.write_bytes(b"x\n" * 5)

    result = cli("feed", file, "--topic", topic_name, "--partitions", 2)

    assert result.exit_code == 0
    for said in (f"made topic {topic_name} with 2 partitions", "partition 0: 3 records", "5 records, 5 bytes"):
        assert said in result.output
    assert "exists with 2 partitions, not 4" in cli("feed", file, "--topic", topic_name).output


def test_without_a_stack_feed_says_how_to_start_one_and_down_is_no_error(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "nothing"))

    fed, down = cli("feed", file, "--topic", "t"), cli("down")

    assert isinstance(fed.exception, ConfigurationError)
    assert "epochline up" in str(fed.exception)
    assert down.exit_code == 0
    assert "no stack" in down.output
    assert not (tmp_path / "nothing").exists()
