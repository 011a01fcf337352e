"""Servers of the suite's own, pipelines on them, and threads that end with their test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash.cases import clean_database, kafka_now, new_case, shared, steps
from tests.crash.fired import fired, judged_last
from tests.crash.line import Line
from tests.crash.proxy import Proxy
from tests.crash.servers import Server
from tests.crash.stream import new_stream, stream

__all__ = ["clean_database", "fired", "kafka_now", "new_case", "new_stream", "shared", "steps", "stream"]


NewLine = Callable[..., Line]
"""Makes a pipeline; the options are those of `Line`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    judged_last(config, items)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """PostgreSQL and a broker that tests of this folder kill, stop and starve."""
    with Server.running() as one:
        yield one


@pytest.fixture
def new_line(server: Server) -> NewLine:
    """Makes a pipeline with a database, a topic and two targets of its own."""

    def make(**options: Any) -> Line:
        dsn = options.pop("dsn", None) or server.new_database()
        return Line(dsn, server.kafka.bootstrap_servers, **options)

    return make


@pytest.fixture
def line(new_line: NewLine) -> Line:
    """A pipeline with some records to read."""
    one = new_line()
    one.some()
    return one


@pytest.fixture
def proxied(server: Server) -> Iterator[tuple[Line, Proxy]]:
    """A pipeline whose use cases and writer reach PostgreSQL through a proxy."""
    dsn = server.new_database()
    with Proxy("127.0.0.1", server.postgres.port) as proxy:
        through = dsn.replace(f":{server.postgres.port}/", f":{proxy.port}/")
        line = Line(dsn, server.kafka.bootstrap_servers, via=through)
        line.some()
        yield line, proxy


class Background:
    """A call in a thread; its result or error is asked for at the end."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self.error: BaseException | None = None

        def work() -> None:
            try:
                self._outcome.append(call())
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, seconds: float = 90) -> Any:
        """What the call gave; raises what it raised."""
        self.join(seconds)
        if self.error is not None:
            raise self.error
        return self._outcome[0]

    def join(self, seconds: float = 90) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"still running after {seconds:.0f} s"


InBackground = Callable[[Callable[[], Any]], Background]
"""Starts a call in a thread."""


@pytest.fixture
def background() -> InBackground:
    return Background
