"""The transaction of one Spark partition against a real ledger: repeats, seals, fences."""

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

import psycopg2
import pytest

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.declare.parsers import Json
from epochline.errors import EpochFencedError, NonDeterministicPartError
from epochline.postgres.ledger.parts import Part
from epochline.protocol.staging import StagingTicket
from epochline.spark.transaction import PartTransaction
from tests.crash.reliability import Recovery
from tests.integration.spark.conftest import Database

COLUMNS = {"id": "bigint"}


@dataclass
class Attempt:
    """An attempt, whose parts are written by hand."""

    database: Database
    ticket: StagingTicket
    write_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def part(self) -> PartTransaction:
        return PartTransaction(self.ticket, self.database.dsn, self.write_id, 0)

    def copy(self, part: PartTransaction, ids: Sequence[int]) -> None:
        part.copy(self.ticket.table("public.ids"), "FORMAT csv", "".join(f"{i},t,0,{i},0\n" for i in ids).encode())

    def write(self, ids: Sequence[int] = (1, 2, 3), digest: str = "1") -> dict[str, Part]:
        with closing(self.part()) as part:
            self.copy(part, ids)
            return part.finish([Part(sink="public.ids", rows=len(ids), message={"rows": len(ids), "digest": digest})])

    def ids(self) -> list[int]:
        return self.database.ids(self.ticket)

    def refused(self) -> list[str]:
        return self.database.fenced_writes(self.ticket)


@pytest.fixture
def attempt(database: Database, name: str) -> Attempt:
    parse, sink = Json(columns=COLUMNS), PostgresTable(table="public.ids", columns=COLUMNS)
    pipeline = Pipeline(name=name, source=KafkaSource(topics="t"), parse=parse, sinks=sink)
    return Attempt(database, database.attempt(pipeline, {("t", 0): (0, 5)}))


@pytest.mark.fault("F5")
def test_a_second_try_of_a_part_answers_with_the_first_and_keeps_no_row_of_its_own(
    attempt: Attempt, recovery: Recovery
) -> None:
    first = attempt.write()

    recovery.last_fault()
    second = attempt.write()

    assert second == first
    assert attempt.ids() == [1, 2, 3]
    recovery.took()


@pytest.mark.parametrize(("ids", "digest"), [([1, 2], "1"), ([1, 2, 3], "2")], ids=["rows", "digest"])
def test_a_second_try_that_gives_other_rows_is_refused(attempt: Attempt, ids: list[int], digest: str) -> None:
    attempt.write()

    with pytest.raises(NonDeterministicPartError):
        attempt.write(ids, digest)

    assert attempt.ids() == [1, 2, 3]


@pytest.mark.parametrize("mark", ["sealed_at", "fenced_at"])
def test_a_part_that_waits_for_the_lock_of_a_seal_or_fence_inserts_nothing(attempt: Attempt, mark: str) -> None:
    this = (attempt.ticket.attempt_id,)
    with (
        ThreadPoolExecutor(1) as pool,
        closing(psycopg2.connect(attempt.database.dsn)) as seal,
        seal.cursor() as cursor,
    ):
        cursor.execute("SELECT 1 FROM epochline.attempt WHERE attempt_id = %s FOR UPDATE", this)
        writing = pool.submit(attempt.write)
        attempt.database.wait_for_session(attempt.ticket, "wait_event_type = 'Lock'")
        cursor.execute(f"UPDATE epochline.attempt SET {mark} = now() WHERE attempt_id = %s", this)
        seal.commit()
        with pytest.raises(EpochFencedError):
            writing.result(20)

    assert attempt.ids() == []
    assert attempt.database.parts(attempt.ticket) == {}
    assert attempt.refused() == ["insert parts"]


@pytest.mark.parametrize("by", ["its session was ended", "its table was dropped"])
def test_a_writer_that_a_fence_stopped_records_the_refused_write(attempt: Attempt, by: str) -> None:
    part = attempt.part()
    attempt.database.fence(attempt.ticket)
    if by == "its session was ended":
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        attempt.database.query(ended, attempt.ticket.application_name)
    else:
        attempt.database.query(f"DROP TABLE epochline_staging.{attempt.ticket.table('public.ids').table}")

    with pytest.raises(EpochFencedError), closing(part):
        attempt.copy(part, [1])

    assert len(attempt.refused()) == 1


@pytest.mark.fault("F5")
def test_two_concurrent_tries_of_a_part_give_one_set_of_rows(attempt: Attempt) -> None:
    with ThreadPoolExecutor(4) as pool:
        tries = [pool.submit(attempt.write) for _ in range(4)]
        answers = [one.result(20) for one in tries]

    assert answers == answers[:1] * 4
    assert attempt.ids() == [1, 2, 3]
