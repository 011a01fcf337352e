"""Behind a real PgBouncer in transaction mode: settings hold in every transaction, and a fence ends the right session."""

import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from epochline import Json, PostgresTable
from epochline.audit.session import open_session
from epochline.cli.database import execute, session
from epochline.coordinator import abort
from epochline.errors import ConfigurationError, EpochFencedError, LedgerError
from epochline.postgres.ledger.job_session import transaction
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.spark.transaction import PartTransaction
from tests.contract.worlds import orders
from tests.databases import query
from tests.integration.guarantee import broken
from tests.integration.in_process import InProcess, over_records
from tests.integration.pooler import SERVERS, installed, pooled
from tests.reading import source_batch

pytestmark = pytest.mark.skipif(installed() is None, reason="no PgBouncer on this machine (Debian: pgbouncer)")

COLUMNS = {"id": "bigint"}
OF_THE_LEDGER = {
    "lock_timeout": "7s", "statement_timeout": "15min", "idle_in_transaction_session_timeout": "10s", "TimeZone": "UTC",
    "synchronous_commit": "on", "client_connection_check_interval": "2s", "transaction_isolation": "read committed",
}  # fmt: skip
OF_A_WRITER = {"search_path": "pg_catalog", "synchronous_commit": "on", "client_encoding": "UTF8"}


@pytest.fixture
def through(postgres_dsn: str, tmp_path: Path) -> Iterator[str]:
    with pooled(postgres_dsn, tmp_path) as dsn:
        yield dsn


def shown(cursor: Any, *names: str) -> dict[str, str]:
    found = {}
    for name in names:
        cursor.execute(f"SHOW {name}")
        found[name] = cursor.fetchone()[0]
    return found


def everywhere(dsn: str) -> list[dict[str, str]]:
    """What another client of the pool meets, on each session of the server that it may get."""
    with ExitStack() as open_until_the_end:
        clients = [open_until_the_end.enter_context(closing(psycopg2.connect(dsn))) for _ in range(SERVERS)]
        names = ("lock_timeout", "statement_timeout", "search_path", "TimeZone")
        return [shown(client.cursor(), *names) for client in clients]


def test_our_settings_hold_in_each_transaction_and_stay_behind_in_no_session(through: str) -> None:
    """INV-5: the pooler takes no start-up parameter, and what was set for a session would be somebody's."""
    with pytest.raises(psycopg2.OperationalError, match="unsupported startup parameter"):
        psycopg2.connect(through, options="-c lock_timeout=1000")
    before = everywhere(through)
    ledger = PostgresLedger(through, lock_timeout=7)

    for _ in range(2 * SERVERS):
        with ledger.connection() as connection:
            assert shown(connection.cursor(), *OF_THE_LEDGER) == OF_THE_LEDGER
        with transaction(through, "a writer") as writer:
            assert shown(writer.cursor(), *OF_A_WRITER) == OF_A_WRITER

    assert everywhere(through) == before


def test_commands_read_through_the_pooler_and_cannot_write(through: str) -> None:
    with session(through) as opened:
        assert execute(opened, "SHOW TimeZone")[1] == [("UTC",)]
        with pytest.raises(LedgerError, match="read-only"):
            execute(opened, "CREATE TABLE public.anything ()")
    with session(through, write=True) as opened:
        execute(opened, "CREATE TABLE public.anything ()")


@pytest.fixture
def job(through: str) -> InProcess:
    def read(one: Any) -> Iterator[pa.RecordBatch]:
        for first in range(one.range.start, one.range.until, 100):
            offsets = range(first, min(first + 100, one.range.until))
            yield source_batch(one.tp, offsets, [json.dumps({"id": at}).encode() for at in offsets])

    newest = PostgresTable(table="newest", columns=COLUMNS, mode="upsert", key="id", before_images=2)
    sinks = [PostgresTable(table="t", columns=COLUMNS), newest]
    made = over_records(through, orders(parse=Json(columns=COLUMNS), sinks=sinks), [])
    made.read = read
    return made


def test_epochs_through_the_pooler_are_exact_while_others_use_its_sessions(job: InProcess, through: str) -> None:
    """G1, INV-1 to INV-5: each transaction of an epoch may meet another session of the server."""
    done = threading.Event()

    def others() -> None:
        with closing(psycopg2.connect(through)) as client:
            client.autocommit = True
            while not done.is_set():
                client.cursor().execute("SELECT count(*) FROM pg_class")

    with ThreadPoolExecutor(1) as pool:
        external = pool.submit(others)
        try:
            for records in (250, 1, 999):
                job.source.produce("orders", 0, records)
                job.epoch()
        finally:
            done.set()
    external.result()

    for table in ("t", "newest"):
        assert job.sql(f"SELECT count(*), count(DISTINCT id), min(id), max(id) FROM {table}") == [(1250, 1250, 0, 1249)]
        # An upsert writes in a savepoint, whose rows have another id than the transaction's (ADR 0057).
        assert [said for said in broken(job.sql, "orders", table) if table == "t" or "savepoint" not in said] == []


def test_a_fence_ends_the_session_that_writes_and_no_session_that_wrote(job: InProcess, postgres_dsn: str) -> None:
    """INV-4, F7: what ended its transaction left a session of the pool that may serve anybody."""
    job.source.produce("orders", 0, 10)
    planned, run = job.planned()
    ticket = job.attempt(planned, run)
    table = ticket.table("t")
    writing = PartTransaction(ticket, job.dsn, str(uuid.uuid4()), 1)
    writing.copy(table, "FORMAT csv", b"1,orders,0,1,0\n")
    wrote = PartTransaction(ticket, job.dsn, str(uuid.uuid4()), 0)
    wrote.copy(table, "FORMAT csv", b"0,orders,0,0,0\n")
    wrote.finish([])
    named = "SELECT pid, state FROM pg_stat_activity WHERE application_name = %s ORDER BY state"
    ((left, idle), (writes, working)) = query(postgres_dsn, named, ticket.application_name)
    assert (idle, working) == ("idle", "idle in transaction")

    abort(PostgresLedger(postgres_dsn), "orders", 1, run, reason="a test", by_operator=True)

    assert job.sql("SELECT backend_pid FROM epochline.fenced_write") == [(writes,)]
    assert job.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", left) == [(1,)]
    with pytest.raises(EpochFencedError):
        writing.copy(table, "FORMAT csv", b"2,orders,0,2,0\n")
    for part in (writing, wrote):
        part.close()


def test_an_audit_that_is_led_from_session_to_session_is_refused(through: str) -> None:
    """It keeps what it read in temporary tables; without them it would compare with nothing."""
    with open_session(through) as connection:
        with connection.snapshot():
            pass
        with closing(psycopg2.connect(through)) as other:
            other.cursor().execute("SELECT 1")  # takes the session that the audit had
            with pytest.raises(ConfigurationError, match="a pooler in transaction mode"), connection.snapshot():
                pass
