"""One pass: records to staging, parts, manifests and end mark, by real Spark, PostgreSQL and Kafka."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import sql

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import EpochFencedError, EpochNotFoundError, RecordsGoneError
from epochline.postgres.ledger.parts import counts_of
from epochline.protocol.balances import add_up
from epochline.protocol.staging import StagingTicket
from epochline.spark.credentials import JobCredentials
from tests.integration.kafka_topics import admin_of, span_of_timestamps, transactional_producer
from tests.integration.spark.conftest import Records, Servers

CANARY = "canary-7f3a-secret"
COLUMNS = {"id": "bigint", "what": "text"}


def _json(start: int, count: int) -> list[bytes]:
    return [json.dumps({"id": i, "what": f"row {i}"}).encode() for i in range(start, start + count)]


def begun(servers: Servers, records: Records, ranges: dict[int, tuple[int, int]]) -> tuple[str, StagingTicket]:
    """A topic with these records, and an attempt that is to read these ranges of it into two tables."""
    topic = servers.topic(records)
    pipeline = Pipeline(
        name=servers.name, source=KafkaSource(topics=topic), parse=Json(columns=COLUMNS), bad_records="quarantine",
        sinks=(
            PostgresTable(table="public.hits", columns=COLUMNS),
            PostgresTable(table="public.ids", columns={"id": "bigint"}),
        ),
    )  # fmt: skip
    return topic, servers.database.attempt(pipeline, {(topic, one): planned for one, planned in ranges.items()})


def test_no_consumer_of_a_job_commits_an_offset(servers: Servers) -> None:
    """S12: neither while the job runs nor when its consumers are closed, which is when an automatic commit comes."""
    topic, _ = begun(servers, {0: _json(0, 50)}, {0: (0, 50)})

    servers.run_job()

    with admin_of(servers.bootstrap) as admin:
        groups = [one["group_id"] for one in admin.list_groups()]
        kept = {group: admin.list_group_offsets(group)[group] for group in groups}
    assert not [group for group, offsets in kept.items() if topic in {key.topic for key in offsets}]


def test_every_record_is_staged_once_with_parts_manifests_and_end_mark(servers: Servers) -> None:
    """Of what was planned: neither other offsets nor another partition."""
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


def test_a_job_of_a_fenced_attempt_writes_nothing(servers: Servers) -> None:
    _, ticket = begun(servers, {0: _json(0, 5)}, {0: (0, 5)})
    servers.database.fence(ticket)

    with pytest.raises(EpochFencedError, match="nothing was read or written"):
        servers.run_job()

    assert servers.database.parts(ticket) == {}


def test_a_job_for_an_attempt_that_the_ledger_does_not_know_is_refused(servers: Servers) -> None:
    with pytest.raises(EpochNotFoundError, match="attempt 7 of epoch 3"):
        servers.run_job(epoch_id=3, attempt=7)


def test_an_attempt_that_is_fenced_while_its_job_runs_ends_fenced(servers: Servers) -> None:
    database = servers.database
    _, ticket = begun(servers, {0: _json(0, 50)}, {0: (0, 50)})
    table = sql.Identifier("epochline_staging", ticket.table("public.ids").table)
    database.query(
        sql.SQL(
            "CREATE FUNCTION public.wait_a_little() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(2); RETURN NULL; END';"
            "CREATE TRIGGER t AFTER INSERT ON {} FOR EACH STATEMENT EXECUTE FUNCTION public.wait_a_little()"
        ).format(table)
    )

    def fence_a_writer_at_work() -> None:
        database.wait_for_session(ticket, "wait_event = 'PgSleep'")
        database.fence(ticket)

    with ThreadPoolExecutor(1) as pool:
        fenced = pool.submit(fence_a_writer_at_work)
        with pytest.raises(EpochFencedError):
            servers.run_job()
        fenced.result()

    assert database.parts(ticket) == {}
    assert database.rows(ticket, "public.hits") == []
    assert set(database.fenced_writes(ticket)) == {"insert parts"}
    assert not database.ended(ticket)


def test_only_committed_records_are_read_and_markers_are_passed_over(servers: Servers) -> None:
    topic, ticket = begun(servers, {0: []}, {0: (0, 33)})
    with transactional_producer(servers.bootstrap, servers.name) as producer:
        for round_, keep in enumerate((True, False, True)):
            producer.begin_transaction()
            for value in _json(round_ * 10, 10):
                producer.send(topic, value=value, partition=0)
            producer.flush()  # otherwise an abort sends nothing at all
            producer.commit_transaction() if keep else producer.abort_transaction()

    servers.run_job()

    assert servers.database.ids(ticket, "public.hits") == [*range(10), *range(20, 30)]
    assert servers.database.ended(ticket)


def test_a_range_that_kafka_does_not_hold_fails_the_attempt(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochline.spark.source.PATIENCE_SECONDS", 6.0)
    _, ticket = begun(servers, {0: _json(0, 10)}, {0: (0, 25)})

    with pytest.raises(RecordsGoneError):
        servers.run_job()

    assert not servers.database.ended(ticket)
    assert servers.database.manifests(ticket) == {}
    assert servers.database.parts(ticket) == {}, "a part was made of an input that had broken off"


def test_hostile_names_of_columns_and_tables_are_taken_as_they_are(servers: Servers) -> None:
    columns = {'a"b': "bigint", "a'; DROP TABLE x; --": "text", "A": "integer", "a": "integer", "ä.`x`": "text"}
    topic = servers.topic({0: [json.dumps(dict(zip(columns, (1, "t", 2, 3, "u"), strict=True))).encode()]})
    pipeline = Pipeline(
        name=servers.name, source=KafkaSource(topics=topic), parse=Json(columns=columns),
        sinks=(PostgresTable(table='public.we"ird; --', columns=columns),),
    )  # fmt: skip
    ticket = servers.database.attempt(pipeline, {(topic, 0): (0, 1)})

    servers.run_job()

    assert [row[:5] for row in servers.database.rows(ticket, 'public.we"ird; --')] == [(1, "t", 2, 3, "u")]


def test_no_secret_reaches_the_event_log(servers: Servers, event_log: Path) -> None:
    parts = psycopg2.extensions.parse_dsn(servers.database.dsn)
    dsn = f"postgresql://{parts['user']}:{CANARY}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    if not _connects(dsn):
        dsn = servers.database.dsn
    # Not used over PLAINTEXT, but handed to Spark as if it were.
    secret = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": f"{CANARY}-k"}
    begun(servers, {0: _json(0, 10)}, {0: (0, 10)})

    servers.run_job(JobCredentials(dsn=dsn, kafka={**servers.credentials.kafka, **secret}))

    password = psycopg2.extensions.parse_dsn(dsn)["password"]
    logged = b"".join(path.read_bytes() for path in event_log.rglob("*") if path.is_file())
    assert b"MapInArrow" in logged, "the log does not show the job's plan"
    assert password.encode() not in logged
    assert CANARY.encode() not in logged


def _connects(dsn: str) -> bool:
    try:
        with closing(psycopg2.connect(dsn)):
            return True
    except psycopg2.OperationalError:
        return False
