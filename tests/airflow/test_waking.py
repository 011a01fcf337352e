"""Records that wait start runs, without a clock and without a person; and their watcher, without a scheduler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.triggers.base import TriggerEvent

from epochline.airflow import waking
from epochline.airflow.waking import UnreadRecordsTrigger
from epochline.cli.airflow_runs import FINISHED
from epochline.config.discovery import find
from epochline.errors import SourceUnavailableError
from epochline.ports import OffsetSource
from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.interpreter import answer_without_airflow
from tests.conftest import AIRFLOW_DAGS
from tests.contract.worlds import World, fake_world
from tests.crash.reliability import Recovery
from tests.integration.kafka_topics import transactional_producer

GAPS = (
    "SELECT next.planned_at - before.committed_at FROM epochline.epochs before JOIN epochline.epochs next"
    " ON next.pipeline = before.pipeline AND next.epoch_id = before.epoch_id + 1"
    " WHERE before.pipeline = %s AND before.state = 'COMMITTED'"
)


@pytest.fixture(autouse=True)
def _looked_for(scheduler: Scheduler) -> None:
    scheduler.read_again("woken")


def rows(scheduler: Scheduler, pipeline: str) -> list[str]:
    return sorted(value for (value,) in scheduler.query(f"SELECT value FROM {pipeline}"))


def shown(scheduler: Scheduler, pipeline: str, count: int) -> None:
    """Wait until so many rows are visible and their run has ended; an epoch may end between two produced records."""
    eventually(f"{pipeline} shows {count} rows", lambda: len(rows(scheduler, pipeline)) == count)
    eventually("its run has ended", lambda: {run["state"] for run in runs(scheduler, pipeline)} <= FINISHED)


def runs(scheduler: Scheduler, pipeline: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scheduler.call("GET", f"/api/v2/dags/{pipeline}/dagRuns")["dag_runs"]
    return found


def run_types(scheduler: Scheduler, pipeline: str) -> set[str]:
    return {run["run_type"] for run in runs(scheduler, pipeline)}


def test_records_start_runs_at_most_once_per_interval_and_an_open_transaction_starts_none(scheduler: Scheduler) -> None:
    """K23, INV-8: the ledger's own times say that the interval was kept."""
    declared = find("woken", AIRFLOW_DAGS)
    assert declared.schedule is None
    assert declared.wake_on_data is not None
    scheduler.prepare("woken", {0: ["a"], 1: ["b"]})
    scheduler.prepare("woken_beside", {})
    for number in range(1, 4):
        shown(scheduler, "woken", 1 + number)
        scheduler.produce("woken", {number: [f"later {number}"]})
    shown(scheduler, "woken", 5)
    epochs = scheduler.committed("woken")

    with transactional_producer(
        scheduler.stack.kafka.bootstrap_servers, "woken", transaction_timeout_ms=600_000
    ) as producer:
        producer.begin_transaction()
        producer.send("woken", value=b"in a transaction", partition=0).get(30)
        # One look sees both pipelines, and it has seen the other since the transaction was opened.
        scheduler.produce("woken_beside", {0: ["beside"]})
        shown(scheduler, "woken_beside", 1)
        assert scheduler.committed("woken") == epochs
        producer.commit_transaction()
    shown(scheduler, "woken", 6)

    assert rows(scheduler, "woken") == ["a", "b", "in a transaction", "later 1", "later 2", "later 3"]
    gaps = [gap for (gap,) in scheduler.query(GAPS, "woken")]
    assert len(gaps) >= 4
    assert min(gaps) >= declared.wake_on_data
    assert run_types(scheduler, "woken") == {"asset_triggered"}


@pytest.mark.fault("F40")
def test_after_the_triggerer_was_killed_what_was_produced_meanwhile_is_woken_for(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F40, I1, I2, I6: SIGKILL for the triggerer and what it started."""
    values = {0: ["a", "b"], 1: ["c"], 2: [], 3: []}
    scheduler.prepare("woken_late", values)
    shown(scheduler, "woken_late", 3)

    pid = scheduler.stack.airflow.pids["triggerer"]
    assert pid is not None
    triggerer = psutil.Process(pid)
    for process in [triggerer, *triggerer.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    recovery.last_fault()
    late = {0: ["d"], 2: ["e", "f"]}
    scheduler.produce("woken_late", late)
    scheduler.stack.up(parts=("kafka", "airflow"))

    shown(scheduler, "woken_late", 6)
    scheduler.assert_exact("woken_late", {p: [*some, *late.get(p, ())] for p, some in values.items()})
    recovery.took()


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
