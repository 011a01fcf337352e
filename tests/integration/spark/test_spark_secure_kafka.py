"""A Spark read over TLS and SASL: the records come, and nothing that opens Kafka or PostgreSQL is shown (SEC-4)."""

from pathlib import Path

from psycopg2.extensions import parse_dsn

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.config.kafka import broker_settings
from epochline.protocol.offsets import OffsetRange, PlannedRange, TopicPartition
from epochline.spark.credentials import JobCredentials
from epochline.spark.source import read_ranges
from tests.integration.kafka_topics import make_topic, produce
from tests.integration.secure_kafka import PASSWORD, USER, SecureKafka
from tests.integration.spark.conftest import Servers


def test_a_job_reads_over_tls_and_shows_no_password_and_no_key(
    servers: Servers, secure_kafka: SecureKafka, topic_name: str, event_log: Path
) -> None:
    settings = broker_settings("test", secure_kafka.connection(), login=USER, password=PASSWORD)
    make_topic(settings, topic_name)
    produce(settings, topic_name, [b"row %d" % number for number in range(20)], partition=0)
    sinks = [PostgresTable(table="hits", columns={"value": "text"})]
    pipeline = Pipeline(name=servers.name, source=KafkaSource(topics=topic_name), parse=Text(), sinks=sinks)
    ticket = servers.database.attempt(pipeline, {(topic_name, 0): (5, 20)})

    servers.run_job(JobCredentials(dsn=servers.database.dsn, kafka=settings))

    assert servers.database.ids(ticket, "hits", "_offset") == list(range(5, 20))
    logged = "".join(path.read_text(errors="replace") for path in event_log.rglob("*") if path.is_file())
    tp = TopicPartition(topic=topic_name, partition=0, topic_id="id")
    one = PlannedRange(tp=tp, range=OffsetRange(start=0, until=1))
    frame = read_ranges(servers.spark, [one], settings).mapInArrow(iter, "topic string")
    password = parse_dsn(servers.database.dsn)["password"]
    for text in (logged, frame._jdf.queryExecution().toString()):
        assert "MapInArrow" in text
        assert [secret for secret in (password, "Zq9d1fxW", "BEGIN PRIVATE KEY", "LoginModule") if secret in text] == []
