"""The janitor over both ledgers: it drops unneeded staging, ends abandoned epochs and does nothing else."""

from datetime import timedelta

import pytest

from epochline.coordinator import begin
from epochline.errors import EpochFencedError
from epochline.operations import tidy
from epochline.protocol.epoch import EpochState
from tests.contract.worlds import World, postgres_world, ranges, run
from tests.databases import query

LONG_AGO = timedelta(hours=-2)


def at_once(_seconds: float) -> None:
    """No time passes in these tests."""


def test_a_planned_epoch_that_nobody_stages_is_ended_and_its_range_is_free(world: World) -> None:
    """I6."""
    world.plan(lease=LONG_AGO)

    tidied = tidy(world.ledger, run("janitor"), sleep=at_once)

    assert list(tidied.ended) == ["epoch 1 of orders"]
    assert world.epoch(1).state is EpochState.ABORTED
    assert "ended by run janitor" in (world.epoch(1).error or "")
    assert ranges(world.to_committed("run-2")) == ["orders-0[0, 10)", "orders-1[0, 5)"]


def test_an_attempt_of_an_ended_epoch_is_fenced(world: World) -> None:
    """INV-4: its writer may still be alive somewhere."""
    planned = world.plan(lease=LONG_AGO)
    ticket = begin(world.ledger, "orders", 1, run(), lease=LONG_AGO)
    assert ticket is not None

    assert list(tidy(world.ledger, run("janitor"), sleep=at_once).ended) == ["epoch 1 of orders"]

    assert not world.write(ticket, planned.ranges[0])
    with pytest.raises(EpochFencedError):
        world.seal(ticket)
    assert world.left_over() == 0


def test_an_epoch_whose_lease_only_just_ended_is_left_to_its_run(world: World) -> None:
    """Airflow may be about to try the task again."""
    world.plan(lease=timedelta(minutes=-5))

    assert tidy(world.ledger, run("janitor"), sleep=at_once).ended == ()
    assert world.epoch(1).state is EpochState.PLANNED


def test_what_is_staged_or_sealed_is_left_alone(world: World) -> None:
    """INV-6."""
    world.to_sealed()

    tidied = tidy(world.ledger, run("janitor"), sleep=at_once)

    assert (tidied.swept, tidied.ended, tidied.unexplained) == (0, (), ())
    world.commit(1)
    assert len(world.visible()) == 15


def test_staging_that_a_crash_between_fence_and_drop_left_is_dropped(world: World) -> None:
    _, ticket = world.to_begun()
    attempt = world.live()
    with world.ledger.transaction() as tx:
        tx.attempts.fence(attempt, "a test says so")

    assert [tidy(world.ledger, run("janitor"), sleep=at_once).swept for _ in range(2)] == [1, 0]
    with pytest.raises(EpochFencedError):
        world.seal(ticket)


def test_a_table_that_no_attempt_explains_is_reported_and_left(postgres_dsn: str) -> None:
    world = postgres_world(postgres_dsn)
    world.to_sealed()
    query(postgres_dsn, "CREATE TABLE epochline_staging.somebodys (id int)")

    first, second = (tidy(world.ledger, run("janitor"), sleep=at_once) for _ in range(2))

    assert first.unexplained == second.unexplained == ("somebodys",)
    assert "epochline_staging.somebodys belongs to no attempt" in first.lines()[1]
