"""What Airflow says of runs, tasks and DAGs, and what a run waits for or failed of."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from epochline.errors import one_line, rebuilt

if TYPE_CHECKING:
    # Its client takes most of a second to import.
    from epochline.cli.airflow_api import AirflowApi

FINISHED = frozenset({"success", "failed"})
"""States of a run that has ended."""
_WAITING = ("scheduled", "queued", "up_for_retry", "up_for_reschedule", "deferred")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The current state of one task of a run."""

    task_id: str
    state: str | None
    try_number: int
    pool: str
    pool_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DagState:
    """What Airflow says of a DAG: whether it is paused, when its schedule starts the next run, how many may run."""

    paused: bool
    next_run: datetime | None
    max_active_runs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTry:
    """One try of one task of a run, begun or ended."""

    task_id: str
    number: int
    state: str | None
    started_at: str


def new_run_id() -> str:
    """An id for a manual run, as Airflow gives them: a time, and what makes it unique."""
    return f"manual__{datetime.now(UTC).isoformat()}_{uuid4().hex[:8]}"


def why_it_waits(api: "AirflowApi", dag_id: str, run_id: str, state: str, tasks: Sequence[TaskState]) -> str | None:
    """Say what a run waits for, from the states of the run and of its tasks; None if one of them is at work."""
    if any(task.state == "running" for task in tasks):
        return None
    trouble = api.scheduler_trouble()
    if trouble is not None:
        return trouble
    return _queued(api, dag_id, run_id) if state == "queued" else _at_work(api, tasks)


def _queued(api: "AirflowApi", dag_id: str, run_id: str) -> str:
    dag = api.dag(dag_id)
    if dag is not None and dag.paused:
        return f"DAG {dag_id} is paused; unpause it in Airflow"
    others = [other for other in api.running(dag_id) if other != run_id]
    if dag is not None and dag.max_active_runs is not None and len(others) >= dag.max_active_runs:
        tasks = [task for task in api.task_states(dag_id, others[0]) if task.state is not None]
        doing = f" ({', '.join(f'{task.task_id} is {task.state}' for task in tasks)})" if tasks else ""
        return f"run {others[0]} is running{doing}, and the DAG runs {dag.max_active_runs} at a time"
    return "the scheduler has not taken the run yet"


def _at_work(api: "AirflowApi", tasks: Sequence[TaskState]) -> str | None:
    task = next((waiting for waiting in tasks if waiting.state in _WAITING), None)
    if task is None:
        return None
    if task.state in ("up_for_retry", "up_for_reschedule"):
        return f"{task.task_id} waits for its next try"
    free, slots = api.slots(task.pool)
    if free < task.pool_slots:
        return f"{task.task_id} waits for a slot of pool {task.pool}: {slots - free} of {slots} are taken"
    return f"{task.task_id} is {task.state}, and no worker has taken it yet"


def why_it_failed(api: "AirflowApi", dag_id: str, run_id: str) -> str | None:
    """The task of a run that failed last, and its error in one line; None if its log shows none."""
    failed = [task_try for task_try in api.tries(dag_id, run_id) if task_try.state == "failed"]
    for message in api.log(dag_id, run_id, failed[-1]) if failed else ():
        for detail in message.get("error_detail") or ():
            # The first is what the task raised; its causes follow.
            line = one_line(detail["exc_value"])
            name, _, error = line.partition(": ")
            return f"{failed[-1].task_id}: {error if rebuilt(name, error) else line}"
    return None
