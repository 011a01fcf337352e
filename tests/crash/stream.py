"""A pipeline that is published: records with keys from a topic to a table and to another topic, which is watched."""

import itertools
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from epochline import Json, KafkaTopic, PostgresTable
from epochline.coordinator import Plan
from epochline.failpoints import NAMED
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.crash.watching import Keyed, Watchers
from tests.integration.sinks_world import SinksPipeline, new_world
from tests.processes.client import Forked

KEYS = 7


class Stream:
    """Epochs that are committed here and published here or by processes that can be stopped."""

    def __init__(
        self, server: Server, recovery: Recovery, *, timeout: float = 60, bootstrap: str | None = None
    ) -> None:
        self.recovery = recovery
        out = KafkaTopic(
            topic="out", value=Json(columns={"n": "bigint"}), key="k", columns={"k": "text"},
            transaction_timeout=timedelta(seconds=timeout),
        )  # fmt: skip
        columns = {"k": "text", "n": "bigint"}
        self.world: SinksPipeline = new_world(
            server.new_database(), bootstrap or server.kafka.bootstrap_servers, out,
            PostgresTable(table="lines", columns=columns), table=False, parse=Json(columns=columns),
        )  # fmt: skip
        self.watchers = Watchers(self.world.bootstrap, self.world.topics[0])
        self._numbers = itertools.count()
        self._produced: dict[str, list[str]] = defaultdict(list)
        self.processes: list[Forked] = []

    @property
    def transactional_id(self) -> str:
        """Of the producer that publishes."""
        return self.world.it.pipeline.topics[0].transactional_id(self.world.it.pipeline.name)

    def seal(self, records: int = 60) -> Plan:
        """Produce some records and seal them as an epoch."""
        numbers = [next(self._numbers) for _ in range(records)]
        keys = [f"k{number % KEYS}" for number in numbers]
        values = [f'{{"k": "{key}", "n": {number}}}' for key, number in zip(keys, numbers, strict=True)]
        self.world.produce(*values, keys=keys)
        for key, number in zip(keys, numbers, strict=True):
            self._produced[key].append(f'{{"n":{number}}}')
        planned, _, _ = self.world.it.sealed()
        return planned

    def commit(self, records: int = 60) -> None:
        self.world.it.commit(self.seal(records))

    def publish(self) -> list[int]:
        return [one.epoch_id for one in self.world.it.publish()]

    def publisher(self, failpoint: str, **environment: str) -> Forked:
        at = failpoint if "@" in failpoint else f"{failpoint}@1"
        process = self.world.in_a_process("publish", **{NAMED: f"{at}:stop"}, **environment)
        self.processes.append(process)
        return process.until_stopped()

    def go_on(self, publisher: Forked) -> None:
        """Wake a publisher that has stopped; this is the last fault of a test, unless another one follows."""
        publisher.send_signal(signal.SIGCONT)
        self.recovery.last_fault()

    def epochs(self) -> dict[int, list[Keyed]]:
        """By epoch what is to be sent, as the table says, once it was compared with what was produced."""
        found: dict[int, list[Keyed]] = defaultdict(list)
        by_key: dict[str, list[str]] = defaultdict(list)
        asked = "SELECT _epoch, k, n FROM lines ORDER BY _epoch, _partition, _offset"
        for epoch, key, number in self.world.it.sql(asked):
            found[epoch].append((key, f'{{"n":{number}}}'))
            by_key[key].append(f'{{"n":{number}}}')
        assert by_key == self._produced
        return found

    def recover(self) -> int:
        """Publish until nothing is due, as the next runs do, and compare; how many records were aborted on the way.

        The transactions of these runs may take a minute, whatever the time-out of the one that the test broke.
        """
        changed = [
            one.model_copy(update={"transaction_timeout": timedelta(minutes=1)}) if isinstance(one, KafkaTopic) else one
            for one in self.world.it.pipeline.sinks
        ]
        self.world.it.pipeline = self.world.it.pipeline.model_copy(update={"sinks": tuple(changed)})
        self.publish()
        self.recovery.took()
        assert self.world.it.sql("SELECT DISTINCT state FROM epochline.receipts") == [("SHOWN",)]
        assert self.world.outbox() == 0
        return self.watchers.check_all(self.epochs())

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.watchers.end()


def assert_failed(publisher: Forked, said: str) -> None:
    assert publisher.wait() != 0
    assert said in publisher.written("err"), publisher.written("err")


NewStream = Callable[..., Stream]


@pytest.fixture
def new_stream(server: Server, recovery: Recovery) -> Iterator[NewStream]:
    """Makes a pipeline whose topic is watched until the test ends, with one epoch committed and not published."""
    with ExitStack() as stack:

        def make(**options: Any) -> Stream:
            stream = Stream(server, recovery, **options)
            stack.callback(stream.end)
            stream.commit()
            return stream

        yield make


@pytest.fixture
def stream(new_stream: NewStream) -> Stream:
    return new_stream()
