"""F28 to F30 through a real Spark job: hostile and huge records, read by Spark and again by the audit."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Literal

import pytest
from kafka import KafkaProducer

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.arrow.cast.source import record_batch
from epochline.arrow.stage.digest import digest, record_hashes
from epochline.arrow.stage.quarantine import quarantine_batch
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import BadRecordError
from epochline.kafka.records import RecordReader
from epochline.postgres.ledger.parts import counts_of
from epochline.protocol.offsets import OffsetRange, add_up
from epochline.protocol.staging import StagingTicket
from tests.integration.kafka_topics import make_topic
from tests.integration.spark.conftest import Servers

COLUMNS = {"id": "bigint", "what": "text"}
LARGEST = 5 * 1024 * 1024  # five times what a consumer fetches of a partition at once
# One as large as the topic takes, less the batch's own frame, which the limit counts; and poison around it.
HUGE = json.dumps({"id": 2, "what": "x" * (LARGEST - 200)}).encode()
VALUES = [b'{"id": 1}', HUGE, b"\xff", b"{no", None, b"", b'{"what": "canary\\u0000"}', b'{"id": 7}']
REFUSED = (2, 3, 5, 6)


@pytest.fixture
def hostile(servers: Servers) -> Servers:
    """With the records in a topic that has the pipeline's name."""
    topic = make_topic(servers.bootstrap, servers.name, 2, **{"max.message.bytes": str(LARGEST)})
    with closing(KafkaProducer(bootstrap_servers=servers.bootstrap, max_request_size=LARGEST + 4096)) as producer:
        for at, value in enumerate(VALUES):
            headers = [("h", b"1"), ("h", b""), ("ä", b"\xff")] if at % 2 else []
            key = None if value else b"key"
            producer.send(topic, value=value, key=key, headers=headers, partition=0, timestamp_ms=1_000 + at).get(300)
    return servers


def begun(servers: Servers, start: int, bad_records: Literal["quarantine", "fail"]) -> StagingTicket:
    pipeline = Pipeline(
        name=servers.name, source=KafkaSource(topics=servers.name), parse=Json(columns=COLUMNS),
        bad_records=bad_records, sinks=PostgresTable(table="public.hostile", columns=COLUMNS),
    )  # fmt: skip
    return servers.database.attempt(pipeline, {(servers.name, 0): (start, len(VALUES))})


@pytest.mark.fault("F28", "F29", "F30")
def test_hostile_and_huge_records_have_their_outcome_and_are_read_again_as_spark_read_them(hostile: Servers) -> None:
    """F28, F29, F30: no setting is needed for a record above the fetch size: a broker gives at least one batch."""
    topic, database = hostile.name, hostile.database
    ticket = begun(hostile, 0, "quarantine")

    hostile.run_job()

    rows = database.rows(ticket, "public.hostile", "_offset, id, length(what)")
    assert rows == [(0, 1, None), (1, 2, LARGEST - 200), (4, None, None), (7, 7, None)]
    kept = database.rows(ticket, QUARANTINE, '"offset", reason, record_timestamp, key, value, headers')
    assert tuple(row[0] for row in kept) == REFUSED
    seen = add_up(counts_of(message) for _, message in database.parts(ticket).values())[topic, 0]
    assert (seen.received, seen.passed, seen.quarantined) == (8, 4, 4)

    with RecordReader(hostile.credentials.kafka).session() as session:
        read = session.read(topic, 0, OffsetRange(start=0, until=len(VALUES)))
        again = [record_batch(topic, 0, columns) for columns in read]
    assert sum(digest(record_hashes(one)) for one in again) % 2**64 == seen.digest
    by_audit = []
    for one in again:
        reasons = {at: "" for at, offset in enumerate(one.column("offset").to_pylist()) if offset in REFUSED}
        by_audit += quarantine_batch(one, reasons).to_pylist()
    assert [
        (offset, moment, key and bytes(key), value if value is None else bytes(value), headers)
        for offset, _, moment, key, value, headers in kept
    ] == [(one["offset"], one["record_timestamp"], one["key"], one["value"], one["headers"]) for one in by_audit]


def test_the_job_of_a_pipeline_that_fails_on_poison_names_the_record_and_no_value(hostile: Servers) -> None:
    """F28, SEC-5: the error that the driver raises and the ledger keeps."""
    database = hostile.database
    ticket = begun(hostile, 6, "fail")

    with pytest.raises(BadRecordError, match=f"{hostile.name}-0 offset 6: .*NUL byte") as raised:
        hostile.run_job()

    kept = database.error(ticket)
    assert kept.startswith("BadRecordError: ")
    assert "canary" not in f"{kept}{raised.value}"
    assert database.manifests(ticket) == {}
    assert not database.ended(ticket)
