"""The task ``pre_commit`` of a pipeline, by the operator itself, beside the test."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import psutil

from epochline.airflow.pre_commit import PreCommitOperator
from tests.crash.line import Line, in_background
from tests.crash.spark_job import copying
from tests.waiting import wait_for

ASLEEP = 8
"""Seconds for which the parse of each part sleeps after twenty rows of it are copied."""


def planned(line: Line) -> None:
    """Plan an epoch of a `scripted` pipeline, in whose middle each part sleeps."""
    for p in range(4):
        early, late = [f"p{p}-{i}" for i in range(25)], [f"p{p}-late-{i}" for i in range(15)]
        line.produce({p: [*early, f"sleep {ASLEEP}", *late]})
    line.plan("run-1")


def operator_of(line: Line) -> PreCommitOperator:
    """A try of the task for the first epoch."""
    return PreCommitOperator(pipeline=line.pipeline, epoch_id="1", task_id="pre_commit")


def begun(operator: PreCommitOperator) -> Future[None]:
    """Start the try."""
    context: Any = {"dag_run": SimpleNamespace(dag_id=operator.pipeline.name, run_id="run-1")}
    return in_background(lambda: operator.execute(context))


def at_work(line: Line) -> psutil.Process:
    """A Python worker of the newest attempt, in the middle of its copy."""
    asked = "SELECT application_name FROM epochline.attempt ORDER BY attempt_id DESC LIMIT 1"
    [(name,)] = wait_for("the attempt has begun", lambda: line.query(asked))
    return copying(line, name)
