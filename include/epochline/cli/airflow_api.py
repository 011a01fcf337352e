"""The part of Airflow's REST API that commands use, through Airflow's own Python client.

Answers are read as JSON and not as the client's models: these refuse what an Airflow of another minor version answers
(ADR 0055). Importing the client takes most of a second, so only what asks an Airflow imports this module.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from functools import cached_property
from pathlib import PurePath
from typing import Any
from urllib.parse import urljoin, urlsplit

import urllib3
from airflow_client.client import (
    ApiClient,
    Configuration,
    DAGApi,
    DAGPatchBody,
    DagRunApi,
    MonitorApi,
    OpenApiException,
    PoolApi,
    TaskInstanceApi,
    TriggerDAGRunPostBody,
    VersionApi,
)

from epochline.cli.airflow_access import URL, AirflowAccess
from epochline.cli.airflow_runs import DagState, TaskState, TaskTry
from epochline.errors import AirflowUnavailableError, StackError, one_line

_VERSION = "/api/v2/version"
_INVALID = "Invalid JWT token"
"""What Airflow answers, as forbidden, to a token that is not its own; an expired one it calls unauthorized."""
_MOST_DAGS = 100
"""The most that an answer of Airflow has."""


class AirflowApi:
    """One Airflow, which may take ``timeout`` seconds to answer. Logs in before the first request.

    Every request raises `AirflowUnavailableError` if the server does not answer or fails, which a retry may mend, and
    `StackError` if it refuses. Messages name no token and no password.
    """

    def __init__(self, access: AirflowAccess, timeout: float) -> None:
        self.access = access
        self._timeout = timeout

    def version(self) -> str:
        """The version of Airflow, after a request that needs the token or login."""
        self._ask("list its DAGs", DAGApi, "get_dags", limit=1)
        return str(self._ask("say its version", VersionApi, "get_version")["version"])

    def scheduler_trouble(self) -> str | None:
        """None if the scheduler reports; else what is wrong with it, and what starts it again."""
        scheduler = self._ask("say its health", MonitorApi, "get_health")["scheduler"]
        if scheduler.get("status") == "healthy":
            return None
        since = scheduler.get("latest_scheduler_heartbeat") or "its start"
        mend = "`epochline up` starts it again" if self.access.embedded else "start Airflow's scheduler again"
        return f"the scheduler has not reported since {since}; {mend}"

    def dag(self, dag_id: str) -> DagState | None:
        """The state of a DAG; None if Airflow does not have the DAG (yet), or does not show it to this login."""
        dag = self._ask(f"show DAG {dag_id}", DAGApi, "get_dag", dag_id, none_if=404)
        if dag is None:
            return None
        begins = dag["next_dagrun_run_after"]
        next_run = None if begins is None else datetime.fromisoformat(begins)
        return DagState(paused=bool(dag["is_paused"]), next_run=next_run, max_active_runs=dag["max_active_runs"])

    def folders(self) -> list[str]:
        """Where the files of the DAGs that Airflow has are, each with its bundle; no more than the first 100 DAGs."""
        dags = self._ask("list its DAGs", DAGApi, "get_dags", limit=_MOST_DAGS)["dags"]
        return sorted({f"{PurePath(dag['fileloc']).parent} (bundle {dag.get('bundle_name')})" for dag in dags})

    def pause(self, dag_id: str, paused: bool) -> None:
        """Pause or unpause a DAG."""
        to, body = f"{'' if paused else 'un'}pause DAG {dag_id}", DAGPatchBody(is_paused=paused)
        self._ask(to, DAGApi, "patch_dag", dag_id, body, update_mask=["is_paused"])

    def trigger(self, dag_id: str, conf: Mapping[str, Any], note: str | None = None, run_id: str | None = None) -> str:
        """Start a manual run without a logical date. Returns its id. A repeat with the same id starts no second run."""
        body = TriggerDAGRunPostBody(dag_run_id=run_id, logical_date=None, conf=dict(conf), note=note)
        exists = None if run_id is None else 409
        run = self._ask(f"start a run of DAG {dag_id}", DagRunApi, "trigger_dag_run", dag_id, body, none_if=exists)
        return str(run_id if run is None else run["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """``queued``, ``running``, ``success`` or ``failed``."""
        return str(self._ask(f"show run {run_id}", DagRunApi, "get_dag_run", dag_id, run_id)["state"])

    def running(self, dag_id: str) -> list[str]:
        """The ids of the DAG's runs that are running, the oldest first."""
        asked: dict[str, Any] = {"state": ["running"], "order_by": ["start_date"]}
        runs = self._ask(f"list the runs of DAG {dag_id}", DagRunApi, "get_dag_runs", dag_id, **asked)["dag_runs"]
        return [str(run["dag_run_id"]) for run in runs]

    def slots(self, pool: str) -> tuple[int, int]:
        """The free slots of a pool, and all of them."""
        slots = self._ask(f"show pool {pool}", PoolApi, "get_pool", pool)
        return int(slots["open_slots"]), int(slots["slots"])

    def task_states(self, dag_id: str, run_id: str) -> list[TaskState]:
        """The current states of a run's tasks."""
        names = [field.name for field in fields(TaskState)]
        return [TaskState(**{name: task[name] for name in names}) for task in self._tasks(dag_id, run_id)]

    def tries(self, dag_id: str, run_id: str) -> list[TaskTry]:
        """Every try of every task of a run that was started, in the order of their starts."""
        to, operation = f"list the tries of run {run_id}", "get_task_instance_tries"
        tries = [
            TaskTry(task_id=row["task_id"], number=row["try_number"], state=row["state"], started_at=row["start_date"])
            for task in self._tasks(dag_id, run_id)
            for row in self._ask(to, TaskInstanceApi, operation, dag_id, run_id, task["task_id"])["task_instances"]
            if row["try_number"] > 0 and row["start_date"] is not None
        ]
        return sorted(tries, key=lambda task_try: (task_try.started_at, task_try.task_id))

    def log(self, dag_id: str, run_id: str, made: TaskTry) -> list[Mapping[str, Any]]:
        """The log of one try so far: messages with ``event``, and mostly ``timestamp``, ``level`` and more."""
        which = (dag_id, run_id, made.task_id, made.number)
        log = self._ask(f"show the log of {made.task_id}", TaskInstanceApi, "get_log", *which, full_content=True)
        return [{"event": message} if isinstance(message, str) else message for message in log["content"]]

    def _tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        to = f"list the tasks of run {run_id}"
        return list(self._ask(to, TaskInstanceApi, "get_task_instances", dag_id, run_id)["task_instances"])

    def _ask(self, to: str, api: type, operation: str, *values: Any, none_if: int | None = None, **options: Any) -> Any:
        """The JSON of an operation's answer; None for the status ``none_if``. ``to`` says in errors what was asked."""
        send = getattr(api(self._client), f"{operation}_without_preload_content")
        response = self._send(to, lambda: send(*values, _request_timeout=self._timeout, **options))
        return None if response.status == none_if else self._json(to, response)

    @cached_property
    def _client(self) -> ApiClient:
        """The client, logged in, with the address that redirects lead to."""
        at = self.access
        # A request to the stack's own server must not go through a proxy of the environment.
        configuration = Configuration(host=at.url, no_proxy="*" if at.embedded else None)
        # The caller decides whether to ask again.
        patience = urllib3.Retry(total=None, connect=0, read=0, other=0, redirect=5)
        configuration.retries = patience
        client = ApiClient(configuration)

        def ask(**headers: str) -> urllib3.BaseHTTPResponse:
            version = VersionApi(client).get_version_without_preload_content
            return self._send("say its version", lambda: version(_request_timeout=self._timeout, _headers=headers))

        response = ask()
        if at.token and (response.status in (401, 403) or not self._is_ours(self._led_to(response))):
            # What stands before some Airflows lets nobody in without a token. Where a redirect leaves the host, urllib3
            # takes the token off.
            response = ask(Authorization=f"Bearer {at.token}")
        there = self._led_to(response)
        if not self._is_ours(there):
            raise StackError(
                f"Airflow at {at.url} leads to {there.removesuffix(_VERSION)}. No token and no login was sent there. If"
                f" that is your Airflow, set {URL} to its address; a page that asks people to log in cannot be used by"
                " commands."
            )
        configuration.host = there.removesuffix(_VERSION)
        if "version" not in self._json("say its version", response):
            raise self._stranger()
        # A later redirect could send a login elsewhere.
        configuration.retries = patience.new(redirect=False)
        client = ApiClient(configuration)
        configuration.access_token = at.token or self._log_in(client)
        return client

    def _led_to(self, response: urllib3.BaseHTTPResponse) -> str:
        """Where the redirects of the first answer led to, without what follows the path."""
        at = self.access.url + _VERSION
        for step in response.retries.history if response.retries is not None else ():
            at = urljoin(at, step.redirect_location or "")
        return at.partition("?")[0]

    def _is_ours(self, there: str) -> bool:
        """Whether an address is one of the host that was named, and not less secure."""
        named, led = urlsplit(self.access.url), urlsplit(there)
        safe = led.hostname == named.hostname and (named.scheme, led.scheme) != ("https", "http")
        return safe and led.path.endswith(_VERSION)

    def _log_in(self, client: ApiClient) -> str:
        body = {"username": self.access.user, "password": self.access.password}
        # The auth manager answers here, and the client knows only Airflow itself.
        request = client.param_serialize("POST", "/auth/token", header_params={}, body=body)
        timeout = self._timeout
        answer = self._send("log in", lambda: client.call_api(*request, _request_timeout=timeout).response)
        if answer.status == 404:
            raise StackError(
                f"Airflow at {self.access.url} gives no token for a login (HTTP 404). Set EPOCHLINE_AIRFLOW_TOKEN to a"
                " token of your Airflow's auth manager."
            )
        token = self._json("log in", answer).get("access_token")
        if token is None:
            raise StackError(f"Airflow at {self.access.url} gave no token: its answer has none; see `epochline status`")
        return str(token)

    def _send(self, to: str, send: Callable[[], urllib3.BaseHTTPResponse]) -> urllib3.BaseHTTPResponse:
        """Send a request, and read the whole answer, whatever its status."""
        try:
            response = send()
            _ = response.data
        except (urllib3.exceptions.HTTPError, OpenApiException) as error:
            reason = getattr(error, "reason", None) or error
            said = f"Airflow at {self.access.url} did not answer ({type(reason).__name__}: {one_line(reason)[-200:]});"
            if "CERTIFICATE_VERIFY_FAILED" in said:
                trust = "the file that holds the certificate of its authority: export SSL_CERT_FILE=CA.pem"
                raise StackError(f"{said} name {trust}") from error
            raise AirflowUnavailableError(f"{said} {self._start}") from error
        return response

    def _json(self, to: str, response: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        try:
            answer = json.loads(response.data)
        except ValueError:
            answer = None
        if response.status >= 300:
            raise self._refused(to, response.status, answer)
        if not isinstance(answer, dict):
            raise self._stranger()
        return answer

    def _refused(self, to: str, status: int, answer: Any) -> StackError:
        """A server that fails may recover; one that refuses goes on refusing."""
        at, detail = self.access, _detail(answer)
        reason = ": ".join(filter(None, (f"HTTP {status}", detail)))
        if status >= 500:
            return AirflowUnavailableError(f"Airflow at {at.url} failed to {to} ({reason}); {self._start}")
        if status == 401 or (status == 403 and detail == _INVALID):
            mend = "see `epochline status`" if at.embedded else "set one that is valid and has not expired"
            return StackError(f"Airflow at {at.url} does not accept the {at.credential} ({reason}); {mend}")
        if status == 403:
            mend = "give its user that right in Airflow, or use another user's"
            return StackError(f"Airflow at {at.url} does not let the {at.credential} {to} ({reason}); {mend}")
        if to == "say its version":
            return self._stranger(reason)
        return StackError(f"Airflow at {at.url} refused to {to} ({reason}); see `epochline status`")

    def _stranger(self, reason: str = "") -> StackError:
        how = f" ({reason})" if reason else ""
        return StackError(
            f"{self.access.url} does not answer as the API of Airflow 3 does{how}. {URL} has to be the address of"
            " Airflow's pages, without /home or /api/v2 at its end."
        )

    @property
    def _start(self) -> str:
        if self.access.embedded:
            return "`epochline up` starts again what crashed"
        return f"start its API server, or correct {URL}; `curl {self.access.url}{_VERSION}` asks it"


def _detail(answer: Any) -> str:
    """The server's reason for its refusal, on one line."""
    try:
        detail = answer["detail"]
        return one_line(detail["reason"] if isinstance(detail, dict) else detail)[:300]
    except (KeyError, TypeError):
        return ""
