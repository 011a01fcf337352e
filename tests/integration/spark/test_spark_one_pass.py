"""One pass: which records a job reads, over TLS and SASL too, with how much memory, and what it stages of them."""

import itertools
import json
import logging
from operator import itemgetter
from pathlib import Path

import pytest
from psycopg2 import sql
from psycopg2.extensions import parse_dsn

from epochline import PostgresTable, Text
from epochline.config.kafka import broker_settings
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import EpochFencedError, EpochNotFoundError, RecordsGoneError
from epochline.postgres.ledger.parts import counts_of
from epochline.protocol.balances import add_up
from epochline.protocol.offsets import OffsetRange, PlannedRange, TopicPartition
from epochline.protocol.staging import StagingTicket
from epochline.spark.credentials import JobCredentials
from epochline.spark.source import read_ranges
from tests.commands import in_processes
from tests.databases import query
from tests.integration.kafka_topics import admin_of, make_topic, produce, span_of_timestamps
from tests.integration.secure_kafka import PASSWORD, USER, SecureKafka
from tests.integration.spark.conftest import Records, Servers

COLUMNS = {"id": "bigint", "what": "text"}


def _json(start: int, count: int) -> list[bytes]:
    return [json.dumps({"id": i, "what": f"row {i}"}).encode() for i in range(start, start + count)]


def begun(servers: Servers, records: Records, ranges: dict[int, tuple[int, int]]) -> tuple[str, StagingTicket]:
    """A topic with these records, and an attempt that is to read these ranges of it into two tables."""
    topic = servers.topic(records)
    tables = {"public.hits": COLUMNS, "public.ids": {"id": "bigint"}}
    sinks = [PostgresTable(table=name, columns=columns) for name, columns in tables.items()]
    pipeline = servers.pipeline(topic, parse=Json(columns=COLUMNS), bad_records="quarantine", sinks=sinks)
    return topic, servers.database.attempt(pipeline, {(topic, one): planned for one, planned in ranges.items()})


def test_every_record_is_staged_once_with_parts_manifests_and_end_mark(servers: Servers) -> None:
    """S12: of what was planned, neither other offsets nor another partition. No consumer of the job commits an offset."""
    database = servers.database
    records = {0: _json(0, 500), 1: [*_json(500, 250), b"{not json", b"\xff\xfe"], 2: _json(750, 10)}
    topic, ticket = begun(servers, records, {0: (100, 490), 1: (0, 252)})

    servers.run_job()

    hits = database.rows(ticket, "public.hits", "id, what, _topic, _partition, _offset, _row")
    expected = [(i, f"row {i}", topic, 0, i, 0) for i in range(100, 490)]
    expected += [(i, f"row {i}", topic, 1, i - 500, 0) for i in range(500, 750)]
    assert hits == expected
    assert database.ids(ticket) == [row[0] for row in expected]
    kept = database.rows(ticket, QUARANTINE, '"offset", partition, value, key')
    assert [(o, p, bytes(v), bytes(k)) for o, p, v, k in kept] == [
        (250, 1, b"{not json", b"key"), (251, 1, b"\xff\xfe", b"key"),
    ]  # fmt: skip
    parts = database.parts(ticket)
    each = len(parts) // 3
    assert database.manifests(ticket) == {"public.hits": (each, 640), "public.ids": (each, 640), QUARANTINE: (each, 2)}
    seen = add_up(counts_of(message) for (sink, _), (_, message) in parts.items() if sink == QUARANTINE)
    assert {key: (c.received, c.passed, c.quarantined, c.first_offset, c.last_offset) for key, c in seen.items()} == {
        (topic, 0): (390, 390, 0, 100, 489), (topic, 1): (252, 250, 2, 0, 251),
    }  # fmt: skip
    spans = {partition: (one.oldest_timestamp, one.newest_timestamp) for (_, partition), one in seen.items()}
    assert spans == span_of_timestamps(servers.bootstrap, topic, {0: (100, 490), 1: (0, 252)})
    assert database.ended(ticket)
    with admin_of(servers.bootstrap) as admin:
        groups = [one["group_id"] for one in admin.list_groups()]
        kept_offsets = [key.topic for group in groups for key in admin.list_group_offsets(group)[group]]
    assert topic not in kept_offsets


def test_a_job_of_a_fenced_attempt_writes_nothing(servers: Servers) -> None:
    _, ticket = begun(servers, {0: _json(0, 5)}, {0: (0, 5)})
    servers.database.fence(ticket)

    with pytest.raises(EpochFencedError, match="nothing was read or written"):
        servers.run_job()

    assert servers.database.parts(ticket) == {}


def test_a_job_for_an_attempt_that_the_ledger_does_not_know_is_refused(servers: Servers) -> None:
    with pytest.raises(EpochNotFoundError, match="attempt 7 of epoch 3"):
        servers.run_job(epoch_id=3, attempt=7)


def test_a_range_that_kafka_does_not_hold_fails_the_attempt(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochline.spark.source.PATIENCE_SECONDS", 6.0)
    _, ticket = begun(servers, {0: _json(0, 10)}, {0: (0, 25)})

    with pytest.raises(RecordsGoneError):
        servers.run_job()

    assert not servers.database.ended(ticket)
    assert servers.database.manifests(ticket) == {}
    assert servers.database.parts(ticket) == {}, "a part was made of an input that had broken off"


PLANNED = {0: (0, 700), 1: (150, 900), 3: (899, 900)}
"""By partition, what the ledger has of each topic; partition 2 has records and is not planned."""


def test_a_job_reads_exactly_the_ranges_of_the_ledger_in_the_order_of_topics_and_partitions(servers: Servers) -> None:
    """S7: two topics, declared and planned in another order. Each task reads the ranges from where the last task ends."""
    topics = [servers.topic({partition: [b"x"] * 900 for partition in range(4)}) for _ in range(2)]
    topics.sort(reverse=True)
    sink = PostgresTable(table="public.read", columns={"line": "text"})
    pipeline = servers.pipeline(*topics, parse=Text(column="line"), sinks=sink)
    ranges = {(topic, partition): PLANNED[partition] for topic in topics for partition in (3, 1, 0)}
    ticket = servers.database.attempt(pipeline, ranges)

    servers.run_job()

    # A task is a transaction, which appends its rows in the order in which it has read them.
    found = servers.database.query(
        sql.SQL("SELECT xmin::text, _topic, _partition, _offset FROM {} ORDER BY ctid").format(
            sql.Identifier("epochline_staging", ticket.table("public.read").table)
        )
    )
    by_task = [
        [place for _, *place in rows] for _, rows in itertools.groupby(sorted(found, key=itemgetter(0)), itemgetter(0))
    ]
    ledger = [
        [topic, partition, offset] for topic, partition in sorted(ranges) for offset in range(*ranges[topic, partition])
    ]
    assert len(by_task) == 2
    assert [place for task in sorted(by_task) for place in task] == ledger


def test_a_job_reads_over_tls_and_shows_no_password_and_no_key(
    servers: Servers, secure_kafka: SecureKafka, topic_name: str, event_log: Path
) -> None:
    settings = broker_settings("test", secure_kafka.connection(), login=USER, password=PASSWORD)
    make_topic(settings, topic_name)
    produce(settings, topic_name, [b"row %d" % number for number in range(20)], partition=0)
    sink = PostgresTable(table="hits", columns={"value": "text"})
    pipeline = servers.pipeline(topic_name, parse=Text(), sinks=sink)
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


HEAP, WORKER_MIB, RECORDS = "640m", 1024, 50_000
DECLARED = """
from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

COLUMNS = {{"heap": "text", "most": "bigint"}}
dag = epoch_dag(Pipeline(
    name="limited", source=KafkaSource(topics="{topic}"), parse="limits:parse", record=COLUMNS,
    sinks=[PostgresTable(table="limits", columns=COLUMNS)],
    spark_conf={{"spark.driver.memory": "{heap}", "spark.executor.pyspark.memory": "{worker}m"}},
))
"""
LIMITS = """
import resource

import psutil
import pyarrow as pa


def parse(batch):
    java = next(one.cmdline() for one in psutil.Process().parents() if "java" in one.name())
    heap = next(word for word in java if word.startswith("-Xmx"))
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return pa.RecordBatch.from_pydict({"heap": [heap] * len(batch), "most": [most] * len(batch)})
"""


def test_a_declared_limit_is_that_of_the_jvm_and_of_each_worker_and_suffices(servers: Servers, tmp_path: Path) -> None:
    """B2."""
    topic = servers.topic({partition: [b"x" * 100] * (RECORDS // 2) for partition in range(2)})
    (tmp_path / "limited.py").write_text(DECLARED.format(topic=topic, heap=HEAP, worker=WORKER_MIB))
    (tmp_path / "limits.py").write_text(LIMITS)
    dsn = servers.database.dsn
    epochline = in_processes(tmp_path, postgres=dsn, kafka=servers.bootstrap, PYTHONPATH=str(tmp_path))

    epochline("migrate")
    epochline("run", "limited", "--once", "--master", "local[2]")

    found = query(dsn, "SELECT heap, most, count(*) FROM limits GROUP BY 1, 2")
    assert found == [(f"-Xmx{HEAP}", WORKER_MIB * 2**20, RECORDS)]


def test_a_job_logs_the_memory_that_spark_reports(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """B2: also the batch that the pipeline declares, and what nobody has set."""
    topic = servers.topic({0: [b"a"]})
    sink = PostgresTable(table="public.lines", columns={"line": "text"})
    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "77"}
    pipeline = servers.pipeline(topic, parse=Text(column="line"), sinks=sink, spark_conf=conf)
    servers.database.attempt(pipeline, {(topic, 0): (0, 1)})

    with caplog.at_level(logging.INFO, "epochline.spark.job"):
        servers.run_job()

    (said,) = [text for text in caplog.messages if text.startswith("job.memory")]
    assert f"pipeline={servers.name} epoch=1 " in said
    assert "spark.sql.execution.arrow.maxRecordsPerBatch='77'" in said
    assert "spark.executor.pyspark.memory='not set'" in said
