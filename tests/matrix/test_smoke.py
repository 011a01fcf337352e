"""The smoke path of `make matrix`: on the servers and packages of one row, epochs are exact and a killed driver shows nothing."""

import platform
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Producer
from kafka import TopicPartition
from kafka.record import MemoryRecords

from epochline.config.versions import RANGES
from epochline.coordinator import Plan
from epochline.errors import LedgerError, SealRefusedError, SourceError
from epochline.kafka.admin import new_admin
from epochline.kafka.records import RecordReader
from epochline.postgres.ledger.migrate import upgrade
from epochline.protocol.epoch import EpochState
from epochline.protocol.staging import StagingTicket
from tests.checker import assert_exact, recover
from tests.crash.line import Line
from tests.crash.reliability import Recovery
from tests.crash.spark_job import LOCAL, SERVER, job, log_of, writer_at_work
from tests.databases import query
from tests.integration import page_views
from tests.integration.auditing import audited
from tests.integration.kafka_topics import make_topic, transactional_producer

pytestmark = pytest.mark.long

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Names of librdkafka, and the numbers that a batch in the log has."""


class Sparked(Line):
    """A pipeline whose epochs Spark stages: in its server, or in a driver as spark-submit starts it."""

    folder: Path
    server = ""

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        master = SERVER if self.server else LOCAL
        with job(self, ticket, self.folder, master, server=self.server) as running:
            assert running.wait(600) == 0, log_of(self.folder)

    @property
    def reader(self) -> RecordReader:
        """What an audit reads with."""
        return RecordReader({"bootstrap.servers": self.bootstrap})

    def compressed(self) -> None:
        """Fill a partition per codec."""
        for partition, codec in enumerate(CODECS):
            settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 500, "acks": "all", "compression.type": codec}
            producer = Producer(settings)
            for number in range(100):
                value = f"{codec} {number} {'x' * 100}".encode()
                producer.produce(self.topic, value, partition=partition)
                self.produced[partition, number] = value
            assert producer.flush(60) == 0

    def codecs(self) -> dict[int, set[int]]:
        """By partition the codecs of the batches that the broker holds."""
        admin = new_admin({"bootstrap_servers": self.bootstrap}, 15_000)
        try:
            logs = {p: admin.fetch_batches(TopicPartition(self.topic, p), 0)[0] for p in range(len(CODECS))}
        finally:
            admin.close()
        return {p: {batch.compression_type for batch in MemoryRecords(log)} for p, log in logs.items()}


@pytest.fixture
def line(database: str, brokers: str, tmp_path: Path, recovery: Recovery) -> Sparked:
    one = Sparked(
        database, brokers, partitions=len(CODECS), parse="scripted:parse", record={"value": "text"}, bad_records="fail",
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    )  # fmt: skip
    one.folder, one.recovery = tmp_path, recovery
    return one


def test_epochs_are_exact_and_a_killed_driver_shows_nothing(
    line: Sparked, spark_server: str, record_property: Callable[[str, str], None]
) -> None:
    [(version,)] = line.query("SHOW server_version")
    record_property("PostgreSQL", version)
    record_property("Spark", pyspark.__version__)
    record_property("Python", platform.python_version())
    line.compressed()
    assert line.codecs() == {partition: {number} for partition, number in enumerate(CODECS.values())}
    with transactional_producer(line.bootstrap, f"tx-{line.topic}") as producer:
        producer.begin_transaction()
        line.send(producer, {0: ["aborted"]})
        producer.abort_transaction()
        producer.begin_transaction()
        line.produced |= line.send(producer, {1: ["committed"]})
        producer.commit_transaction()

    line.server = spark_server
    assert line.run("run-1") == "success"
    assert_exact(line)
    assert audited(line.dsn, line.name, line.reader) == []

    line.server, shown = "", visible(line)
    line.produce({0: [*(f"early {i}" for i in range(25)), "wait go", *(f"late {i}" for i in range(15))], 1: ["other"]})
    _, ticket = line.to_begun("run-2")
    with job(line, ticket, line.folder, LOCAL) as running:
        writer_at_work(line, ticket)
        running.kill()
        running.wait(60)
    with pytest.raises(SealRefusedError):
        line.seal(ticket, "run-2")
    assert visible(line) == shown
    line.abort(2, "run-2")
    assert line.state(2) is EpochState.ABORTED
    assert visible(line) == shown
    assert line.query("SELECT tablename FROM pg_tables WHERE schemaname = 'epochline_staging'") == []

    (line.folder / "go").touch()
    recover(line)
    assert audited(line.dsn, line.name, line.reader) == []
    assert [row["pipeline"] for row in page_views.pipelines(line.dsn).pipelines.rows] == [line.name]
    history = page_views.pipeline(line.dsn, line.name).history.rows
    expected = [(2, 2, "COMMITTED"), (1, 1, "COMMITTED")]
    assert [(epoch["epoch_id"], epoch["attempt"], epoch["state"]) for epoch in history] == expected


def visible(line: Sparked) -> object:
    """What readers see of the epochs: rows and next offsets."""
    tables = [line.query(f"SELECT * FROM {sink.table} ORDER BY 1, 2, 3, 4") for sink in line.pipeline.tables]
    return tables, line.heads()


def test_a_postgresql_below_the_range_is_refused_before_anything_is_made(
    empty_database: str, record_property: Callable[[str, str], None]
) -> None:
    [(version,)] = query(empty_database, "SHOW server_version")
    record_property("PostgreSQL", version)
    assert RANGES["PostgreSQL"].is_older(version)

    with pytest.raises(LedgerError, match=rf"PostgreSQL {version}.*needs {RANGES['PostgreSQL'].oldest} or newer"):
        upgrade(empty_database)

    assert query(empty_database, "SELECT to_regnamespace('epochline')") == [(None,)]


def test_a_kafka_below_the_range_is_refused_before_anything_is_planned(database: str, brokers: str) -> None:
    make_topic(brokers, "old")
    line = Line(database, brokers, name="old", partitions=0)
    line.create()

    with pytest.raises(SourceError, match=rf"is too old: it lacks .*need Kafka {RANGES['Kafka'].oldest} or newer"):
        line.plan()

    assert line.query("SELECT * FROM epochline.epochs") == []
