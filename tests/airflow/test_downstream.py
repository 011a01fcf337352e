"""Publishing and announcing under a real scheduler: what is committed gets everywhere, although tasks are killed."""

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
    """The events of a pipeline by epoch: asset and extra."""
    found = scheduler.call("GET", f"/api/v2/assets/events?source_dag_id={dag}&limit=100")["asset_events"]
    return sorted(({"uri": one["uri"], **one["extra"]} for one in found), key=lambda event: event["epoch_id"])


@pytest.mark.slow
def test_an_event_comes_for_each_epoch_although_its_task_is_killed_and_a_consumer_takes_each_once(
    scheduler: Scheduler,
) -> None:
    """Issue 6, downstream: killed between the ledger's commit and the task's end; the event comes with the next run."""
    eventually("the consumer's DAG is there", lambda: "announced_summaries" in scheduler.dags(), 120)
    scheduler.pause("announced_summaries", False)
    scheduler.prepare("announced", {0: ["a", "b"], 1: ["c"]})
    with failing(scheduler, "announced", "announce.committed.2:exit"):
        lost = scheduler.run("announced")
    assert lost["commit_epoch"] == "failed"
    assert scheduler.epoch("announced", 1)[0] == "COMMITTED"
    assert events(scheduler, "announced") == []

    scheduler.produce("announced", {0: ["d"]})
    assert scheduler.run("announced")["run"] == "success"

    first, later = events(scheduler, "announced")
    assert (first["offsets"]["announced"]["0"], first["offsets"]["announced"]["1"]) == ([0, 2], [0, 1])
    assert (first["epoch_id"], first["rows"], first["sink"]) == (1, 3, "announced")
    assert (later["epoch_id"], later["offsets"]["announced"]["0"]) == (2, [2, 3])
    assert first["uri"] == later["uri"] == "epochline://announced/announced"
    eventually("the consumer has both", lambda: _taken(scheduler) == [(1, 3), (2, 1)], 90)

    scheduler.produce("announced", {3: ["e"]})
    assert scheduler.run("announced")["run"] == "success"
    eventually("the consumer has the third", lambda: _taken(scheduler) == [(1, 3), (2, 1), (3, 1)], 90)
    assert [event["epoch_id"] for event in events(scheduler, "announced")] == [1, 2, 3]  # Airflow has each event once
    asked = (
        "SELECT epoch_id, acknowledged_at IS NOT NULL FROM epochline.receipt WHERE pipeline = 'announced' ORDER BY 1"
    )
    assert scheduler.query(asked) == [(1, True), (2, True), (3, False)]


def _taken(scheduler: Scheduler) -> list[tuple[Any, ...]]:
    if scheduler.query("SELECT to_regclass('examples.announced_summaries')") == [(None,)]:
        return []
    return scheduler.query("SELECT epoch_id, rows FROM examples.announced_summaries ORDER BY epoch_id")


@pytest.mark.slow
def test_what_is_committed_is_published_once_although_the_task_is_killed_and_nothing_is_left_to_read(
    scheduler: Scheduler,
) -> None:
    """P11, E6: killed between Kafka's commit and the receipt, then in every try; the run after that publishes.

    It does so although it fails before it has an epoch of its own, and it stays a failed run.
    """

    def published() -> list[str | None]:
        return values(seen(scheduler.stack.kafka.bootstrap_servers, "published_out"))

    scheduler.prepare("published", {0: ["a", "b"], 1: ["c"]})
    scheduler.produce("published_out", {})
    with failing(scheduler, "published", "topic.committed:exit:once"):
        run = scheduler.trigger("published")
        assert scheduler.wait("published", run) == "success"
    assert scheduler.instances("published", run)["publish"]["try_number"] == 2
    assert published() == ["a", "b", "c"]

    scheduler.produce("published", {2: ["d"]})
    with failing(scheduler, "published", "publish.transaction:exit"):
        stuck = scheduler.run("published")
    assert (stuck["run"], stuck["commit_epoch"], stuck["publish"]) == ("failed", "success", "failed")
    assert published() == ["a", "b", "c"]
    with failing(scheduler, "published", "observe.source.look:exit"):
        failed = scheduler.run("published")
    assert (failed["run"], failed["plan_epoch"], failed["publish"]) == ("failed", "failed", "failed")
    assert published() == ["a", "b", "c", "d"]

    idle = scheduler.run("published")

    # Airflow keeps no events of a task that failed: the next one emits them again.
    assert (idle["run"], idle["plan_epoch"], idle["publish"]) == ("success", "skipped", "success")
    announced = [(event["epoch_id"], event["sink"]) for event in events(scheduler, "published")]
    assert sorted(announced) == [(epoch, sink) for epoch in (1, 2) for sink in ("kafka:published_out", "published")]
    assert scheduler.run("published")["publish"] == "skipped"
