"""Servers of the suite's own, and pipelines on them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash.cases import clean_database, kafka_now, new_case, shared
from tests.crash.fired import fired, pytest_collection_modifyitems
from tests.crash.line import Line
from tests.crash.nodes import Nodes
from tests.crash.proxy import Proxy
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.crash.stream import new_stream, stream

__all__ = [
    "clean_database", "fired", "kafka_now", "new_case", "new_stream", "pytest_collection_modifyitems", "shared", "stream",
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Three nodes of a module's own, with the settings that it names."""
    settings = getattr(request.module, "NODE_SETTINGS", None)
    with Nodes.running(settings, apart=getattr(request.module, "APART", False)) as three:
        yield three


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    """Three nodes that run, with every replica in sync, whatever the last test has left."""
    cluster.mend()
    return cluster


NewLine = Callable[..., Line]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """PostgreSQL and a broker that tests of this folder kill, stop and starve."""
    with Server.running() as one:
        yield one


@pytest.fixture
def new_line(server: Server, recovery: Recovery) -> NewLine:
    def make(**options: Any) -> Line:
        dsn = options.pop("dsn", None) or server.new_database()
        line = Line(dsn, options.pop("bootstrap", server.kafka.bootstrap_servers), **options)
        line.recovery = recovery
        return line

    return make


@pytest.fixture
def line(new_line: NewLine) -> Line:
    one = new_line()
    one.some()
    return one


@pytest.fixture
def scripted(new_line: NewLine) -> Line:
    """A pipeline whose records say what its parse does; small batches, so that a part is copied in many steps."""
    return new_line(
        partitions=4, parse="scripted:parse", record={"value": "text"}, bad_records="fail",
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    )  # fmt: skip


@pytest.fixture
def sealed(line: Line) -> Line:
    line.to_sealed("run-1")
    return line


@pytest.fixture
def proxied(server: Server, new_line: NewLine) -> Iterator[tuple[Line, Proxy]]:
    dsn = server.new_database()
    with Proxy("127.0.0.1", server.postgres.port) as proxy:
        line = new_line(dsn=dsn, via=dsn.replace(f":{server.postgres.port}/", f":{proxy.port}/"))
        line.some()
        yield line, proxy


@pytest.fixture
def to_kafka(server: Server) -> Iterator[Proxy]:
    yield server.to_kafka
    server.to_kafka.heal()
