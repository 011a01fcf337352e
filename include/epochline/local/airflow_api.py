"""A client for the part of Airflow's REST API that the stack and the command line use, and what it tells of a run."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from epochline.errors import AirflowUnavailableError, StackError, one_line, rebuilt

# Requests to loopback must not go through a proxy of the environment.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

FINISHED = frozenset({"success", "failed"})
"""States of a run that has ended."""
SILENT_SCHEDULER = "scheduler is unhealthy"
"""What `AirflowApi.health` says of a scheduler that reported after its start, but not in the last half minute."""


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


class AirflowApi:
    """One API server, which may take ``timeout`` seconds to answer. The method `token` gets a token."""

    def __init__(self, url: str, timeout: float = 5.0, token: str | None = None) -> None:
        self._url = url
        self._timeout = timeout
        self._token = token

    def token(self, user: str, password: str) -> str:
        """Log in and return a token.

        As every request, raises `AirflowUnavailableError` if the server does not answer, `StackError` if it refuses.
        """
        answer = self._request("/auth/token", {"username": user, "password": password}, how="gave no token")
        if "access_token" not in answer:
            raise self._failed("gave no token", "its answer has none", passes=False)
        return str(answer["access_token"])

    def health(self, since: Mapping[str, float]) -> str | None:
        """None if the database and each part in `since` are healthy; else what is wrong.

        Airflow reports a killed scheduler as healthy for half a minute. So a part's last heartbeat must be later than
        its start in `since`, in seconds since 1970.
        """
        try:
            answer = self._request("/api/v2/monitor/health")
        except StackError as error:
            return f"the API server does not answer ({error.__cause__})"
        for key, value in answer.items():
            part = key.replace("_", "-")
            if part not in since and part != "metadatabase":
                continue
            if part in since and _moment(value.get(f"latest_{key}_heartbeat")) < since[part]:
                return f"{part} has not reported since it was started"
            if value.get("status") != "healthy":
                return f"{part} is {value.get('status') or 'not reporting'}"
        return None

    def scheduler_trouble(self) -> str | None:
        """None if the scheduler reports; else what is wrong with it."""
        scheduler = self._request("/api/v2/monitor/health")["scheduler"]
        if scheduler.get("status") == "healthy":
            return None
        return f"the scheduler has not reported since {scheduler.get('latest_scheduler_heartbeat') or 'its start'}"

    def dag(self, dag_id: str) -> DagState | None:
        """The state of a DAG; None if Airflow does not have the DAG (yet)."""
        try:
            dag = self._request(f"/api/v2/dags/{quote(dag_id)}")
        except StackError as error:
            if _refused_with(404, error):
                return None
            raise
        begins = dag["next_dagrun_run_after"]
        next_run = None if begins is None else datetime.fromisoformat(begins)
        return DagState(paused=bool(dag["is_paused"]), next_run=next_run, max_active_runs=dag["max_active_runs"])

    def pause(self, dag_id: str, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self._request(f"/api/v2/dags/{quote(dag_id)}?update_mask=is_paused", {"is_paused": paused}, "PATCH")

    def trigger(self, dag_id: str, conf: Mapping[str, Any], note: str | None = None, run_id: str | None = None) -> str:
        """Start a manual run without a logical date. Returns its id. A repeat with the same id starts no second run."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf), "note": note}
        try:
            return str(self._request(f"/api/v2/dags/{quote(dag_id)}/dagRuns", body, "POST")["dag_run_id"])
        except StackError as error:
            if run_id is not None and _refused_with(409, error):
                return run_id
            raise

    def run_state(self, dag_id: str, run_id: str) -> str:
        """``queued``, ``running``, ``success`` or ``failed``."""
        return str(self._request(_run_path(dag_id, run_id))["state"])

    def running(self, dag_id: str) -> list[str]:
        """The ids of the DAG's runs that are running, the oldest first."""
        query = urlencode({"state": "running", "order_by": "start_date"})
        runs = self._request(f"/api/v2/dags/{quote(dag_id)}/dagRuns?{query}")["dag_runs"]
        return [str(run["dag_run_id"]) for run in runs]

    def slots(self, pool: str) -> tuple[int, int]:
        """The free slots of a pool, and all of them."""
        slots = self._request(f"/api/v2/pools/{quote(pool, safe='')}")
        return int(slots["open_slots"]), int(slots["slots"])

    def task_states(self, dag_id: str, run_id: str) -> list[TaskState]:
        """The current states of a run's tasks."""
        tasks = self._request(f"{_run_path(dag_id, run_id)}/taskInstances")["task_instances"]
        names = [field.name for field in fields(TaskState)]
        return [TaskState(**{name: task[name] for name in names}) for task in tasks]

    def tries(self, dag_id: str, run_id: str) -> list[TaskTry]:
        """Every try of every task of a run that was started, in the order of their starts."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances"
        tries = [
            TaskTry(task_id=row["task_id"], number=row["try_number"], state=row["state"], started_at=row["start_date"])
            for task in self._request(path)["task_instances"]
            for row in self._request(f"{path}/{quote(task['task_id'])}/tries")["task_instances"]
            if row["try_number"] > 0 and row["start_date"] is not None
        ]
        return sorted(tries, key=lambda task_try: (task_try.started_at, task_try.task_id))

    def log(self, dag_id: str, run_id: str, made: TaskTry) -> list[Mapping[str, Any]]:
        """The log of one try so far: messages with ``event``, and mostly ``timestamp``, ``level`` and more."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(made.task_id)}/logs/{made.number}?full_content=true"
        content = self._request(path)["content"]
        return [{"event": message} if isinstance(message, str) else message for message in content]

    def _request(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        method: str | None = None,
        how: str = "did not answer a request",
    ) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(  # noqa: S310 - the URL is built from loopback
            self._url + path, data=None if body is None else json.dumps(body).encode(), headers=headers, method=method
        )
        try:
            with _OPENER.open(request, timeout=self._timeout) as response:
                answer = json.load(response)
            if not isinstance(answer, dict):
                raise ValueError(f"{path} did not answer with a JSON object")
        except urllib.error.HTTPError as error:
            with error:
                reason = ": ".join(filter(None, (f"HTTP {error.code}", _detail(error))))
            raise self._failed(how, reason, passes=error.code >= 500) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = f"{type(error).__name__}: {error}"
            raise self._failed(how, reason, passes=not isinstance(error, ValueError)) from error
        return answer

    def _failed(self, how: str, reason: str, *, passes: bool) -> StackError:
        """A server that fails or does not answer may recover; one that refuses goes on refusing."""
        message = f"Airflow at {self._url} {how} ({reason});"
        if passes:
            return AirflowUnavailableError(f"{message} `epochline up` starts again what crashed")
        return StackError(f"{message} see `epochline status`")


def _refused_with(code: int, error: StackError) -> bool:
    return isinstance(error.__cause__, urllib.error.HTTPError) and error.__cause__.code == code


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def new_run_id() -> str:
    """An id for a manual run, as Airflow gives them: a time, and what makes it unique."""
    return f"manual__{datetime.now(UTC).isoformat()}_{uuid4().hex[:8]}"


def _detail(error: urllib.error.HTTPError) -> str:
    """The server's reason for its refusal, on one line."""
    try:
        detail = json.load(error)["detail"]
        return one_line(detail["reason"] if isinstance(detail, dict) else detail)[:300]
    except (ValueError, KeyError, TypeError, OSError):
        return ""


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


_WAITING = ("scheduled", "queued", "up_for_retry", "up_for_reschedule", "deferred")


def why_it_waits(api: AirflowApi, dag_id: str, run_id: str, state: str, tasks: Sequence[TaskState]) -> str | None:
    """Say what a run waits for, from the states of the run and of its tasks; None if one of them is at work."""
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
    others = [other for other in api.running(dag_id) if other != run_id]
    if dag is not None and dag.max_active_runs is not None and len(others) >= dag.max_active_runs:
        tasks = [task for task in api.task_states(dag_id, others[0]) if task.state is not None]
        doing = f" ({', '.join(f'{task.task_id} is {task.state}' for task in tasks)})" if tasks else ""
        return f"run {others[0]} is running{doing}, and the DAG runs {dag.max_active_runs} at a time"
    return "the scheduler has not taken the run yet"


def _at_work(api: AirflowApi, tasks: Sequence[TaskState]) -> str | None:
    task = next((waiting for waiting in tasks if waiting.state in _WAITING), None)
    if task is None:
        return None
    if task.state == "up_for_retry":
        return f"{task.task_id} waits for its next try"
    free, slots = api.slots(task.pool)
    if free < task.pool_slots:
        return f"{task.task_id} waits for a slot of pool {task.pool}: {slots - free} of {slots} are taken"
    return f"{task.task_id} is {task.state}, and no worker has taken it yet"


def why_it_failed(api: AirflowApi, dag_id: str, run_id: str) -> str | None:
    """The task of a run that failed last, and its error in one line; None if its log shows none."""
    failed = [task_try for task_try in api.tries(dag_id, run_id) if task_try.state == "failed"]
    for message in api.log(dag_id, run_id, failed[-1]) if failed else ():
        for detail in message.get("error_detail") or ():
            # The first is what the task raised; its causes follow.
            line = one_line(detail["exc_value"])
            name, _, error = line.partition(": ")
            return f"{failed[-1].task_id}: {error if rebuilt(name, error) else line}"
    return None
