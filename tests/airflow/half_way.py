"""Runs that a test stops half way: while Spark writes, or before the commit."""

from typing import Any

from tests.airflow.conftest import Scheduler, eventually


def half_written(scheduler: Scheduler, pipeline: str) -> tuple[dict[int, list[str]], str]:
    """The records and the run of an epoch, some parts of which are committed; the others wait until they are `let_go`."""
    wait = f"wait {pipeline}-may-go"
    values = {
        p: [f"p{p}-{i}" for i in range(25)] + [wait] * (p > 1) + [f"p{p}-late-{i}" for i in range(15)] for p in range(4)
    }
    scheduler.prepare(pipeline, values)
    run = scheduler.trigger(pipeline)
    asked = (
        "SELECT count(DISTINCT spark_partition) FROM epochline.part JOIN epochline.attempt USING (attempt_id)"
        " WHERE pipeline = %s AND epoch_id = 1 AND attempt = 1"
    )
    eventually("a part is committed", lambda: scheduler.count(asked, pipeline), every=0.05)
    assert scheduler.count(asked, pipeline) < 4
    return values, run


def let_go(scheduler: Scheduler, pipeline: str) -> None:
    (scheduler.stack.home.root / f"{pipeline}-may-go").touch()


def sealed_but_paused(scheduler: Scheduler, pipeline: str, epoch: int, **conf: Any) -> str:
    """Trigger a run and pause its DAG while Spark writes: the epoch is sealed, and its commit does not start."""
    run = scheduler.trigger(pipeline, **conf)
    pause_while_spark_writes(scheduler, pipeline, epoch, run, 1)
    assert scheduler.tasks(pipeline, run)["commit_epoch"] is None
    assert scheduler.state(pipeline, run) == "running"
    return run


def pause_while_spark_writes(scheduler: Scheduler, pipeline: str, epoch: int, run: str, attempt: int) -> None:
    """Pause a DAG once Spark has begun an attempt, and wait until the attempt is sealed and its task has ended."""
    eventually("Spark has begun", lambda: scheduler.epoch(pipeline, epoch)[1] == attempt)
    scheduler.pause(pipeline, True)
    eventually("the epoch is sealed", lambda: scheduler.epoch(pipeline, epoch)[0] == "PRE_COMMITTED")
    eventually("its task ended", lambda: scheduler.tasks(pipeline, run)["pre_commit"] == "success")
