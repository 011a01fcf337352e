"""One suite over both ledgers: the fake in memory and PostgreSQL keep the same promises."""

import pytest

from tests.contract.clocks import Clock, clock_of_fake, clock_of_postgres
from tests.contract.worlds import World, fake_world, postgres_world
from tests.in_memory.ledger import FakeLedger


@pytest.fixture(params=["fake", pytest.param("postgres", marks=pytest.mark.server)])
def world(request: pytest.FixtureRequest) -> World:
    return fake_world() if request.param == "fake" else postgres_world(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
def clock(world: World, request: pytest.FixtureRequest) -> Clock:
    if isinstance(world.ledger, FakeLedger):
        return clock_of_fake(world, world.ledger)
    return clock_of_postgres(world, request.getfixturevalue("postgres_dsn"))
