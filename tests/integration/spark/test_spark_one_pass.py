"""One pass: records to staging, parts, manifests and end mark, by real Spark, PostgreSQL and Kafka."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg2 import sql

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import EpochFencedError, EpochNotFoundError, RecordsGoneError
from epochline.postgres.ledger.parts import counts_of
from epochline.protocol.balances import add_up
from epochline.protocol.staging import StagingTicket
from tests.integration.kafka_topics import admin_of, span_of_timestamps
from tests.integration.spark.conftest import Records, Servers

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


def test_a_range_that_kafka_does_not_hold_fails_the_attempt(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochline.spark.source.PATIENCE_SECONDS", 6.0)
    _, ticket = begun(servers, {0: _json(0, 10)}, {0: (0, 25)})

    with pytest.raises(RecordsGoneError):
        servers.run_job()

    assert not servers.database.ended(ticket)
    assert servers.database.manifests(ticket) == {}
    assert servers.database.parts(ticket) == {}, "a part was made of an input that had broken off"
