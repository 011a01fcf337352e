"""TLS and SASL from one connection, against a broker that takes nothing else."""

import json
import logging
from contextlib import closing
from pathlib import Path

import pytest
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from epochline import KafkaSource
from epochline.cli import connections
from epochline.config.kafka import broker_settings
from epochline.errors import SourceAuthenticationError
from epochline.kafka.records import RecordReader
from epochline.kafka.source import KafkaOffsets
from epochline.protocol.offsets import OffsetRange
from tests.commands import caller
from tests.contract.worlds import orders, postgres_world
from tests.integration.kafka_topics import Topic
from tests.integration.secure_kafka import PASSWORD, USER, SecureKafka


@pytest.fixture
def topic(secure_kafka: SecureKafka, topic_name: str) -> str:
    """Three records, produced over TLS."""
    Topic(settings(secure_kafka), topic_name).make().produce(0, 3)
    return topic_name


def settings(kafka: SecureKafka, **changes: str) -> dict[str, str]:
    return broker_settings("test", kafka.connection(**changes), login=USER, password=PASSWORD)


def test_planning_the_mirror_and_the_audit_go_through_one_connection(
    secure_kafka: SecureKafka, topic: str, postgres_dsn: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """SEC-2, SEC-4: read from AIRFLOW_CONN_… as tasks and the command line read it; the password is in no log."""
    caplog.set_level(logging.DEBUG)
    held = {"conn_type": "kafka", "login": USER, "password": PASSWORD, "extra": secure_kafka.connection()}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", json.dumps(held))
    world = postgres_world(postgres_dsn)
    world.pipeline = orders(source=KafkaSource(topics=topic))
    world.source = connections.adapters().offsets(world.pipeline)  # type: ignore[assignment]

    planned = world.to_committed()

    assert [str(one) for one in planned.ranges] == [f"{topic}-0[0, 3)"]
    assert {key: one.offset for key, one in world.kafka.mirrored("epochline.orders").items()} == {(topic, 0): 3}
    with RecordReader(connections.adapters().kafka_settings()).session() as session:
        [read] = session.read(topic, 0, OffsetRange(start=0, until=3))
    assert read["offset"] == [0, 1, 2]
    assert PASSWORD not in caplog.text
    assert "Zq9d1fxW" not in caplog.text


def test_feed_sends_lines_with_the_login_and_the_certificates_of_the_connection(
    secure_kafka: SecureKafka, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """SEC-4: the topic is made and filled; the password is in no line of the command."""
    held = {"conn_type": "kafka", "login": USER, "password": PASSWORD, "extra": secure_kafka.connection()}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", json.dumps(held))
    file = tmp_path / "lines"
    file.write_text("one\ntwo\n")

    code, out, err = caller(monkeypatch, capsys)("feed", file, "--topic", topic_name, "--partitions", "1")

    assert (code, "2 records" in out) == (0, True)
    assert PASSWORD not in out + err
    with RecordReader(settings(secure_kafka)).session() as session:
        [read] = session.read(topic_name, 0, OffsetRange(start=0, until=2))
    assert read["value"] == [b"one", b"two"]


def test_scram_is_spoken_too(secure_kafka: SecureKafka, topic: str) -> None:
    made = UserScramCredentialUpsertion("scrammer", ScramMechanism.SCRAM_SHA_512, PASSWORD.encode(), iterations=4096)
    with closing(secure_kafka.admin()) as admin:
        admin.alter_user_scram_credentials([made])
    extra = secure_kafka.connection(**{"sasl.mechanism": "scram-sha-512", "sasl.username": "scrammer"})

    view = KafkaOffsets(broker_settings("test", extra, password=PASSWORD)).look(KafkaSource(topics=topic))

    assert [one.last_stable for one in view.partitions] == [3]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sasl.password": "wrong canary-77"}, "user(, | or )password"),
        pytest.param({"sasl.username": "nobody"}, "user(, | or )password", marks=pytest.mark.slow),
        ({"ssl.ca.location": "other-ca"}, "certificate"),
    ],
    ids=["password", "user", "authority"],
)
def test_a_refused_login_is_said_at_once_and_not_tried_again(
    secure_kafka: SecureKafka, topic: str, changes: dict[str, str], said: str
) -> None:
    """A wrong password does not get right by trying; accounts are locked by it."""
    if "ssl.ca.location" in changes:
        changes = {"ssl.ca.location": secure_kafka.certificates.path(changes["ssl.ca.location"])}
    source = KafkaOffsets(settings(secure_kafka, **changes))

    with pytest.raises(SourceAuthenticationError, match=said) as caught:
        source.look(KafkaSource(topics=topic))

    assert not caught.value.retryable
    assert "canary" not in str(caught.value)
    assert PASSWORD not in secure_kafka.log()
