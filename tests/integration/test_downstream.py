"""Downstream of committed epochs: announced until acknowledged, and taken once by each consumer in spite of kills."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from epochline.coordinator import announce
from epochline.downstream import take_epochs
from epochline.errors import DownstreamError
from epochline.operations import Request
from epochline.ports import AnnouncedReceipt
from epochline.postgres.ledger import receipts
from tests.contract.worlds import World, postgres_world, run
from tests.databases import query
from tests.integration.logins import AsSuperuser, Login, user

_runs = itertools.count(1)
INCLUDE = Path(__file__).parents[2] / "include"

Session = psycopg2.extensions.connection

KILLED = """
import os
import psycopg2
from epochline.downstream import take_epochs

connection = psycopg2.connect(os.environ["DSN"])
for epoch_id in take_epochs(connection, "daily", "orders", "orders"):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO daily SELECT %s, count(*) FROM orders WHERE _epoch = %s", (epoch_id, epoch_id))
    if os.environ["AT"] == "after":
        connection.commit()
    os._exit(137)
"""


@dataclass
class Downstream:
    """A pipeline, the session of a consumer of its epochs, and the consumer's table ``daily``."""

    dsn: str
    world: World
    session: Session

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return query(self.dsn, statement)

    def commit(self, epochs: int) -> None:
        for _ in range(epochs):
            self.world.kafka.produce("orders", 0, 3)
            self.world.to_committed(f"run-{next(_runs)}")

    def done(self) -> list[int]:
        return [epoch for (epoch,) in self.query("SELECT epoch_id FROM daily ORDER BY epoch_id")]


@pytest.fixture
def it(postgres_dsn: str) -> Iterator[Downstream]:
    query(postgres_dsn, "CREATE TABLE daily (epoch_id bigint, rows bigint)")
    with closing(psycopg2.connect(postgres_dsn)) as session:
        yield Downstream(postgres_dsn, postgres_world(postgres_dsn), session)


def epochs_for(session: Session, consumer: str = "daily") -> Iterator[int]:
    return take_epochs(session, consumer, "orders", "orders")


def work(session: Session, epoch_id: int) -> None:
    with session.cursor() as cursor:
        cursor.execute("INSERT INTO daily SELECT %s, count(*) FROM orders WHERE _epoch = %s", (epoch_id, epoch_id))


def take(session: Session, consumer: str = "daily") -> list[int]:
    """What a consumer does: a row per epoch, in the transaction of its cursor."""
    taken = []
    for epoch_id in epochs_for(session, consumer):
        work(session, epoch_id)
        taken.append(epoch_id)
    return taken


# Taking


def test_each_epoch_that_the_sink_shows_is_taken_once_and_in_order_together_with_its_work(it: Downstream) -> None:
    it.commit(3)
    assert take(it.session) == [1, 2, 3]
    assert take(it.session) == []
    it.commit(1)
    assert take(it.session) == [4]
    it.world.kafka.produce("orders", 0, 1)
    it.world.to_sealed("not shown yet")
    assert take(it.session) == []

    assert it.session.get_transaction_status() == TRANSACTION_STATUS_IDLE
    rows = it.query("SELECT epoch_id, rows FROM daily ORDER BY epoch_id")
    assert rows == it.query("SELECT epoch_id, rows FROM epochline.receipts ORDER BY epoch_id")
    assert it.query("SELECT epoch_id FROM epochline.consumer_cursor ORDER BY taken_at") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(("at", "left"), [("before", []), ("after", [1])])
def test_a_consumer_killed_around_its_commit_takes_each_epoch_once(it: Downstream, at: str, left: list[int]) -> None:
    """Work and cursor are there both or not at all."""
    it.commit(2)
    environment = {**os.environ, "PYTHONPATH": str(INCLUDE), "DSN": it.dsn, "AT": at}
    assert subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False, timeout=60).returncode == 137
    assert it.done() == left

    assert take(it.session) == [epoch for epoch in (1, 2) if epoch not in left]

    assert it.done() == [1, 2]


def test_two_consumers_of_one_name_share_the_epochs_and_two_names_take_them_all(it: Downstream) -> None:
    it.commit(6)
    together = threading.Barrier(3)

    def consume(_: int) -> list[int]:
        with closing(psycopg2.connect(it.dsn)) as own:
            together.wait(10)
            return take(own)

    with ThreadPoolExecutor() as threads:
        taken = list(threads.map(consume, range(3)))

    assert sorted(itertools.chain(*taken)) == it.done() == [1, 2, 3, 4, 5, 6]
    assert all(one == sorted(one) for one in taken)
    assert take(it.session, "weekly") == [1, 2, 3, 4, 5, 6]


def test_a_consumer_waits_for_another_of_its_name_that_has_an_epoch_in_hand(it: Downstream) -> None:
    it.commit(2)
    other = epochs_for(it.session)
    assert next(other) == 1
    with closing(psycopg2.connect(it.dsn, options="-c lock_timeout=200")) as late:
        with pytest.raises(errors.LockNotAvailable):
            take(late)

        it.session.close()  # its server ends the transaction, soon
        with late, late.cursor() as cursor:
            cursor.execute("SET lock_timeout = '60s'")

        assert take(late) == [1, 2]
    assert it.done() == [1, 2]


def test_an_epoch_that_was_undone_before_it_was_taken_is_left_out(it: Downstream) -> None:
    """C12: its rows are gone; what read the range again is taken instead."""
    for what, epochs in (("savepoint", 1), ("restore", 2)):
        it.commit(epochs)
        it.world.act(what, Request(actor="ada", reason="to see"), name="here")
    assert it.query("SELECT epoch_id FROM epochline.epochs WHERE undone_by IS NOT NULL ORDER BY 1") == [(2,), (3,)]
    it.commit(1)

    assert take(it.session) == [1, 5]


def test_an_error_or_a_break_gives_the_epoch_in_hand_back(it: Downstream) -> None:
    it.commit(2)

    def fails_at_the_second() -> None:
        for epoch_id in epochs_for(it.session):
            work(it.session, epoch_id // (2 - epoch_id))

    with pytest.raises(ZeroDivisionError):
        fails_at_the_second()
    assert it.session.get_transaction_status() == TRANSACTION_STATUS_IDLE
    assert it.done() == [1]
    for epoch_id in epochs_for(it.session):
        work(it.session, epoch_id)
        break
    assert it.session.get_transaction_status() == TRANSACTION_STATUS_IDLE

    assert take(it.session) == [2]
    assert it.done() == [1, 2]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_block_that_ends_the_transaction_is_refused(it: Downstream, ends: str) -> None:
    it.commit(2)
    epochs = epochs_for(it.session)
    next(epochs)
    getattr(it.session, ends)()

    said = r"ended the transaction that took epoch 1\..* remove commit\(\) and rollback\(\)"
    with pytest.raises(DownstreamError, match=said):
        next(epochs)


def test_a_failed_statement_that_is_passed_over_takes_no_epoch(it: Downstream) -> None:
    """COMMIT of a failed transaction is a ROLLBACK, and says so to nobody."""
    it.commit(1)
    epochs = epochs_for(it.session)
    next(epochs)
    with pytest.raises(errors.UndefinedTable), it.session.cursor() as cursor:
        cursor.execute("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(errors.InFailedSqlTransaction):
        next(epochs)

    assert it.query("SELECT count(*) FROM epochline.consumer_cursor") == [(0,)]
    assert take(it.session) == [1]


def test_a_connection_that_cannot_keep_work_and_cursor_together_is_refused(it: Downstream) -> None:
    it.session.autocommit = True
    with pytest.raises(DownstreamError, match="Set autocommit to False"):
        epochs_for(it.session)
    it.session.autocommit = False
    with it.session.cursor() as cursor:
        cursor.execute("SELECT 1")
        with pytest.raises(DownstreamError, match="Commit it or roll it back first"):
            epochs_for(it.session)


def test_a_login_with_the_grants_of_the_documents_takes_epochs_and_changes_nothing_else(
    it: Downstream, login: Login, as_superuser: AsSuperuser
) -> None:
    """SEC-6: the reader's role and two rights on the cursor (docs/downstream.md)."""
    it.commit(2)
    dsn = login("epochline_reader")
    page = (INCLUDE.parent / "docs" / "downstream.md").read_text()
    grants = [line for line in page.splitlines() if line.startswith("GRANT ")]
    as_superuser(*(grant.replace("consumer_login", user(dsn)) for grant in grants))

    with closing(psycopg2.connect(dsn)) as own:
        assert list(epochs_for(own)) == [1, 2]
        for statement in (
            "UPDATE epochline.consumer_cursor SET epoch_id = 9",
            "DELETE FROM epochline.consumer_cursor",
            "UPDATE epochline.receipt SET acknowledged_at = now()",
        ):
            with pytest.raises(errors.InsufficientPrivilege), own.cursor() as cursor:
                cursor.execute(statement)
            own.rollback()


# Announcing


class Airflow:
    """Keeps what arrives, as Airflow's metadata does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[AnnouncedReceipt] = []

    def task(self, who: str) -> list[int]:
        announced = announce(self._world.ledger, "orders", run(who), acknowledged=self._arrived)
        self.events += announced
        return [one.epoch_id for one in announced]

    def _arrived(self, unacknowledged: Sequence[AnnouncedReceipt]) -> Sequence[AnnouncedReceipt]:
        return [one for one in unacknowledged if one in self.events]


@pytest.fixture
def airflow(it: Downstream) -> Airflow:
    return Airflow(it.world)


def test_an_epoch_is_announced_with_its_rows_and_the_offsets_that_it_took(it: Downstream, airflow: Airflow) -> None:
    it.world.to_committed("of both partitions")
    it.commit(1)
    airflow.task("first")

    first, second = airflow.events

    assert (first.sink, first.rows) == ("orders", 15)
    assert first.offsets == {"orders": {"0": [0, 10], "1": [0, 5]}}
    assert (second.epoch_id, second.rows) == (2, 3)
    assert second.offsets["orders"]["0"] == [10, 13]
    unacknowledged = "SELECT count(*) FROM epochline.receipt WHERE announced_by = 'first' AND acknowledged_at IS NULL"
    assert it.query(unacknowledged) == [(2,)]


def test_unannounced_epochs_are_announced_the_oldest_first_and_so_many_by_each_task(
    it: Downstream, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of before this version, and those that were committed at a terminal."""
    monkeypatch.setattr(receipts, "ANNOUNCED_AT_ONCE", 2)
    it.commit(5)

    assert [airflow.task(f"run-{at}") for at in range(4)] == [[1, 2], [3, 4], [5], []]
