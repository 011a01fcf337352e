"""The transaction of one Spark partition against a real ledger: repeats, seals, fences."""

from __future__ import annotations

import threading
import time
import uuid

import psycopg2
import pytest

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.declare.parsers import Json
from epochline.errors import EpochFencedError, LedgerUnavailableError, NonDeterministicPartError
from epochline.postgres.ledger.parts import Part
from epochline.spark.transaction import PartTransaction


@pytest.fixture
def ticket(database, name):
    columns = {"id": "bigint"}
    pipeline = Pipeline(
        name=name, source=KafkaSource(topics="t"), parse=Json(columns=columns),
        sinks=(PostgresTable(table="public.ids", columns=columns),),
    )  # fmt: skip
    return database.attempt(pipeline, {("t", 0): (0, 5)})


def _write(database, ticket, write_id, ids, *, digest="1", finish=True):
    part = PartTransaction(ticket, database.dsn, write_id, 0)
    try:
        data = "".join(f"{i},t,0,{i},0\n" for i in ids).encode()
        part.copy(ticket.table("public.ids"), "FORMAT csv", data)
        message = {"rows": len(ids), "digest": digest}
        return part.finish([Part(sink="public.ids", rows=len(ids), message=message)]) if finish else None
    finally:
        part.close()


def _ids(database, ticket):
    return [row[0] for row in database.rows(ticket, "public.ids", "id, _offset")]


@pytest.mark.fault("F5")
def test_a_second_try_of_a_part_answers_with_the_first_and_keeps_no_row_of_its_own(database, ticket, recovery):
    write_id = str(uuid.uuid4())
    first = _write(database, ticket, write_id, [1, 2, 3])

    recovery.last_fault()
    second = _write(database, ticket, write_id, [1, 2, 3])

    assert second == first
    assert _ids(database, ticket) == [1, 2, 3]
    recovery.took()


@pytest.mark.parametrize(("ids", "digest"), [([1, 2], "1"), ([1, 2, 3], "2")], ids=["rows", "digest"])
def test_a_second_try_that_gives_other_rows_is_refused(database, ticket, ids, digest):
    write_id = str(uuid.uuid4())
    _write(database, ticket, write_id, [1, 2, 3])

    with pytest.raises(NonDeterministicPartError):
        _write(database, ticket, write_id, ids, digest=digest)

    assert _ids(database, ticket) == [1, 2, 3]


@pytest.mark.parametrize("mark", ["sealed_at", "fenced_at"])
def test_a_part_that_waits_for_the_lock_of_a_seal_or_fence_inserts_nothing(database, ticket, mark):
    raised: list[BaseException] = []

    def write() -> None:
        try:
            _write(database, ticket, str(uuid.uuid4()), [1, 2, 3])
        except BaseException as error:
            raised.append(error)

    seal = psycopg2.connect(database.dsn)
    seal.cursor().execute("SELECT 1 FROM epochline.attempt WHERE attempt_id = %s FOR UPDATE", (ticket.attempt_id,))
    writer = threading.Thread(target=write)
    writer.start()
    _until_it_waits(database, ticket)
    seal.cursor().execute(f"UPDATE epochline.attempt SET {mark} = now() WHERE attempt_id = %s", (ticket.attempt_id,))
    seal.commit()
    seal.close()
    writer.join(20)

    assert [type(error) for error in raised] == [EpochFencedError]
    assert _ids(database, ticket) == []
    assert database.parts(ticket) == {}
    assert [what for _, what in database.fenced_writes(ticket)] == ["insert parts"]


def _until_it_waits(database, ticket) -> None:
    until = time.monotonic() + 20
    while not database.query(
        "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'",
        (ticket.application_name,),
    ):
        assert time.monotonic() < until
        time.sleep(0.02)


def _end_sessions(database, ticket) -> None:
    database.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
        (ticket.application_name,),
    )


def test_a_writer_whose_session_was_ended_by_a_fence_records_the_refused_write(database, ticket):
    part = PartTransaction(ticket, database.dsn, str(uuid.uuid4()), 0)
    database.fence(ticket)
    _end_sessions(database, ticket)

    with pytest.raises(EpochFencedError):
        part.copy(ticket.table("public.ids"), "FORMAT csv", b"1,t,0,1,0\n")

    assert len(database.fenced_writes(ticket)) == 1


def test_a_writer_whose_table_was_dropped_by_a_fence_records_the_refused_write(database, ticket):
    database.fence(ticket)
    database.query(f"DROP TABLE epochline_staging.{ticket.table('public.ids').table}")

    with pytest.raises(EpochFencedError):
        _write(database, ticket, str(uuid.uuid4()), [1])

    assert len(database.fenced_writes(ticket)) == 1


def test_a_writer_whose_session_ended_for_another_reason_may_be_tried_again(database, ticket):
    part = PartTransaction(ticket, database.dsn, str(uuid.uuid4()), 0)
    _end_sessions(database, ticket)

    with pytest.raises(LedgerUnavailableError) as raised:
        part.copy(ticket.table("public.ids"), "FORMAT csv", b"1,t,0,1,0\n")

    assert raised.value.retryable
    assert database.fenced_writes(ticket) == []


@pytest.mark.fault("F5")
def test_two_concurrent_tries_of_a_part_give_one_set_of_rows(database, ticket):
    write_id, answers = str(uuid.uuid4()), []
    writers = [
        threading.Thread(target=lambda: answers.append(_write(database, ticket, write_id, [1, 2, 3]))) for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(20)

    assert len(answers) == 4
    assert _ids(database, ticket) == [1, 2, 3]
