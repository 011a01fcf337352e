"""The task ``pre_commit`` of a pipeline, by the operator itself, beside the test."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import psutil

from epochline.airflow.pre_commit import PreCommitOperator
from epochline.config.resolve import resolve_settings
from epochline.declare.settings import PerRun
from epochline.protocol.epoch import Attempt
from tests.crash.line import Line, in_background
from tests.crash.spark_job import copying
from tests.waiting import wait_for

ASLEEP = 8
"""Seconds for which the parse of a part sleeps after twenty rows of it are copied."""

_WRITES = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"


def planned(line: Line) -> None:
    """Plan an epoch of four parts in a `scripted` pipeline; each part but the first sleeps in its middle."""
    for p in range(4):
        early, late = [f"p{p}-{i}" for i in range(25)], [f"p{p}-late-{i}" for i in range(15)]
        line.produce({p: [*early, f"sleep {ASLEEP if p else 0}", *late]})
    line.plan("run-1", settings=resolve_settings(line.pipeline, run=PerRun(parallelism=4)))


def operator_of(line: Line) -> PreCommitOperator:
    """A try of the task for the first epoch."""
    return PreCommitOperator(pipeline=line.pipeline, epoch_id="1", task_id="pre_commit")


def begun(operator: PreCommitOperator) -> Future[None]:
    """Start the try."""
    context: Any = {"dag_run": SimpleNamespace(dag_id=operator.pipeline.name, run_id="run-1")}

    def work() -> None:
        try:
            operator.execute(context)
        finally:
            if operator._hook is not None and operator._hook._submit_sp:  # whose pipe it leaves open
                operator._hook._submit_sp.stdout.close()

    return in_background(work)


def at_work(line: Line, task: Future[None]) -> psutil.Process:
    """A Python worker of the task's attempt, in the middle of its copy. Raises what the task raises before."""

    def live() -> Attempt | None:
        if task.done():
            task.result()
        with line.ledger.transaction() as tx:
            return tx.attempts.live(tx.epochs.lock(line.name, 1))

    def writes() -> list[tuple[Any, ...]]:
        return line.query(_WRITES, attempt.application_name) if live() else []

    attempt = wait_for("the attempt has begun", live)
    wait_for("a part is written", writes, 240)
    return copying(line, attempt.application_name)
