"""Runs that a test stops half way: while Spark writes, or before the commit."""

from __future__ import annotations

from typing import Any

from tests.airflow.conftest import Scheduler, eventually


def held(pipeline: str) -> dict[int, list[str]]:
    """Records of which the third and fourth partition stay half copied until they are `let_go`."""
    wait = f"wait {pipeline}-may-go"
    return {
        p: [f"p{p}-{i}" for i in range(25)] + [wait] * (p > 1) + [f"p{p}-late-{i}" for i in range(15)] for p in range(4)
    }


def let_go(scheduler: Scheduler, pipeline: str) -> None:
    (scheduler.stack.home.root / f"{pipeline}-may-go").touch()


def some_parts_but_not_all(scheduler: Scheduler, pipeline: str) -> None:
    eventually("a part is committed", lambda: scheduler.parts(pipeline, 1) >= 1, every=0.05)
    assert scheduler.parts(pipeline, 1) < 4


def sealed_but_paused(scheduler: Scheduler, pipeline: str, epoch: int, **conf: Any) -> str:
    """Trigger a run and pause its DAG while Spark writes: the epoch is sealed, and its commit does not start."""
    run = scheduler.trigger(pipeline, **conf)
    eventually("Spark has begun", lambda: scheduler.epoch(pipeline, epoch)[1] == 1)
    scheduler.pause(pipeline, True)
    eventually("the epoch is sealed", lambda: scheduler.epoch(pipeline, epoch)[0] == "PRE_COMMITTED")
    eventually("its task ended", lambda: scheduler.tasks(pipeline, run)["pre_commit"] == "success")
    assert scheduler.tasks(pipeline, run)["commit_epoch"] is None
    assert scheduler.state(pipeline, run) == "running"
    return run
