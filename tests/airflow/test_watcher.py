"""The watcher of a pipeline's records, without a scheduler: what Airflow stores of it, and a look that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.triggers.base import TriggerEvent

from epochline.airflow import waking
from epochline.airflow.waking import UnreadRecordsTrigger
from epochline.errors import SourceUnavailableError
from epochline.ports import OffsetSource
from tests.airflow.interpreter import answer_without_airflow
from tests.contract.worlds import World, fake_world

STORED = """
import json, warnings; warnings.simplefilter("ignore")
from datetime import timedelta
from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.airflow.dag import build_dag
from airflow.serialization.serialized_objects import DagSerialization

def stored(**fields):
    dag = build_dag(Pipeline(
        name="p", parse=Text(), sinks=[PostgresTable(table="t", columns={"value": "text"})], wake_on_data=5, **fields,
    ))
    timetable = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    [(_, asset)] = timetable.asset_condition.iter_assets()
    [watcher] = asset.watchers
    trigger = watcher.trigger
    return [type(timetable).__name__, timetable.periodic, asset.uri, trigger["classpath"], trigger["kwargs"]]

by_name = KafkaSource(topics=("a", "b"), connection="elsewhere")
print("ANSWER" + json.dumps({
    "data": stored(source=by_name, postgres_connection="there"),
    "both": stored(source=KafkaSource(pattern="a.*"), schedule=timedelta(minutes=1)),
}))
"""


def test_airflow_stores_names_of_topics_and_ids_of_connections_and_the_clock_stays(tmp_path: Path) -> None:
    """SEC-4, K23: addresses and passwords are looked up by the triggerer."""
    stored = answer_without_airflow(
        STORED, home=tmp_path, AIRFLOW_CONN_ELSEWHERE="kafka://secret", AIRFLOW_CONN_THERE="postgres://u:secret@h/d"
    )
    classpath = "epochline.airflow.waking.UnreadRecordsTrigger"
    uri, common = "epochline-source://p/records", {"pipeline": "p", "minimum_interval": 5.0}
    by_name = {"topics": ["a", "b"], "pattern": None, "kafka_connection": "elsewhere", "postgres_connection": "there"}
    by_pattern = {
        "topics": [], "pattern": "a.*", "kafka_connection": "epochline_kafka",
        "postgres_connection": "epochline_postgres",
    }  # fmt: skip

    assert stored["data"] == ["AssetTriggeredTimetable", False, uri, classpath, common | by_name]
    assert stored["both"] == ["AssetOrTimeSchedule", True, uri, classpath, common | by_pattern]


def trigger(pipeline: str = "orders", minimum_interval: float = 0.001) -> UnreadRecordsTrigger:
    return UnreadRecordsTrigger(
        pipeline=pipeline, topics=["orders"], pattern=None, minimum_interval=minimum_interval,
        kafka_connection="kafka", postgres_connection="ledger",
    )  # fmt: skip


class Servers:
    """In place of connections: a ledger and a Kafka in memory, and how often Kafka does not answer."""

    def __init__(self, world: World, failures: int = 0) -> None:
        self.world = world
        self.failures = failures
        self.opened = self.closed = 0

    @contextmanager
    def offsets(self, connection_id: str) -> Iterator[OffsetSource]:
        assert connection_id == "kafka"
        if self.failures:
            self.failures -= 1
            raise SourceUnavailableError("Kafka does not answer")
        self.opened += 1
        yield self.world.kafka
        self.closed += 1


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    one = Servers(fake_world(), failures=3)
    hosted = SimpleNamespace(kafka=one.offsets, ledger=lambda connection_id: one.world.ledger)
    monkeypatch.setattr(waking, "adapters", lambda: hosted)
    monkeypatch.setattr(waking, "LOOK_SECONDS", 0.01)
    return one


async def first(events: AsyncIterator[TriggerEvent]) -> TriggerEvent:
    return await asyncio.wait_for(anext(events), 30)


def test_a_look_that_fails_is_logged_once_and_repeated_until_it_is_answered(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """K23, F21: the triggerer goes on, and opens its clients again."""

    async def woken() -> TriggerEvent:
        async with aclosing(trigger().run()) as events:
            return await first(events)

    with caplog.at_level(logging.INFO, logger=waking.__name__):
        event = asyncio.run(woken())

    assert event.payload == {"pipeline": "orders", "last_epoch": 0}
    said = [record.message.split()[0] for record in caplog.records]
    assert said == ["waking.interrupted", "waking.resumed", "waking.woken"]
    assert "kafka=kafka ledger=ledger reason=SourceUnavailableError: Kafka does not answer" in caplog.text


def test_pipelines_of_the_same_servers_share_one_look(servers: Servers) -> None:
    """K23: neither a thread nor a client per pipeline."""
    servers.failures = 0
    one, other = trigger(), trigger("others", timedelta(hours=1).total_seconds())
    assert one.shared_stream_key() == other.shared_stream_key()

    async def both() -> tuple[TriggerEvent, TriggerEvent]:
        stream = UnreadRecordsTrigger.open_shared_stream(one.serialize()[1])
        seen: list[asyncio.Queue[dict[str, int]]] = [asyncio.Queue(), asyncio.Queue()]

        async def of(queue: asyncio.Queue[dict[str, int]]) -> AsyncIterator[dict[str, int]]:
            while True:
                yield await queue.get()

        async def share() -> None:
            async with aclosing(stream) as looks:
                async for due in looks:
                    for queue in seen:
                        queue.put_nowait(due)

        events = [watched.filter_shared_stream(of(queue)) for watched, queue in zip((one, other), seen, strict=True)]
        sharing = asyncio.create_task(share())
        found = await asyncio.gather(*map(first, events))
        sharing.cancel()
        for each in events:
            await each.aclose()
        return found[0], found[1]

    woken = asyncio.run(both())

    assert [event.payload["pipeline"] for event in woken] == ["orders", "others"]
    assert servers.opened == 1
