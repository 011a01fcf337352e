"""A pipeline that is published: records with keys from a topic to a table and to another topic, which is watched."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta

import psutil
import pytest

from epochline import Json, KafkaTopic, PostgresTable
from epochline.coordinator import commit
from epochline.failpoints.named import NAMED
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.crash.watching import Keyed, Watchers, watching
from tests.integration.sinks_world import World, new_world
from tests.processes.client import Forked
from tests.waiting import wait_for

KEYS = 7


class Stream:
    """Epochs that are committed here and published here or by processes that can be stopped.

    Args:
        server: where everything is.
        timeout: the declared time-out of transactions, in seconds.
    """

    def __init__(self, server: Server, *, timeout: float = 60) -> None:
        out = KafkaTopic(
            topic="out", value=Json(columns={"n": "bigint"}), key="k", columns={"k": "text"},
            transaction_timeout=timedelta(seconds=timeout),
        )  # fmt: skip
        columns = {"k": "text", "n": "bigint"}
        self.world: World = new_world(
            server.new_database(), server.kafka.bootstrap_servers, out,
            PostgresTable(table="lines", columns=columns), table=False, parse=Json(columns=columns),
        )  # fmt: skip
        self._numbers = itertools.count()
        self._produced: dict[str, list[str]] = {}
        self.processes: list[Forked] = []

    @property
    def bootstrap(self) -> str:
        return self.world.bootstrap

    @property
    def topic(self) -> str:
        return self.world.topics[0]

    def seal(self, records: int = 60) -> int:
        """Produce some records and seal them as an epoch; its id."""
        numbers = [next(self._numbers) for _ in range(records)]
        keys = [f"k{number % KEYS}" for number in numbers]
        values = [f'{{"k": "{key}", "n": {number}}}' for key, number in zip(keys, numbers, strict=True)]
        self.world.produce(*values, keys=keys)
        for key, number in zip(keys, numbers, strict=True):
            self._produced.setdefault(key, []).append(f'{{"n":{number}}}')
        it = self.world.it
        _, _, ticket = it.sealed()
        return ticket.epoch_id

    def commit_sealed(self, epoch_id: int) -> None:
        it = self.world.it
        commit(it.ledger, it.source, it.pipeline.name, epoch_id)

    def commit(self, records: int = 60) -> None:
        """Produce some records and commit them as an epoch, which nobody publishes yet."""
        self.commit_sealed(self.seal(records))

    def publish(self) -> list[int]:
        """The epochs that were published here."""
        return [one.epoch_id for one in self.world.it.publish()]

    def publisher(self, failpoint: str = "", **environment: str) -> Forked:
        """A process that publishes; given a failpoint, it has stopped itself there, once."""
        at = failpoint if "@" in failpoint else f"{failpoint}@1"
        given = {NAMED: f"{at}:stop"} if failpoint else {}
        process = self.world.in_a_process("publish", **given, **environment)
        self.processes.append(process)
        if failpoint:

            def stopped() -> bool:
                assert process.poll() is None, f"it ended instead of stopping: {process.communicate()}"
                return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED

            wait_for(f"the publisher stops at {failpoint}", stopped)
        return process

    def epochs(self) -> dict[int, list[Keyed]]:
        """By epoch what is to be sent, as the table says, once it was compared with what was produced."""
        found: dict[int, list[Keyed]] = {}
        by_key: dict[str, list[str]] = {}
        for epoch, key, number in self.world.it.sql(
            "SELECT _epoch, k, n FROM lines ORDER BY _epoch, _partition, _offset"
        ):
            found.setdefault(epoch, []).append((key, f'{{"n":{number}}}'))
            by_key.setdefault(key, []).append(f'{{"n":{number}}}')
        assert by_key == self._produced
        return found

    def recover(self, watchers: Watchers, recovery: Recovery) -> int:
        """Publish until nothing is due, as the next runs do, and compare; how many records were aborted on the way."""
        self.publish()
        recovery.took()
        receipts = self.world.it.sql("SELECT DISTINCT state FROM epochline.receipts")
        assert receipts == [("SHOWN",)]
        assert self.world.outbox() == 0
        return watchers.report_interval(self.epochs())

    def end(self) -> None:
        """End every process that is left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def ended(process: Forked, seconds: float = 120) -> tuple[int, str]:
    """Exit code of a publisher and what it said last."""
    _, said = process.communicate(timeout=seconds)
    return process.returncode, said


NewStream = Callable[..., tuple[Stream, Watchers]]


@pytest.fixture
def new_stream(server: Server) -> Iterator[NewStream]:
    """Makes a pipeline whose topic is watched until the test ends, with one epoch committed and not published."""
    with ExitStack() as stack:

        def make(**options: float) -> tuple[Stream, Watchers]:
            stream = Stream(server, **options)
            stack.callback(stream.end)
            watchers = stack.enter_context(watching(stream.bootstrap, stream.topic))
            stream.commit()
            return stream, watchers

        yield make


@pytest.fixture
def stream(new_stream: NewStream) -> tuple[Stream, Watchers]:
    return new_stream()
