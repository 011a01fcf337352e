"""One pass: records to staging, parts, manifests and end mark, by real Spark, PostgreSQL and Kafka."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest
from psycopg2 import sql

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import DataLossError, EpochFencedError, EpochNotFoundError
from epochline.postgres.ledger.parts import counts_of
from epochline.protocol.offsets import add_up
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run
from tests.integration.kafka_topics import admin_of, transactional_producer

CANARY = "canary-7f3a-secret"


def _json(start: int, count: int) -> list[bytes]:
    return [json.dumps({"id": i, "what": f"row {i}"}).encode() for i in range(start, start + count)]


def _pipeline(name: str, topic: str, **fields) -> Pipeline:
    columns = {"id": "bigint", "what": "text"}
    return Pipeline(
        name=name, source=KafkaSource(topics=topic), parse=Json(columns=columns), bad_records="quarantine",
        sinks=(
            PostgresTable(table="public.hits", columns=columns),
            PostgresTable(table="public.ids", columns={"id": "bigint"}),
        ),
        **fields,
    )  # fmt: skip


@pytest.fixture
def credentials(database, kafka_bootstrap):
    # Not used over PLAINTEXT, but handed to Spark as if it were.
    secret = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": f"{CANARY}-k"}
    return JobCredentials(dsn=database.dsn, kafka={"bootstrap.servers": kafka_bootstrap, **secret})


def test_no_consumer_of_a_job_commits_an_offset(spark, database, topic, name, credentials, kafka_bootstrap):
    """S12: neither while the job runs nor when its consumers are closed, which is when an automatic commit comes."""
    records = topic({0: _json(0, 50)})
    database.attempt(_pipeline(name, records), {(records, 0): (0, 50)})

    run(spark, name, 1, 1, credentials)

    with admin_of(kafka_bootstrap) as admin:
        groups = [one["group_id"] for one in admin.list_groups()]
        kept = {group: admin.list_group_offsets(group)[group] for group in groups}
    assert not [group for group, offsets in kept.items() if records in {key.topic for key in offsets}]


def test_every_record_is_staged_once_with_parts_manifests_and_end_mark(spark, database, topic, name, credentials):
    records = topic({0: _json(0, 500), 1: [*_json(500, 250), b"{not json", b"\xff\xfe"]})
    ticket = database.attempt(_pipeline(name, records), {(records, 0): (100, 500), (records, 1): (0, 252)})

    run(spark, name, 1, 1, credentials)

    hits = database.rows(ticket, "public.hits", "id, what, _topic, _partition, _offset, _row")
    expected = [(i, f"row {i}", records, 0, i, 0) for i in range(100, 500)]
    expected += [(i, f"row {i}", records, 1, i - 500, 0) for i in range(500, 750)]
    assert hits == expected
    assert [row[0] for row in database.rows(ticket, "public.ids", "id, _offset")] == list(range(100, 750))
    kept = database.rows(ticket, QUARANTINE, '"offset", partition, value, key')
    assert [(o, p, bytes(v), bytes(k)) for o, p, v, k in kept] == [
        (250, 1, b"{not json", b"key"),
        (251, 1, b"\xff\xfe", b"key"),
    ]
    parts = database.parts(ticket)
    assert database.manifests(ticket) == {
        "public.hits": (len(parts) // 3, 650),
        "public.ids": (len(parts) // 3, 650),
        QUARANTINE: (len(parts) // 3, 2),
    }
    seen = add_up(counts_of(message) for (sink, _), (_, message) in parts.items() if sink == QUARANTINE)
    assert {key: (c.received, c.passed, c.quarantined, c.first_offset, c.last_offset) for key, c in seen.items()} == {
        (records, 0): (400, 400, 0, 100, 499),
        (records, 1): (252, 250, 2, 0, 251),
    }
    assert database.ended(ticket)


def test_a_job_of_a_fenced_attempt_writes_nothing(spark, database, topic, name, credentials):
    records = topic({0: _json(0, 5)})
    ticket = database.attempt(_pipeline(name, records), {(records, 0): (0, 5)})
    database.fence(ticket)

    with pytest.raises(EpochFencedError, match="nothing was read or written"):
        run(spark, name, 1, 1, credentials)

    assert database.parts(ticket) == {}


def test_a_job_for_an_attempt_that_the_ledger_does_not_know_says_so(spark, database, name, credentials):
    with pytest.raises(EpochNotFoundError, match="attempt 7 of epoch 3"):
        run(spark, name, 3, 7, credentials)


def test_an_attempt_that_is_fenced_while_its_job_runs_ends_fenced(spark, database, topic, name, credentials):
    records = topic({0: _json(0, 50)})
    ticket = database.attempt(_pipeline(name, records), {(records, 0): (0, 50)})
    table = sql.Identifier("epochline_staging", ticket.table("public.ids").table)
    database.query(
        """CREATE OR REPLACE FUNCTION public.wait_a_little() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$"""
    )
    database.query(
        sql.SQL(
            "CREATE TRIGGER t AFTER INSERT ON {} FOR EACH STATEMENT EXECUTE FUNCTION public.wait_a_little()"
        ).format(table)
    )

    with ThreadPoolExecutor(1) as pool:
        fenced = pool.submit(_fence_a_writer_at_work, database, ticket)
        with pytest.raises(EpochFencedError):
            run(spark, name, 1, 1, credentials)
        fenced.result()

    assert database.parts(ticket) == {}
    assert database.rows(ticket, "public.hits") == []
    assert {what for _, what in database.fenced_writes(ticket)} == {"insert parts"}
    assert not database.ended(ticket)


def test_only_committed_records_are_read_and_markers_are_passed_over(
    spark, database, topic, name, credentials, kafka_bootstrap
):
    records = topic({0: []})
    with transactional_producer(kafka_bootstrap, name) as producer:
        for round_, keep in enumerate((True, False, True)):
            producer.begin_transaction()
            for value in _json(round_ * 10, 10):
                producer.send(records, value=value, partition=0)
            producer.flush()  # otherwise an abort sends nothing at all
            producer.commit_transaction() if keep else producer.abort_transaction()
    ticket = database.attempt(_pipeline(name, records), {(records, 0): (0, 33)})

    run(spark, name, 1, 1, credentials)

    staged = database.rows(ticket, "public.hits", "id, _offset")
    assert [row[0] for row in staged] == [*range(10), *range(20, 30)]
    assert database.ended(ticket)


def test_a_range_that_kafka_does_not_hold_fails_the_attempt(spark, database, topic, name, credentials, monkeypatch):
    monkeypatch.setattr("epochline.spark.source.POLL_TIMEOUT_MS", 2000)
    records = topic({0: _json(0, 10)})
    ticket = database.attempt(_pipeline(name, records), {(records, 0): (0, 25)})

    with pytest.raises(DataLossError):
        run(spark, name, 1, 1, credentials)

    assert not database.ended(ticket)
    assert database.manifests(ticket) == {}
    assert database.parts(ticket) == {}, "a part was made of an input that had broken off"


def test_partitions_that_were_not_planned_are_not_read(spark, database, topic, name, credentials):
    records = topic({0: _json(0, 10), 1: _json(10, 10), 2: _json(20, 10)})
    ticket = database.attempt(_pipeline(name, records), {(records, 1): (2, 8)})

    run(spark, name, 1, 1, credentials)

    assert [row[0] for row in database.rows(ticket, "public.ids", "id, _offset")] == list(range(12, 18))


def test_hostile_names_of_columns_and_tables_are_taken_as_they_are(spark, database, topic, name, credentials):
    columns = {'a"b': "bigint", "a'; DROP TABLE x; --": "text", "A": "integer", "a": "integer", "ä.`x`": "text"}
    records = topic({0: [json.dumps(dict(zip(columns, (1, "t", 2, 3, "u"), strict=True))).encode()]})
    pipeline = Pipeline(
        name=name, source=KafkaSource(topics=records), parse=Json(columns=columns),
        sinks=(PostgresTable(table='public.we"ird; --', columns=columns),),
    )  # fmt: skip
    ticket = database.attempt(pipeline, {(records, 0): (0, 1)})

    run(spark, name, 1, 1, credentials)

    assert [row[:5] for row in database.rows(ticket, 'public.we"ird; --')] == [(1, "t", 2, 3, "u")]


def test_no_secret_reaches_the_event_log(spark, database, topic, name, credentials, event_log):
    with psycopg2.connect(database.dsn) as session:
        parameters = session.info.dsn_parameters
    dsn = f"postgresql://{parameters['user']}:{CANARY}@{parameters['host']}:{parameters['port']}/{parameters['dbname']}"
    if not _connects(dsn):
        dsn = database.dsn
    records = topic({0: _json(0, 10)})
    database.attempt(_pipeline(name, records), {(records, 0): (0, 10)})

    run(spark, name, 1, 1, JobCredentials(dsn=dsn, kafka=credentials.kafka))

    password = psycopg2.extensions.parse_dsn(dsn)["password"]
    logged = b"".join(path.read_bytes() for path in event_log.rglob("*") if path.is_file())
    assert name.encode() in logged or b"epochline_staging" in logged
    assert password.encode() not in logged
    assert CANARY.encode() not in logged


def _fence_a_writer_at_work(database, ticket) -> None:
    until = time.monotonic() + 60
    while not database.query(
        "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event = 'PgSleep'",
        (ticket.application_name,),
    ):
        assert time.monotonic() < until, "no writer came"
        time.sleep(0.05)
    database.fence(ticket)


def _connects(dsn: str) -> bool:
    try:
        psycopg2.connect(dsn).close()
    except psycopg2.OperationalError:
        return False
    return True
