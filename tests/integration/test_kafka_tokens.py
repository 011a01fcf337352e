"""Tokens that expire (OAUTHBEARER), against a broker that ends a session with its token, and a real issuer."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from epochline import KafkaSource
from epochline.cli import connections
from epochline.config.kafka import broker_settings
from epochline.errors import SinkError, SourceAuthenticationError, SourceUnavailableError
from epochline.kafka.admin import EpochlineAdmin
from epochline.kafka.client import SINK, Reports, new_producer
from epochline.kafka.records import RecordReader
from epochline.kafka.source import KafkaOffsets
from epochline.kafka.tokens import kafka_python_settings
from epochline.protocol.offsets import OffsetRange
from tests.commands import caller
from tests.contract.worlds import orders, postgres_world
from tests.integration.issuer import CLIENT, SECRET, Issuer
from tests.integration.kafka_topics import make_topic, produce
from tests.integration.msk import KEY_ID, SECRET_KEY, msk
from tests.integration.secure_kafka import PASSWORD, USER, SecureKafka
from tests.waiting import wait_for

VALUES = [b"%d" % number for number in range(5)]


def settings(kafka: SecureKafka, issuer: Issuer, **changes: str) -> dict[str, str]:
    return broker_settings("test", kafka.connection(**issuer.extra(**changes)), login=CLIENT, password=SECRET)


@pytest.fixture
def topic(token_kafka: SecureKafka, topic_name: str) -> str:
    """Two partitions of five records, which another login produced."""
    plain = broker_settings("test", token_kafka.connection(), login=USER, password=PASSWORD)
    make_topic(plain, topic_name, 2)
    for partition in range(2):
        produce(plain, topic_name, VALUES, partition=partition)
    return topic_name


@pytest.fixture(autouse=True)
def _as_before(issuer: Issuer) -> Iterator[None]:
    seconds = issuer.seconds
    yield
    issuer.answer, issuer.seconds = None, seconds


def test_planning_the_mirror_and_the_audit_log_in_with_tokens(
    token_kafka: SecureKafka, issuer: Issuer, topic: str, postgres_dsn: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """K21, SEC-4: from one connection, by librdkafka's names; neither secret nor token is in a log."""
    caplog.set_level(logging.DEBUG)
    extra = token_kafka.connection(**issuer.extra())
    held = {"conn_type": "kafka", "login": CLIENT, "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", json.dumps(held))
    world = postgres_world(postgres_dsn)
    world.pipeline = orders(source=KafkaSource(topics=topic))
    world.source = connections.adapters().offsets(world.pipeline)  # type: ignore[assignment]

    planned = world.to_committed()

    assert [str(one) for one in planned.ranges] == [f"{topic}-{partition}[0, 5)" for partition in range(2)]
    assert len(world.kafka.mirrored("epochline.orders")) == 2
    with RecordReader(connections.adapters().kafka_settings()).session() as session:
        [read] = session.read(topic, 0, OffsetRange(start=0, until=5))
    assert read["value"] == VALUES
    assert [text for text in (SECRET, *issuer.given) if text in caplog.text] == []


@pytest.mark.fault("F53")
def test_a_consumer_reads_on_after_its_token_has_expired(token_kafka: SecureKafka, issuer: Issuer, topic: str) -> None:
    """F53: it logs in with another one, while a client that keeps its token is refused."""
    stale = settings(token_kafka, issuer)
    kept = kafka_python_settings(stale)
    token = issuer.token()
    monkey: Any = kept["sasl_oauth_token_provider"]
    monkey.token = lambda: token
    with RecordReader(stale).session() as session:
        [first] = session.read(topic, 0, OffsetRange(start=0, until=5))
        with closing(EpochlineAdmin(**kept, bootstrap_timeout_ms=5000)) as admin:
            assert topic in admin.list_topics()
            given = len(issuer.given)

            time.sleep(issuer.seconds + 2)

            with pytest.raises(Exception, match=r".") as refused:
                admin.list_topics()
        [second] = session.read(topic, 1, OffsetRange(start=0, until=5))

    assert (first["value"], second["value"]) == (VALUES, VALUES)
    assert len(issuer.given) > given
    assert not isinstance(refused.value, AssertionError)


@pytest.mark.slow
def test_a_refused_secret_is_said_at_once_and_an_issuer_that_is_away_is_asked_again_later(
    token_kafka: SecureKafka, issuer: Issuer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-5: by both clients; neither error shows the secret."""
    caplog.set_level(logging.DEBUG)
    wrong = broker_settings("test", token_kafka.connection(**issuer.extra()), login=CLIENT, password="canary-wrong")
    good = settings(token_kafka, issuer)

    with pytest.raises(
        SourceAuthenticationError, match=r"issuer of tokens 127.0.0.1 refuses the client \(HTTP 401\)"
    ) as one:
        KafkaOffsets(wrong).look(KafkaSource(topics=topic))
    with pytest.raises(SinkError, match="HTTP 401") as other:
        new_producer(wrong, Reports(wrong, SINK), {})
    issuer.seconds = 15
    with RecordReader(good).session() as session:
        list(session.read(topic, 0, OffsetRange(start=0, until=5)))
        issuer.answer, issuer.refused = 503, 0
        wait_for("the client asks for its next token, in vain", lambda: issuer.refused)
        time.sleep(0.2)
        [read] = session.read(topic, 1, OffsetRange(start=0, until=5))
    assert read["value"] == VALUES
    with pytest.raises(SourceUnavailableError, match=r"issuer of tokens 127.0.0.1 answers HTTP 503") as away:
        KafkaOffsets(good).look(KafkaSource(topics=topic))
    with pytest.raises(SourceUnavailableError, match="HTTP 503"), RecordReader(good).session():
        pass
    issuer.answer = 307
    with pytest.raises(SourceAuthenticationError, match="HTTP 307"):
        KafkaOffsets(good).look(KafkaSource(topics=topic))
    issuer.answer = None
    stranger = settings(token_kafka, issuer, **{"https.ca.location": issuer.certificates.path("other-ca")})
    with pytest.raises(SourceAuthenticationError, match="its certificate was refused"):
        KafkaOffsets(stranger).look(KafkaSource(topics=topic))

    assert (one.value.retryable, other.value.retryable, away.value.retryable) == (False, False, True)
    assert "canary" not in f"{one.value} {other.value} {away.value} {caplog.text}"


def test_feed_logs_in_with_a_token(
    token_kafka: SecureKafka, issuer: Issuer, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """SEC-4."""
    extra = token_kafka.connection(**issuer.extra())
    held = {"conn_type": "kafka", "login": CLIENT, "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", json.dumps(held))
    (tmp_path / "lines").write_text("one\ntwo\n")

    code, out, err = caller(monkeypatch, capsys)("feed", tmp_path / "lines", "--topic", topic_name, "--partitions", "1")

    assert (code, "2 records" in out, SECRET in out + err) == (0, True, False)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Keys and a region, as AWS's programs find them; no other is there."""
    for name in filter(lambda name: name.startswith("AWS_"), list(os.environ)):
        monkeypatch.delenv(name)
    given = {
        "AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "eu-north-1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_amazon_msk_takes_what_its_signer_signs_for_the_region(
    topic_name: str, kafka_bootstrap: str, tmp_path: Path, aws: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """K21, SEC-4: by both clients, with the real signer; what checks the signature is the test's own."""
    caplog.set_level(logging.DEBUG)
    make_topic(kafka_bootstrap, topic_name, 1)
    produce(kafka_bootstrap, topic_name, VALUES)
    with msk(int(kafka_bootstrap.rpartition(":")[2]), tmp_path) as front:
        iam = broker_settings("test", front.connection())

        view = KafkaOffsets(iam).look(KafkaSource(topics=topic_name))
        by_kafka_python = len(front.regions)
        with RecordReader(iam).session() as session:
            [read] = session.read(topic_name, 0, OffsetRange(start=0, until=5))
        taken = list(front.regions)
        aws.setenv("AWS_SECRET_ACCESS_KEY", "canary/another+key")
        with pytest.raises(SourceAuthenticationError) as refused, RecordReader(iam).session() as session:
            list(session.read(topic_name, 0, OffsetRange(start=0, until=5)))
        aws.delenv("AWS_SECRET_ACCESS_KEY")
        aws.delenv("AWS_ACCESS_KEY_ID")
        with pytest.raises(SourceUnavailableError, match="it found no credentials of AWS"):
            RecordReader(iam).session().__enter__()

    assert [one.last_stable for one in view.partitions] == [5]
    assert read["value"] == VALUES
    assert 0 < by_kafka_python < len(taken)
    assert set(taken) == {"eu-north-1"}
    assert front.regions[-1] is None
    assert "canary" not in f"{refused.value} {caplog.text}"
