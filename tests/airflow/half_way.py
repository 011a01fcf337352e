"""Runs that a test stops half way: while Spark writes, before the commit, or within any step of an epoch."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from tests.airflow.conftest import Scheduler, eventually
from tests.databases import query
from tests.integration.kafka_topics import admin_of, make_topic, read_topic

STEPS = ("plan_epoch", "pre_commit", "commit_epoch", "publish", "abort_epoch")
BEFORE = dict(
    zip(STEPS, ("intent.commit", "seal.commit", "commit.commit", "publish.sink.commit", "abort.commit"), strict=True)
)
"""By step, the place right before that counts which the step does."""
AFTER = dict(
    zip(
        STEPS,
        ("intent.committed", "seal.committed", "commit.committed", "publish.committed.3", "abort.committed"),
        strict=True,
    )
)
"""By step, the place right after that counts which the step does, and before Airflow knows of it."""


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


@dataclass(frozen=True)
class Held:
    """A run of tests/airflow/dags/held.py whose task stands still within a step; nobody but its test lets it go on."""

    scheduler: Scheduler
    step: str
    run: str
    task: psutil.Process
    id: str
    """Of the task's try."""

    @property
    def pipeline(self) -> str:
        return f"held_{self.step}"

    def let_go(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.task.resume()

    def instance(self) -> dict[str, Any]:
        return self.scheduler.instances(self.pipeline, self.run)[self.step]

    def state(self) -> str:
        return self.scheduler.wait(self.pipeline, self.run)

    def epoch(self) -> tuple[int, str]:
        """The run's newest epoch and its state."""
        asked = (
            "SELECT epoch_id, state FROM epochline.epochs WHERE pipeline = %s AND run_id = %s"
            " ORDER BY epoch_id DESC LIMIT 1"
        )
        return next(iter(self.scheduler.query(asked, self.pipeline, self.run)), (0, ""))


def next_runs(held: Mapping[str, Held]) -> None:
    """Runs that finish what the fault left; then everything produced is in each sink once."""
    runs = [(one, one.scheduler.trigger(one.pipeline)) for one in held.values()]
    for one, run in runs:
        assert one.scheduler.wait(one.pipeline, run) == "success"
        assert_whole(one.scheduler, one.pipeline)


def hold(scheduler: Scheduler, places: Mapping[str, str]) -> dict[str, Held]:
    """Trigger a run for each step, and wait until its task stands still at the step's failpoint."""
    runs = {}
    for step, place in places.items():
        pipeline = f"held_{step}"
        feed(scheduler, pipeline, *["bad"] * (step == "abort_epoch"))
        (scheduler.stack.home.root / f"{pipeline}-fails").write_text(f"{place}:stop")
        runs[step] = scheduler.trigger(pipeline)
    return {step: _standing(scheduler, step, run) for step, run in runs.items()}


def feed(scheduler: Scheduler, pipeline: str, *more: str) -> None:
    """Produce a record of its own for each partition, and more for the first."""
    make_sinks(scheduler, pipeline)
    number = sum(map(len, produced(scheduler, pipeline).values()))
    scheduler.produce(pipeline, {p: [f"{p} after {number}", *(more if p == 0 else ())] for p in range(4)})


def make_sinks(scheduler: Scheduler, pipeline: str) -> None:
    scheduler.make_targets(pipeline)
    scheduler.produce(pipeline, {})
    servers, out = scheduler.stack.kafka.bootstrap_servers, f"{pipeline}_out"
    with admin_of(servers) as admin:
        there = out in admin.list_topics()
    if not there:
        make_topic(servers, out)


def _standing(scheduler: Scheduler, step: str, run: str) -> Held:
    pipeline, found = f"held_{step}", list[psutil.Process]()

    def stands() -> bool:
        with suppress(StopIteration, KeyError, psutil.NoSuchProcess):
            found[:] = [scheduler.task_process(pipeline, run, step)]
            return bool(found[0].status() == psutil.STATUS_STOPPED)
        return False

    eventually(f"{step} stands still", stands)
    (scheduler.stack.home.root / f"{pipeline}-fails").unlink()
    return Held(scheduler, step, run, found[0], scheduler.instances(pipeline, run)[step]["id"])


def produced(scheduler: Scheduler, topic: str) -> dict[int, list[str]]:
    """What Kafka holds, by partition."""
    values: dict[int, list[str]] = defaultdict(list)
    for record in read_topic(scheduler.stack.kafka.bootstrap_servers, topic):
        values[record.partition].append(record.value.decode())
    return {p: values[p] for p in range(4)}


def assert_whole(scheduler: Scheduler, pipeline: str) -> None:
    """Both tables and the topic hold each record that was produced once; chain and counts are whole."""
    values = produced(scheduler, pipeline)
    scheduler.assert_exact(pipeline, values)
    shown = (record.value.decode() for record in read_topic(scheduler.stack.kafka.bootstrap_servers, f"{pipeline}_out"))
    assert sorted(shown) == sorted(value for some in values.values() for value in some)


def airflow_database(scheduler: Scheduler) -> str:
    return str(scheduler.stack.postgres.dsn("airflow"))


def in_airflow(scheduler: Scheduler, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement in Airflow's own database."""
    return query(airflow_database(scheduler), statement, *values)
