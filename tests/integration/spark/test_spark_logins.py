"""Logins that expire while Spark stages an epoch: PostgreSQL's passwords and Kafka's tokens."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from epochline import KafkaSource, KafkaTopic, Pipeline, PostgresTable, Settings, Text
from epochline.config.kafka import broker_settings
from epochline.kafka.records import RecordReader
from epochline.kafka.source import KafkaOffsets
from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.offsets import OffsetRange
from epochline.sinks import sinks_by
from epochline.spark.credentials import CREDENTIALS_VARIABLE, read_credentials
from epochline.spark.session import BATCH_RECORDS
from tests.crash.reliability import Recovery
from tests.integration.expiring import Expiring
from tests.integration.issuer import CLIENT, SECRET, Issuer
from tests.integration.kafka_topics import make_topic, produce
from tests.integration.logins import AsSuperuser, Login, superuser, user
from tests.integration.secure_kafka import PASSWORD, USER, SecureKafka
from tests.integration.spark.conftest import Runs, Servers

RECORDS, PARTITIONS = 10, 2


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(BATCH_RECORDS, "5")
    yield
    spark.conf.unset(BATCH_RECORDS)


@pytest.mark.slow
@pytest.mark.fault("F53")
def test_an_epoch_whose_first_password_and_first_token_expire_goes_on_with_new_ones(
    servers: Servers, token_kafka: SecureKafka, issuer: Issuer, login: Login, as_superuser: AsSuperuser, stack: Stack,
    small_batches: None, event_log: Path, topic_name: str, tmp_path: Path, recovery: Recovery,
) -> None:  # fmt: skip
    """K21, SEC-4: driver and workers get no password, but the command; table and topic are what was produced."""
    plain = broker_settings("test", token_kafka.connection(), login=USER, password=PASSWORD)
    out = f"{topic_name}-out"
    make_topic(plain, topic_name, PARTITIONS)
    make_topic(plain, out, 1)
    produced = [f"{partition}-{number}" for partition in range(PARTITIONS) for number in range(RECORDS)]
    for partition in range(PARTITIONS):
        values = [one.encode() for one in produced if one.startswith(f"{partition}-")]
        produce(plain, topic_name, values, partition=partition)
    admin = superuser(stack, servers.database.dsn)
    owner = Expiring(login("epochline_owner"), admin, tmp_path / "owner")
    writer = Expiring(login("epochline_writer"), admin, tmp_path / "writer")
    as_superuser(f"GRANT {user(writer.dsn)} TO epochline_owner")
    tokens = broker_settings("test", token_kafka.connection(**issuer.extra()), login=CLIENT, password=SECRET)
    handed = tmp_path / "credentials.json"
    handed.touch(mode=0o600)
    handed.write_text(json.dumps({"postgres": {"dsn": writer.url}, "kafka": tokens}))
    # One task reads and parses both partitions, four batches of two seconds each: longer than a token lives.
    pipeline = Pipeline(
        name=servers.name, source=KafkaSource(topics=topic_name), parse="slowly:parse", record={"value": "text"},
        sinks=[PostgresTable(table="hits", columns={"value": "text"}), KafkaTopic(topic=out, value=Text())],
        settings=Settings(parallelism=1),
    )  # fmt: skip
    line = Runs(servers, pipeline)
    line.ledger = PostgresLedger(owner.url, sink_factory=sinks_by(lambda _: tokens))
    line.source = KafkaOffsets(tokens)
    line.credentials = read_credentials({CREDENTIALS_VARIABLE: str(handed)})
    planned, who = line.planned()
    ticket = line.attempt(planned, who)
    before, began = len(issuer.given), time.monotonic()
    recovery.last_fault()

    line.stage(planned, ticket)

    assert time.monotonic() - began > issuer.seconds
    assert len(issuer.given) - before > 1
    line.seal(ticket, who)
    line.commit(planned)
    line.publish()
    recovery.took()
    read: list[bytes] = []
    with RecordReader(tokens).session() as session:
        for columns in session.read(out, 0, OffsetRange(start=0, until=session.log(out, 0)[1])):
            read += columns["value"]
    assert sorted(value.decode() for value in read) == sorted(produced)
    assert sorted(value for (value,) in servers.database.query("SELECT value FROM hits")) == sorted(produced)
    for expiring in (owner, writer):
        assert len(set(expiring.passwords)) > 2
        assert expiring.taken() == expiring.passwords[-1:]
    logged = "".join(path.read_text(errors="replace") for path in event_log.rglob("*") if path.is_file())
    secrets = [SECRET, *owner.passwords, *writer.passwords, *issuer.given]
    assert [secret for secret in secrets if secret in logged] == []
