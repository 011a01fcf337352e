"""Why a run of Airflow makes no progress or failed, as far as Airflow's API lets one see."""

from __future__ import annotations

from collections.abc import Sequence

from epochline.errors import one_line, rebuilt
from epochline.local.airflow_api import AirflowApi, TaskState

_WAITING = ("scheduled", "queued", "up_for_retry", "up_for_reschedule", "deferred")


def why_it_waits(api: AirflowApi, dag_id: str, run_id: str, state: str, tasks: Sequence[TaskState]) -> str | None:
    """Say what a run waits for; None if one of its tasks is at work.

    Args:
        api: of the Airflow that has the run.
        dag_id: of the run.
        run_id: the run.
        state: of the run.
        tasks: of the run.

    Raises:
        AirflowUnavailableError: Airflow does not answer.
        StackError: Airflow refuses.
    """
    if any(task.state == "running" for task in tasks):
        return None
    trouble = api.scheduler_trouble()
    if trouble is not None:
        return f"{trouble}; `epochline up` starts it again"
    return _queued(api, dag_id, run_id) if state == "queued" else _at_work(api, tasks)


def _queued(api: AirflowApi, dag_id: str, run_id: str) -> str:
    dag = api.dag(dag_id)
    if dag is not None and dag.paused:
        return f"DAG {dag_id} is paused; unpause it in Airflow"
    others = [one for one in api.running(dag_id) if one != run_id]
    if dag is not None and dag.max_active_runs is not None and len(others) >= dag.max_active_runs:
        at = [
            f"{task.task_id} is {task.state}" for task in api.task_states(dag_id, others[0]) if task.state is not None
        ]
        doing = f" ({', '.join(at)})" if at else ""
        return f"run {others[0]} is running{doing}, and the DAG runs {dag.max_active_runs} at a time"
    return "the scheduler has not taken the run yet"


def _at_work(api: AirflowApi, tasks: Sequence[TaskState]) -> str | None:
    task = next((one for one in tasks if one.state in _WAITING), None)
    if task is None:
        return None
    if task.state == "up_for_retry":
        return f"{task.task_id} waits for its next try"
    free, slots = api.slots(task.pool)
    if free < task.pool_slots:
        return f"{task.task_id} waits for a slot of pool {task.pool}: {slots - free} of {slots} are taken"
    return f"{task.task_id} is {task.state}, and no worker has taken it yet"


def why_it_failed(api: AirflowApi, dag_id: str, run_id: str) -> str | None:
    """The task of a run that failed last, and its error in one line; None if its log shows none.

    Raises:
        AirflowUnavailableError: Airflow does not answer.
        StackError: Airflow refuses.
    """
    failed = [one for one in api.tries(dag_id, run_id) if one.state == "failed"]
    if not failed:
        return None
    details = [
        detail for message in api.log(dag_id, run_id, failed[-1]) for detail in message.get("error_detail") or ()
    ]
    if not details:
        return None
    # The first is what the task raised; its causes follow.
    said = one_line(details[0]["exc_value"])
    name, _, message = said.partition(": ")
    return f"{failed[-1].task_id}: {message if rebuilt(name, message) else said}"
