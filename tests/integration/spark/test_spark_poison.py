"""F28 to F30 through a real Spark job: hostile and huge records, read by Spark and again by the audit."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from kafka import KafkaProducer

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.arrow.stage.digest import digest, record_hashes
from epochline.arrow.stage.quarantine import quarantine_batch
from epochline.audit.source import record_batch
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import BadRecordError
from epochline.kafka.records import RecordReader
from epochline.postgres.ledger.parts import counts_of
from epochline.protocol.offsets import OffsetRange, add_up
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run
from tests.integration.kafka_topics import make_topic

COLUMNS = {"id": "bigint", "what": "text"}
LARGEST = 5 * 1024 * 1024  # five times what a consumer fetches of a partition at once


@pytest.fixture
def hostile(kafka_bootstrap, name) -> tuple[str, list[bytes | None]]:
    """A topic and its records: one as large as the topic takes, and poison around it."""
    make_topic(kafka_bootstrap, name, 2, **{"max.message.bytes": str(LARGEST)})
    # Less the batch's own frame: the limit counts it.
    huge = json.dumps({"id": 2, "what": "x" * (LARGEST - 200)}).encode()
    values = [b'{"id": 1}', huge, b"\xff", b"{no", None, b"", b'{"what": "canary\\u0000"}', b'{"id": 7}']
    with closing(KafkaProducer(bootstrap_servers=kafka_bootstrap, max_request_size=LARGEST + 4096)) as producer:
        for at, value in enumerate(values):
            headers = [("h", b"1"), ("h", b""), ("ä", b"\xff")] if at % 2 else []
            key = None if value else b"key"
            producer.send(name, value=value, key=key, headers=headers, partition=0, timestamp_ms=1_000 + at).get(300)
    return name, values


def declared(name: str, topic: str, policy: str) -> Pipeline:
    return Pipeline(
        name=name, source=KafkaSource(topics=topic), parse=Json(columns=COLUMNS), bad_records=policy,
        sinks=PostgresTable(table="public.hostile", columns=COLUMNS),
    )  # fmt: skip


@pytest.mark.fault("F28", "F29", "F30")
def test_hostile_and_huge_records_have_their_outcome_and_are_read_again_as_spark_read_them(
    spark, database, hostile, kafka_bootstrap
):
    """F28, F29, F30: no setting is needed for a record above the fetch size: a broker gives at least one batch."""
    topic, values = hostile
    ticket = database.attempt(declared(topic, topic, "quarantine"), {(topic, 0): (0, len(values))})

    run(spark, topic, 1, 1, JobCredentials(dsn=database.dsn, kafka={"bootstrap.servers": kafka_bootstrap}))

    rows = database.rows(ticket, "public.hostile", "_offset, id, length(what)")
    assert rows == [(0, 1, None), (1, 2, LARGEST - 200), (4, None, None), (7, 7, None)]
    kept = database.rows(ticket, QUARANTINE, '"offset", reason, record_timestamp, key, value, headers')
    assert [row[0] for row in kept] == [2, 3, 5, 6]
    seen = add_up(counts_of(message) for _, message in database.parts(ticket).values())[topic, 0]
    assert (seen.received, seen.passed, seen.quarantined) == (8, 4, 4)

    with RecordReader({"bootstrap.servers": kafka_bootstrap}).session() as session:
        again = [
            record_batch(topic, 0, columns)
            for columns in session.read(topic, 0, OffsetRange(start=0, until=len(values)))
        ]
    assert sum(digest(record_hashes(one)) for one in again) % 2**64 == seen.digest
    by_audit = [
        row
        for one in again
        for row in quarantine_batch(
            one, {at: "" for at, offset in enumerate(one.column("offset").to_pylist()) if offset in (2, 3, 5, 6)}
        ).to_pylist()
    ]
    assert [
        (offset, moment, key and bytes(key), value if value is None else bytes(value), headers)
        for offset, _, moment, key, value, headers in kept
    ] == [(one["offset"], one["record_timestamp"], one["key"], one["value"], one["headers"]) for one in by_audit]


def test_the_job_of_a_pipeline_that_fails_on_poison_names_the_record_and_no_value(
    spark, database, hostile, kafka_bootstrap
):
    """F28, SEC-5: the error that the driver raises and the ledger keeps."""
    topic, _ = hostile
    ticket = database.attempt(declared(topic, topic, "fail"), {(topic, 0): (6, 8)})

    with pytest.raises(BadRecordError, match=f"{topic}-0 offset 6: .*NUL byte") as raised:
        run(spark, topic, 1, 1, JobCredentials(dsn=database.dsn, kafka={"bootstrap.servers": kafka_bootstrap}))

    ((kept,),) = database.query("SELECT error FROM epochline.attempt WHERE attempt_id = %s", (ticket.attempt_id,))
    assert kept.startswith("BadRecordError: ")
    assert "canary" not in f"{kept}{raised.value}"
    assert database.manifests(ticket) == {}
    assert not database.ended(ticket)
