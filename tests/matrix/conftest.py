"""The servers of a row of the matrix: those of the embedded stack, but for one older server that options name."""

from collections.abc import Callable, Iterator

import pytest

from epochline.local.jars import JarSet
from epochline.local.stack import Stack
from epochline.postgres.ledger.migrate import upgrade
from tests.databases import as_admin
from tests.matrix import servers


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the older server."""
    parser.addoption("--postgresql", metavar="VERSION", help="a major version in place of the stack's PostgreSQL")
    parser.addoption("--kafka", metavar="VERSION", help="a version in place of the stack's Kafka")


@pytest.fixture
def empty_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The libpq URL of a database without a ledger."""
    if older := request.config.getoption("--postgresql"):
        with servers.postgres(older) as url:
            as_admin(f"{url}postgres", "CREATE DATABASE epochline")
            yield f"{url}epochline"
        return
    stack: Stack = request.getfixturevalue("stack")
    stack.postgres.make_database("matrix")
    yield stack.postgres.dsn("matrix")


@pytest.fixture
def database(empty_database: str) -> str:
    """The same after `epochline migrate`."""
    upgrade(empty_database)
    return empty_database


@pytest.fixture
def brokers(request: pytest.FixtureRequest, record_property: Callable[[str, str], None]) -> Iterator[str]:
    """The addresses of Kafka, whose version is noted."""
    if older := request.config.getoption("--kafka"):
        jars = JarSet(servers.IVY / f"kafka-{older}.xml").expected
        name = next(jar for jar in jars if jar.startswith("kafka_2.13-"))
        record_property("Kafka", name.removeprefix("kafka_2.13-").removesuffix(".jar"))
        with servers.kafka(older) as address:
            yield address
        return
    record_property("Kafka", request.getfixturevalue("stack").kafka.version())
    yield request.getfixturevalue("kafka_bootstrap")
