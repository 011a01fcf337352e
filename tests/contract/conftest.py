"""One suite over both ledgers: the fake in memory and PostgreSQL keep the same promises."""

import pytest

from tests.contract.worlds import World, fake_world, postgres_world


@pytest.fixture(params=["fake", pytest.param("postgres", marks=pytest.mark.server)])
def world(request: pytest.FixtureRequest) -> World:
    return fake_world() if request.param == "fake" else postgres_world(request.getfixturevalue("postgres_dsn"))
