"""The janitor over both ledgers: it drops unneeded staging, ends abandoned epochs and does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg2
import pytest

from epochline.coordinator import begin
from epochline.errors import EpochFencedError
from epochline.operations import tidy
from epochline.protocol.epoch import EpochState
from tests.contract.worlds import World, fake_world, postgres_world, rows_of, run, seen_in

LONG_AGO = timedelta(hours=-2)


@pytest.fixture(params=["fake", pytest.param("postgres", marks=pytest.mark.server)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        return fake_world()
    return postgres_world(request.getfixturevalue("postgres_dsn"))


def test_a_planned_epoch_that_nobody_stages_is_ended_and_its_range_is_free(world: World) -> None:
    """I6."""
    world.plan(lease=LONG_AGO)

    tidied = tidy(world.ledger, run("janitor"))

    assert list(tidied.ended) == ["epoch 1 of orders"]
    assert world.epoch(1).state is EpochState.ABORTED
    assert "ended by run janitor" in (world.epoch(1).error or "")
    assert [str(one) for one in world.to_committed("run-2").ranges] == ["orders-0[0, 10)", "orders-1[0, 5)"]


def test_an_attempt_of_an_ended_epoch_is_fenced(world: World) -> None:
    """INV-4: its writer may still be alive somewhere."""
    planned = world.plan(lease=LONG_AGO)
    ticket = begin(world.ledger, "orders", 1, run(), lease=LONG_AGO)
    assert ticket is not None

    assert list(tidy(world.ledger, run("janitor")).ended) == ["epoch 1 of orders"]

    one = planned.ranges[0]
    assert not world.writer.part(ticket, 0, {"orders": rows_of(one)}, {("orders", 0): seen_in(one)})
    with pytest.raises(EpochFencedError):
        world.seal(ticket)
    assert world.left_over() == 0


def test_an_epoch_whose_lease_only_just_ended_is_left_to_its_run(world: World) -> None:
    """Airflow may be about to try the task again."""
    world.plan(lease=timedelta(minutes=-5))

    assert tidy(world.ledger, run("janitor")).ended == ()
    assert world.epoch(1).state is EpochState.PLANNED


def test_what_is_staged_or_sealed_is_left_alone(world: World) -> None:
    """INV-6."""
    world.to_sealed()

    tidied = tidy(world.ledger, run("janitor"))

    assert (tidied.swept, tidied.ended, tidied.unexplained) == (0, (), ())
    world.commit(1)
    assert len(world.visible()) == 15


def test_staging_that_a_crash_between_fence_and_drop_left_is_dropped(world: World) -> None:
    world.plan()
    ticket = world.begin(1)
    assert ticket is not None
    with world.ledger.transaction() as tx:
        attempt = tx.attempts.live(tx.epochs.lock("orders", 1))
        assert attempt is not None
        tx.attempts.fence(attempt, "a test says so")

    assert tidy(world.ledger, run("janitor")).swept == 1

    assert tidy(world.ledger, run("janitor")).swept == 0
    with pytest.raises(EpochFencedError):
        world.seal(ticket)


def test_a_table_that_no_attempt_explains_is_reported_and_left(postgres_dsn: str) -> None:
    world = postgres_world(postgres_dsn)
    world.to_sealed()
    connection = psycopg2.connect(postgres_dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE epochline_staging.somebodys (id int)")

    first, second = (tidy(world.ledger, run("janitor")) for _ in range(2))

    assert first.unexplained == second.unexplained == ("somebodys",)
    assert "epochline_staging.somebodys belongs to no attempt" in first.lines()[1]
    connection.close()
