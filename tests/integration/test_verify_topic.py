"""`epochline verify-topic` on a real Kafka: what is committed, aborted, undecided and repeated."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer

from epochline.config.kafka import broker_settings
from epochline.kafka.outgoing import Outgoing
from epochline.kafka.sending import send_plainly
from epochline.kafka.topic_comparison import Isolation, TopicReader
from tests.commands import Call, caller, connect_to
from tests.crash.watching import all_decided
from tests.integration.kafka_topics import make_topic, transactional_producer
from tests.integration.secure_kafka import PASSWORD, USER, SecureKafka

KEYLESS = Outgoing(None, b"v", (), 0)


@pytest.fixture
def settings(kafka_bootstrap: str) -> dict[str, str]:
    return {"bootstrap.servers": kafka_bootstrap}


@pytest.fixture
def topic(settings: dict[str, str], topic_name: str) -> str:
    return make_topic(settings, topic_name, 2)


@pytest.fixture
def call(kafka_bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    connect_to(monkeypatch, kafka=kafka_bootstrap)
    return caller(monkeypatch, capsys, "verify-topic")


@pytest.fixture
def transaction(kafka_bootstrap: str, topic: str) -> Iterator[KafkaProducer]:
    with transactional_producer(kafka_bootstrap, f"tx-{topic}") as producer:
        yield producer


def begin(producer: KafkaProducer, topic: str, records: dict[int, str]) -> None:
    """Begin a transaction and send, by partition, records with these keys of one letter."""
    producer.begin_transaction()
    for partition, keys in records.items():
        for key in keys:
            producer.send(topic, key=key.encode(), value=b"v", partition=partition).get(30)


def counted(call: Call, *arguments: object) -> dict[str, Any]:
    return dict(call.json(*arguments))


def test_committed_aborted_and_open_records_are_told_apart_per_partition(
    call: Call, topic: str, settings: dict[str, str], transaction: KafkaProducer, kafka_bootstrap: str
) -> None:
    """E4b, X4, X24: a reader of uncommitted records sees what no reader of committed ones does."""
    begin(transaction, topic, {0: "ab", 1: "c"})
    transaction.commit_transaction()
    begin(transaction, topic, {0: "def"})
    transaction.abort_transaction()
    begin(transaction, topic, {1: "g"})
    send_plainly(settings, topic, [Outgoing(key=b"h", value=b"v", partition=1)])
    try:
        shown = counted(call, topic)
        table = call(topic)[1]
        assert "aborted" not in counted(call, topic, "--isolation", "read_committed")["partitions"][0]
    finally:
        transaction.abort_transaction()

    counts = ("start", "read_committed", "read_uncommitted", "aborted", "undecided")
    assert [tuple(row[name] for name in counts) for row in shown["partitions"]] == [(0, 2, 5, 3, 0), (0, 1, 3, 0, 2)]
    assert (shown["read_committed"]["records"], shown["read_uncommitted"]["records"]) == (3, 8)
    [of_all] = [line.split() for line in table.splitlines() if line.strip().startswith("all")]
    assert of_all == ["all", "-", "-", "3", "8", "3", "2"]
    assert "read_committed: 1 distinct value, 3 distinct keys" in table
    all_decided(kafka_bootstrap, topic)
    ended = counted(call, topic)["partitions"][1]
    assert (ended["read_committed"], ended["aborted"], ended["undecided"]) == (2, 1, 0)


def test_repeats_distinct_values_and_keyless_records_are_counted(
    call: Call, topic: str, settings: dict[str, str]
) -> None:
    """X24, K16: equal is what equals in key, value and headers; null is not empty."""
    given = [
        Outgoing(b"k", b"v", (), 0), Outgoing(b"k", b"v", (), 1), Outgoing(b"k", b"w", (), 0),
        Outgoing(b"k", b"v", (("h", None),), 0), Outgoing(b"k", b"v", (("h", b""),), 0), Outgoing(None, None, (), 0),
        Outgoing(b"", None, (), 0), Outgoing(b"k", b"v", (), 0),
    ]  # fmt: skip
    send_plainly(settings, topic, given)

    assert counted(call, topic)["read_committed"] == {
        "records": 8, "keyless": 1, "distinct_keys": 2, "distinct_values": 3, "repeats": 2, "repeated_keys": 5,
    }  # fmt: skip


def test_a_key_that_occurs_twice_fails_the_check_only_once_it_is_committed(
    call: Call, topic: str, settings: dict[str, str], transaction: KafkaProducer, kafka_bootstrap: str
) -> None:
    """X4: what was aborted and sent again is no repeat."""
    begin(transaction, topic, {0: "ab"})
    transaction.abort_transaction()
    begin(transaction, topic, {0: "ab"})
    transaction.commit_transaction()
    all_decided(kafka_bootstrap, topic)
    assert call(topic, "--key-unique")[0] == 0

    send_plainly(settings, topic, [Outgoing(key=b"b", value=b"other", partition=1)])
    code, _, err = call(topic, "--key-unique")

    assert code == 1
    assert f"1 committed records repeat a key, such as {topic}-0@4 and {topic}-1@0" in err


def test_counting_begins_at_the_given_offset(call: Call, topic: str, settings: dict[str, str]) -> None:
    send_plainly(settings, topic, [KEYLESS] * 10)

    [first, other] = counted(call, topic, "--since-offset", 7)["partitions"]

    assert (first["start"], first["read_committed"], first["read_uncommitted"]) == (7, 3, 3)
    assert (other["read_committed"], other["read_uncommitted"]) == (0, 0)


def test_reading_on_decides_what_was_undecided_and_counts_nothing_twice(
    topic: str, settings: dict[str, str], transaction: KafkaProducer, kafka_bootstrap: str
) -> None:
    """--follow: a second look goes on where the first one ended."""
    with TopicReader(settings, topic, list(Isolation)) as reader:
        begin(transaction, topic, {0: "ab"})
        assert reader.read() == 2
        first = reader.result()
        transaction.commit_transaction()
        begin(transaction, topic, {0: "c"})
        transaction.abort_transaction()
        all_decided(kafka_bootstrap, topic)
        assert reader.read() == 3
        second = reader.result()
        assert reader.read() == 0

    assert first.hidden is not None
    assert second.hidden is not None
    assert (first.seen[Isolation.READ_COMMITTED].total, first.hidden[0].undecided) == (0, 2)
    seen = [second.seen[one].total for one in (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED)]
    assert seen == [2, 3]
    assert (second.hidden[0].aborted, second.hidden[0].undecided) == (1, 0)


def test_following_for_some_seconds_ends_by_itself(call: Call, topic: str, settings: dict[str, str]) -> None:
    send_plainly(settings, topic, [KEYLESS])

    assert counted(call, topic, "--seconds", "0.5")["read_committed"]["records"] == 1


def test_unique_keys_are_not_claimed_of_records_without_keys(call: Call, topic: str, settings: dict[str, str]) -> None:
    send_plainly(settings, topic, [KEYLESS])

    code, _, err = call(topic, "--key-unique")

    assert (code, "no committed record" in err) == (1, True)


def test_a_topic_that_is_not_there_is_one_line_and_exit_1(call: Call) -> None:
    assert "Kafka has no topic nowhere" in call.refusal("nowhere")


def test_a_secured_topic_is_read_by_its_connection(
    secure_kafka: SecureKafka, call: Call, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"conn_type": "kafka", "login": USER, "password": PASSWORD, "extra": secure_kafka.connection()}
    monkeypatch.setenv("AIRFLOW_CONN_SECURED", json.dumps(held))
    settings = broker_settings("test", secure_kafka.connection(), login=USER, password=PASSWORD)
    make_topic(settings, topic_name)
    send_plainly(settings, topic_name, [Outgoing(b"k", b"v", (), 0)])

    assert counted(call, topic_name, "--connection", "secured", "--key-unique")["read_committed"]["records"] == 1
