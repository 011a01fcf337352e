"""Publishing and telling under a real scheduler: what is committed gets everywhere, although tasks are killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, eventually
from tests.integration.sinks_world import seen, values


@contextmanager
def failing(scheduler: Scheduler, pipeline: str, failpoint: str) -> Iterator[None]:
    """Tasks that start in the block die there, as by SIGKILL."""
    order = scheduler.stack.home.root / f"{pipeline}-fails"
    order.write_text(failpoint)
    try:
        yield
    finally:
        order.unlink()


def events(scheduler: Scheduler, dag: str) -> list[dict[str, Any]]:
    found = scheduler.call("GET", f"/api/v2/assets/events?source_dag_id={dag}&limit=100")["asset_events"]
    return sorted(found, key=lambda event: event["extra"]["epoch_id"])


@pytest.mark.slow
def test_an_event_comes_for_each_epoch_although_its_task_is_killed_and_a_consumer_takes_each_once(
    scheduler: Scheduler,
) -> None:
    """Issue 6, downstream: killed between the ledger's commit and the task's end; the event comes with the next run."""
    eventually("the consumer's DAG is there", lambda: _dag(scheduler, "told_summaries"), 120)
    scheduler.pause("told_summaries", False)
    scheduler.prepare("told", {0: ["a", "b"], 1: ["c"]})
    with failing(scheduler, "told", "announce.committed.2:exit"):
        lost = scheduler.run("told")
    assert lost["commit_epoch"] == "failed"
    assert scheduler.epoch("told", 1)[0] == "COMMITTED"
    assert events(scheduler, "told") == []

    scheduler.produce("told", {0: ["d"]})
    second = scheduler.run("told")

    assert second["run"] == "success"
    first, later = events(scheduler, "told")
    assert (first["extra"]["offsets"]["told"]["0"], first["extra"]["offsets"]["told"]["1"]) == ([0, 2], [0, 1])
    assert (first["extra"]["epoch_id"], first["extra"]["rows"], first["extra"]["sink"]) == (1, 3, "told")
    assert (later["extra"]["epoch_id"], later["extra"]["offsets"]["told"]["0"]) == (2, [2, 3])
    assert {event["uri"] for event in (first, later)} == {"epochline://told/told"}
    eventually("the consumer has both", lambda: _taken(scheduler) == [(1, 3), (2, 1)], 90)

    scheduler.produce("told", {3: ["e"]})
    assert scheduler.run("told")["run"] == "success"
    eventually("the consumer has the third", lambda: _taken(scheduler) == [(1, 3), (2, 1), (3, 1)], 90)
    assert [event["extra"]["epoch_id"] for event in events(scheduler, "told")] == [1, 2, 3]  # heard is not told again
    assert scheduler.query(
        "SELECT epoch_id, acknowledged_at IS NOT NULL FROM epochline.receipt WHERE pipeline = 'told' ORDER BY epoch_id"
    ) == [(1, True), (2, True), (3, False)]


def _dag(scheduler: Scheduler, dag: str) -> bool:
    return dag in {one["dag_id"] for one in scheduler.call("GET", "/api/v2/dags?limit=100")["dags"]}


def _taken(scheduler: Scheduler) -> list[tuple[Any, ...]]:
    if scheduler.query("SELECT to_regclass('told_summaries')") == [(None,)]:
        return []
    return scheduler.query("SELECT epoch_id, rows FROM told_summaries ORDER BY epoch_id")


@pytest.mark.slow
def test_what_is_committed_is_published_once_although_the_task_is_killed_and_nothing_is_left_to_read(
    scheduler: Scheduler,
) -> None:
    """P11, E6: killed between Kafka's commit and the receipt, then in every try; the run after that publishes.

    It does so although it fails before it has an epoch of its own, and it stays a failed run.
    """
    scheduler.prepare("published", {0: ["a", "b"], 1: ["c"]})
    scheduler.produce("published_out", {})
    with failing(scheduler, "published", "topic.committed:exit:once"):
        run = scheduler.trigger("published")
        assert scheduler.wait("published", run) == "success"
    assert scheduler.instances("published", run)["publish"]["try_number"] == 2
    assert _published(scheduler) == ["a", "b", "c"]

    scheduler.produce("published", {2: ["d"]})
    with failing(scheduler, "published", "publish.transaction:exit"):
        stuck = scheduler.run("published")
    assert (stuck["run"], stuck["commit_epoch"], stuck["publish"]) == ("failed", "success", "failed")
    assert _published(scheduler) == ["a", "b", "c"]

    with failing(scheduler, "published", "observe.source.look:exit"):
        failed = scheduler.run("published")
    assert (failed["run"], failed["plan_epoch"], failed["publish"]) == ("failed", "failed", "failed")
    assert _published(scheduler) == ["a", "b", "c", "d"]

    idle = scheduler.run("published")

    # Airflow keeps no events of a task that failed: they are told again.
    assert (idle["run"], idle["plan_epoch"], idle["publish"]) == ("success", "skipped", "success")
    told = [(event["extra"]["epoch_id"], event["extra"]["sink"]) for event in events(scheduler, "published")]
    assert sorted(told) == [(epoch, sink) for epoch in (1, 2) for sink in ("kafka:published_out", "published")]
    assert scheduler.run("published")["publish"] == "skipped"


def _published(scheduler: Scheduler) -> list[str | None]:
    return values(seen(scheduler.stack.kafka.bootstrap_servers, "published_out"))
