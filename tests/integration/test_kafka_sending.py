"""Sending to a real Kafka: transactions with their markers, zombies, lost answers, and what is refused beforehand."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.partitioner import murmur2

from epochline import Bytes
from epochline.config.kafka import SERVERS, broker_settings
from epochline.declare.topic import CONTROL_TOPIC, KafkaTopic
from epochline.errors import SinkError, SinkUnavailableError
from epochline.failpoints import KILLED, FailpointError
from epochline.kafka import preflight, sending
from epochline.kafka.markers import Marker, last_marker
from epochline.kafka.outgoing import Outgoing
from epochline.kafka.preflight import check_topic, make_control_topic
from epochline.kafka.sending import TransactionalSender, send_plainly
from tests.armed import armed
from tests.integration import kafka_topics
from tests.integration.kafka_topics import admin_of, delete_topic, make_topic, read_topic, transactional_producer
from tests.integration.secure_kafka import PASSWORD, USER, SecureKafka
from tests.integration.sends import sending_process
from tests.processes.client import Forked

MINUTE = timedelta(minutes=1)
Settings = dict[str, str]


@pytest.fixture
def settings(kafka_bootstrap: str) -> Settings:
    return broker_settings("test", {SERVERS: kafka_bootstrap})


def marker(epoch: int) -> Marker:
    return Marker(generation=1, epoch_id=epoch, token=f"token {epoch}")


def records(count: int, epoch: int = 1) -> list[Outgoing]:
    return [Outgoing(key=None, value=b"%d-%d" % (epoch, number), partition=0) for number in range(count)]


@dataclass(frozen=True)
class Out:
    """A topic, and what the pipeline `orders` sends to it."""

    settings: Settings
    name: str

    def check(self, **options: Any) -> None:
        check_topic(self.settings, KafkaTopic(topic=self.name, value=Bytes(), **options))

    def prepare(self) -> None:
        make_control_topic(self.settings, KafkaTopic(topic=self.name, value=Bytes()))

    @property
    def key(self) -> bytes:
        return Marker.key("orders", f"kafka:{self.name}")

    def marked(self) -> Marker | None:
        return last_marker(self.settings, "orders", f"kafka:{self.name}", timedelta(seconds=20))

    def values(self) -> list[bytes]:
        return kafka_topics.values(self.settings, self.name)

    @contextmanager
    def fenced(self) -> Iterator[TransactionalSender]:
        with TransactionalSender(self.settings, f"tx-{self.name}", MINUTE) as sender:
            sender.fence()
            yield sender

    def send(self, outgoing: Sequence[Outgoing], epoch: int = 1) -> int:
        with self.fenced() as sender:
            return sender.send(self.name, outgoing, self.key, marker(epoch).body())

    def sent(self, count: int, epoch: int = 1) -> int:
        return self.send(records(count, epoch), epoch)

    def process(self, epoch: int, count: int, failpoint: str) -> Forked:
        return sending_process(self.settings[SERVERS], self.name, f"tx-{self.name}", epoch, count, failpoint)


@pytest.fixture
def topic(settings: Settings, topic_name: str) -> Out:
    """Three partitions, checked and prepared as by a plan, so that the control topic exists."""
    made = Out(settings, make_topic(settings, topic_name, 3))
    made.check()
    made.prepare()
    return made


@pytest.mark.parametrize("place", ["topic.begin", "topic.record@51", "topic.marker", "topic.commit"])
def test_a_killed_sender_leaves_no_record_visible(topic: Out, place: str) -> None:
    """P9, P12: the next fence aborts what it left open, and nothing of it comes twice."""
    with topic.process(1, 100, f"{place}:exit") as process:
        assert process.wait(60) == KILLED
    assert topic.values() == []
    with topic.fenced():
        assert topic.marked() is None

    topic.sent(100)

    assert topic.values() == [record.value for record in records(100)]
    assert topic.marked() == marker(1)


def test_a_marker_behind_another_sinks_open_transaction_is_waited_for_and_not_overlooked(topic: Out) -> None:
    """The control topic is shared: taking the last visible marker for the last one would send an epoch twice."""
    topic.sent(1, epoch=1)
    with transactional_producer(topic.settings, f"other-{topic.name}") as other:
        other.begin_transaction()
        other.send(CONTROL_TOPIC, key=b"of another sink", value=marker(1).body(), partition=0).get(30)
        topic.sent(1, epoch=2)

        with pytest.raises(SinkUnavailableError, match="open transaction of another sink"):
            last_marker(topic.settings, "orders", f"kafka:{topic.name}", timedelta(seconds=10))
        assert last_marker(topic.settings, "orders", "kafka:untouched") is None
        other.abort_transaction()
    assert topic.marked() == marker(2)


def test_each_sink_of_each_pipeline_has_a_marker_of_its_own_which_only_its_commits_move(topic: Out) -> None:
    topic.sent(3, epoch=1)
    assert last_marker(topic.settings, "orders", "kafka:elsewhere") is None
    assert last_marker(topic.settings, "others", f"kafka:{topic.name}") is None
    assert Marker.key('a","b', "c") != Marker.key("a", 'b","c')

    with armed("topic.commit:raise"), pytest.raises(FailpointError):
        topic.sent(1, epoch=2)
    assert topic.marked() == marker(1)

    assert topic.sent(0, epoch=2) == 0, "a transaction without records"
    assert topic.marked() == marker(2)
    assert len(topic.values()) == 3


def test_a_marker_that_was_taken_back_is_gone_until_the_next_one(topic: Out) -> None:
    """A new ledger after a deleted marker is not taken for a ledger that went back in time."""
    topic.sent(1, epoch=1)
    kafka_topics.produce(topic.settings, CONTROL_TOPIC, [None], key=topic.key)
    assert topic.marked() is None

    topic.sent(1, epoch=1)

    assert topic.marked() == marker(1)


def test_a_marker_that_cannot_be_read_is_named_by_its_offset(topic: Out) -> None:
    with closing(KafkaProducer(bootstrap_servers=topic.settings[SERVERS], acks="all")) as producer:
        at = producer.send(CONTROL_TOPIC, key=topic.key, value=b'{"epoch_id": "7"}').get(30).offset

    with pytest.raises(SinkError, match=rf"offset {at} of {CONTROL_TOPIC} should hold a marker"):
        topic.marked()


def test_a_key_goes_to_the_partition_that_javas_producer_chooses(topic: Out) -> None:
    keys = [b"", b"k", "ключ".encode(), *(b"key %d" % number for number in range(100))]
    topic.send([Outgoing(key=key, value=b"v") for key in keys])

    found = {record.key: record.partition for record in read_topic(topic.settings, topic.name)}

    assert found == {key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in keys}


def test_key_value_headers_and_partition_arrive_as_they_were_given(topic: Out) -> None:
    """Null is not empty: neither as a key, a value nor a header. The last are larger than librdkafka's own default."""
    headers = (("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b""), ("null", None), ("имя", b"v"))
    given = [Outgoing(None, None, headers, 2), Outgoing(b"", b"", partition=2), Outgoing(b"k", None, partition=2)]
    given += [Outgoing(None, os.urandom(5_000_000), partition=2)] * 3
    topic.send(given)

    found = read_topic(topic.settings, topic.name)

    assert [Outgoing(one.key, one.value, tuple(one.headers), one.partition) for one in found] == given


@pytest.mark.parametrize(
    ("record", "said"),
    [
        pytest.param(Outgoing(None, b"", (), 3), "record 10 is for partition 3, but .* has 1", id="no such partition"),
        pytest.param(Outgoing(None, os.urandom(2_000)), "Raise max.message.bytes", id="too large"),
    ],
)
def test_a_record_that_the_topic_refuses_fails_the_whole_transaction(topic: Out, record: Outgoing, said: str) -> None:
    """X20: no transaction is committed without the answer for each of its records."""
    narrow = Out(topic.settings, f"{topic.name}-narrow")
    make_topic(topic.settings, narrow.name, 1, **{"max.message.bytes": "1000"})

    with pytest.raises(SinkError, match=said) as caught:
        narrow.send([*records(10), record])

    assert not caught.value.retryable
    assert (narrow.values(), narrow.marked()) == ([], None)


def test_a_time_out_above_the_brokers_is_refused_with_both_numbers(topic: Out) -> None:
    """K18: 900,000 ms are what a broker allows by default, 3,600,000 what Flink's producer asks for."""
    topic.check(transaction_timeout=timedelta(minutes=15))
    with pytest.raises(SinkError, match="3600000 ms, and the brokers allow 900000 ms"):
        topic.check(transaction_timeout=timedelta(hours=1))
    with (
        TransactionalSender(topic.settings, f"tx-{topic.name}", timedelta(hours=1)) as sender,
        pytest.raises(SinkError, match="Lower transaction_timeout"),
    ):
        sender.fence()


def test_a_missing_topic_is_refused_with_how_to_make_it(settings: Settings) -> None:
    with pytest.raises(SinkError, match=r"no topic nowhere.*--partitions"):
        Out(settings, "nowhere").check()
    with pytest.raises(SinkError, match="no topic nowhere"):
        send_plainly(settings, "nowhere", records(1))


@pytest.mark.parametrize(
    ("partitions", "policy", "said"),
    [(2, "compact", "has 2 partitions"), (1, "delete", "is delete"), (1, "compact,delete", "is compact,delete")],
)
def test_a_control_topic_that_loses_markers_is_refused(topic: Out, partitions: int, policy: str, said: str) -> None:
    delete_topic(topic.settings, CONTROL_TOPIC)
    make_topic(topic.settings, CONTROL_TOPIC, partitions, **{"cleanup.policy": policy})
    try:
        with pytest.raises(SinkError, match=said):
            topic.check()
        topic.check(semantics="at_least_once")
    finally:
        delete_topic(topic.settings, CONTROL_TOPIC)


def test_a_missing_control_topic_has_no_marker_and_is_made_before_the_first_epoch(topic: Out) -> None:
    delete_topic(topic.settings, CONTROL_TOPIC)
    assert topic.marked() is None

    topic.check()
    with admin_of(topic.settings) as admin:
        assert CONTROL_TOPIC not in admin.list_topics(), "the check wrote something"
    topic.prepare()
    topic.prepare()

    topic.sent(1)
    assert topic.marked() == marker(1)
    resource = ConfigResource(ConfigResourceType.TOPIC, CONTROL_TOPIC, ["cleanup.policy", "segment.ms"])
    with admin_of(topic.settings) as admin:
        configs = admin.describe_configs([resource], config_filter="all")["topic"][CONTROL_TOPIC]
    assert configs["cleanup.policy"]["value"] == "compact"
    # An open segment is never compacted, and every publish reads it.
    assert int(configs["segment.ms"]["value"]) == 3_600_000


def test_brokers_that_do_not_answer_are_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = {SERVERS: "127.0.0.1:1"}
    monkeypatch.setattr(preflight, "_PATIENCE_MS", 1_000)
    monkeypatch.setattr(sending, "_PATIENCE_SECONDS", 1.0)

    with TransactionalSender(nowhere, "tx-nowhere", MINUTE) as sender:
        calls: list[Callable[[], object]] = [
            partial(last_marker, nowhere, "orders", "kafka:any", timedelta(seconds=1)),
            Out(nowhere, "any").check, sender.fence, partial(send_plainly, nowhere, "any", records(1)),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:1"):
                call()


def secure(kafka: SecureKafka, **changes: str) -> Settings:
    return broker_settings("test", kafka.connection(**changes), login=USER, password=PASSWORD)


def test_a_secured_cluster_is_checked_sent_to_and_read_by_one_connection(
    secure_kafka: SecureKafka, topic_name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """SEC-2, SEC-4: TLS with the host's name checked, client certificate and SASL; the password is in no log."""
    caplog.set_level(logging.DEBUG)
    topic = Out(secure(secure_kafka), topic_name)
    make_topic(topic.settings, topic.name)
    topic.check()
    topic.prepare()

    topic.sent(3)

    assert topic.marked() == marker(1)
    assert topic.values() == [record.value for record in records(3)]
    assert PASSWORD not in caplog.text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "changes", [{"sasl.password": "wrong canary-77"}, {"ssl.ca.location": "other-ca"}], ids=["password", "authority"]
)
def test_a_refused_login_is_said_at_once_and_not_tried_again(
    secure_kafka: SecureKafka, changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_PATIENCE_MS", 15_000)
    if "ssl.ca.location" in changes:
        changes = {"ssl.ca.location": secure_kafka.certificates.path(changes["ssl.ca.location"])}
    connection, refused = secure(secure_kafka, **changes), "refused the login, or a certificate was refused"

    with TransactionalSender(connection, "tx-refused", MINUTE) as sender:
        calls: list[tuple[Callable[[], object], str | None]] = [
            (sender.fence, refused), (partial(last_marker, connection, "orders", "kafka:any"), refused),
            (Out(connection, "any").check, None),
        ]  # fmt: skip
        for call, said in calls:
            with pytest.raises(SinkError, match=said) as caught:
                call()
            assert not caught.value.retryable
            assert "canary" not in str(caught.value)


def test_a_certificate_file_that_is_missing_is_named(secure_kafka: SecureKafka) -> None:
    connection = secure(secure_kafka, **{"ssl.ca.location": "/nowhere/ca.pem"})

    with pytest.raises(SinkError, match=r"ssl\.ca\.location") as caught:
        TransactionalSender(connection, "tx-refused", MINUTE)

    assert not caught.value.retryable
