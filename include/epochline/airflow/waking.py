"""Runs that start because records wait: an asset per pipeline, whose watcher looks at Kafka and the ledger.

Triggers run in the one event loop of Airflow's triggerer. The clients of Kafka and PostgreSQL block, and a blocked loop
stops every trigger, so a thread of its own looks. All pipelines of one Kafka and one ledger share it, and its clients.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from epochline.airflow.connections import adapters
from epochline.declare.inputs import require_kafka
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.protocol.waking import Restraint

if TYPE_CHECKING:
    from epochline.coordinator import Lookout, Watched
    from epochline.ports import Ledger, OffsetSource

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks. A look costs milliseconds; a run takes longer than this to start."""

MOST_DOUBLINGS = 5
"""How often the time between two polls doubles while Kafka or PostgreSQL does not answer: up to about a minute."""

Servers = tuple[str, str]
"""Ids of the connections of a Kafka and a ledger."""


def records_asset(pipeline: Pipeline, minimum_interval: timedelta) -> Asset:
    """The asset ``epochline-source://PIPELINE/records``. Its watcher looks; an event of it starts a run."""
    source = require_kafka(pipeline.name, pipeline.source, "wake_on_data")
    trigger = UnreadRecordsTrigger(
        pipeline=pipeline.name,
        topics=list(source.topics),
        pattern=source.pattern,
        minimum_interval=minimum_interval.total_seconds(),
        kafka_connection=source.connection,
        postgres_connection=pipeline.postgres_connection,
    )
    return Asset(
        f"epochline-source://{pipeline.name}/records", watchers=[AssetWatcher(name="records", trigger=trigger)]
    )


class UnreadRecordsTrigger(BaseEventTrigger):
    """Fires when a run of the pipeline would find something to do.

    Airflow keeps the arguments in its database. They hold ids of connections, and no address or password. A lost event
    is fired again while the records wait; an event too many costs a run that finds nothing (INV-8).

    :param pipeline: its name.
    :param topics: names of the topics that it reads.
    :param pattern: or the pattern of their names.
    :param minimum_interval: least seconds between the pipeline's last commit and an event, and between two events.
    :param kafka_connection: id of the connection of the brokers.
    :param postgres_connection: id of the connection of the ledger.
    """

    _running: ClassVar[defaultdict[Servers, dict[int, UnreadRecordsTrigger]]] = defaultdict(dict)

    def __init__(
        self, *, pipeline: str, topics: list[str], pattern: str | None, minimum_interval: float,
        kafka_connection: str, postgres_connection: str,
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.topics = topics
        self.pattern = pattern
        self.minimum_interval = minimum_interval
        self.kafka_connection = kafka_connection
        self.postgres_connection = postgres_connection

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments, as Airflow keeps them."""
        names = ("pipeline", "topics", "pattern", "minimum_interval", "kafka_connection", "postgres_connection")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Servers:
        """Pipelines of the same Kafka and ledger share one stream."""
        return (self.kafka_connection, self.postgres_connection)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[dict[str, int]]:
        """Yield at each look the pipelines that are due, with the highest epoch id of each. Never raises."""
        servers = (kwargs["kafka_connection"], kwargs["postgres_connection"])
        connected, failures = _Connected(*servers), 0
        thread = ThreadPoolExecutor(1, thread_name_prefix="epochline-waking")
        try:
            while True:
                running = list(cls._running[servers].values())
                try:
                    due = await asyncio.get_running_loop().run_in_executor(thread, connected.look, running)
                except Exception as error:
                    failures += 1
                    if failures == 1:
                        log.warning(
                            "waking.interrupted kafka=%s ledger=%s reason=%s: %s; looks again until it is answered",
                            *servers, type(error).__name__, error,
                        )  # fmt: skip
                    await asyncio.sleep(LOOK_SECONDS * 2 ** min(failures, MOST_DOUBLINGS))
                    continue
                if failures:
                    log.info("waking.resumed kafka=%s ledger=%s after=%d", *servers, failures)
                    failures = 0
                yield due
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            thread.submit(connected.close)
            thread.shutdown(wait=False)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[dict[str, int]]) -> AsyncGenerator[TriggerEvent]:
        """Fire when this pipeline is due and was not woken just before."""
        restraint = Restraint(timedelta(seconds=self.minimum_interval))
        group = self._running[self.shared_stream_key()]
        group[id(self)] = self
        try:
            async for due in shared_stream:
                last_epoch_id, now = due.get(self.pipeline), time.monotonic()
                if last_epoch_id is not None and restraint.admits(last_epoch_id, now):
                    restraint.woken(last_epoch_id, now)
                    payload = {"pipeline": self.pipeline, "last_epoch": last_epoch_id}
                    log.info("waking.woken pipeline=%s last_epoch=%d", self.pipeline, last_epoch_id)
                    yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
        finally:
            group.pop(id(self), None)

    def watched(self) -> Watched:
        """What a look has to know."""
        from epochline.coordinator import Watched

        return Watched(
            pipeline=self.pipeline,
            topics=KafkaSource(topics=tuple(self.topics), pattern=self.pattern, connection=self.kafka_connection),
            minimum_interval=timedelta(seconds=self.minimum_interval),
        )

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """The same with a stream of its own, for a triggerer that shares none."""
        async with (
            aclosing(self.open_shared_stream(self.serialize()[1])) as stream,
            aclosing(self.filter_shared_stream(stream)) as events,
        ):
            async for event in events:
                yield event


class _Connected:
    """Clients of one Kafka and one ledger, used by one thread. After an error they are opened again."""

    def __init__(self, kafka_connection: str, postgres_connection: str) -> None:
        self._kafka_connection = kafka_connection
        self._postgres_connection = postgres_connection
        self._opened = ExitStack()
        self._clients: tuple[Ledger, OffsetSource, Lookout] | None = None

    def look(self, running: Sequence[UnreadRecordsTrigger]) -> dict[str, int]:
        """The pipelines that are due. Blocks until the servers answer."""
        from epochline.coordinator import Lookout, look

        try:
            if self._clients is None:
                # Looked up each time, so that a changed address or password is taken.
                source = self._opened.enter_context(adapters().kafka(self._kafka_connection))
                self._clients = (adapters().ledger(self._postgres_connection), source, Lookout())
            ledger, source, lookout = self._clients
            return look(ledger, source, [trigger.watched() for trigger in running], lookout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the clients; the next look opens others."""
        self._clients = None
        self._opened.close()
