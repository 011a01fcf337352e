"""A client for the part of Airflow's REST API that the stack and the command line use."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from epochline.errors import StackError

# Requests to loopback must not go through a proxy of the environment.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

FINISHED = frozenset({"success", "failed"})
"""States of a run that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The current state of one task of a run."""

    task_id: str
    state: str | None
    try_number: int


class _RefusedError(OSError):
    """The server answered with an error; ``code`` is its HTTP status."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"HTTP {code}{f': {detail}' if detail else ''}")
        self.code = code


class AirflowApi:
    """One API server.

    Args:
        url: of the server.
        timeout: seconds that an answer may take.
        token: of a user with the rights for the requests; the method `token` gets one.
    """

    def __init__(self, url: str, timeout: float = 5.0, token: str | None = None) -> None:
        self._url = url
        self._timeout = timeout
        self._token = token

    def token(self, user: str, password: str) -> str:
        """Log in and return a token.

        Raises:
            StackError: the server does not answer or refuses.
        """
        try:
            answer = self._call("/auth/token", {"username": user, "password": password})
            return str(answer["access_token"])
        except (OSError, ValueError, KeyError) as error:
            raise StackError(
                f"Airflow at {self._url} gave no token ({type(error).__name__}: {error}); see `epochline status`"
            ) from error

    def health(self, since: Mapping[str, float]) -> str | None:
        """None if the database and each part in `since` are healthy; else what is wrong.

        Airflow reports a killed scheduler as healthy for half a minute. So a part's last heartbeat must be later than
        its time in `since`.

        Args:
            since: per part the time of its start, in seconds since 1970.
        """
        try:
            answer = self._call("/api/v2/monitor/health")
        except (OSError, ValueError) as error:
            return f"the API server does not answer ({error})"
        for key, value in answer.items():
            part = key.replace("_", "-")
            if part not in since and part != "metadatabase":
                continue
            if value.get("status") != "healthy":
                return f"{part} is {value.get('status') or 'not reporting'}"
            if part in since and _moment(value.get(f"latest_{key}_heartbeat")) < since[part]:
                return f"{part} has not reported since it was started"
        return None

    def is_paused(self, dag_id: str) -> bool | None:
        """Whether a DAG is paused; None if Airflow does not have the DAG (yet)."""
        try:
            return bool(self._try_request(f"/api/v2/dags/{quote(dag_id)}")["is_paused"])
        except _RefusedError as error:
            if error.code == 404:
                return None
            raise self._failed(error) from error

    def pause(self, dag_id: str, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self._request(f"/api/v2/dags/{quote(dag_id)}?update_mask=is_paused", {"is_paused": paused}, "PATCH")

    def trigger(self, dag_id: str, conf: Mapping[str, Any], note: str | None = None) -> str:
        """Start a manual run without a logical date. Returns its id."""
        body = {"logical_date": None, "conf": dict(conf), "note": note}
        return str(self._request(f"/api/v2/dags/{quote(dag_id)}/dagRuns", body, "POST")["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """``queued``, ``running``, ``success`` or ``failed``."""
        return str(self._request(f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}")["state"])

    def task_states(self, dag_id: str, run_id: str) -> list[TaskState]:
        """The current states of a run's tasks."""
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        return [
            TaskState(task_id=task["task_id"], state=task["state"], try_number=task["try_number"])
            for task in self._request(path)["task_instances"]
        ]

    def _request(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
        try:
            return self._try_request(path, body, method)
        except _RefusedError as error:
            raise self._failed(error) from error

    def _try_request(
        self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None
    ) -> dict[str, Any]:
        try:
            return self._call(path, body, method)
        except _RefusedError:
            raise
        except (OSError, ValueError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StackError:
        return StackError(f"a request to Airflow at {self._url} failed ({error}); see `epochline status`")

    def _call(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(  # noqa: S310 - the URL is built from loopback
            self._url + path, data=None if body is None else json.dumps(body).encode(), headers=headers, method=method
        )
        try:
            with _OPENER.open(request, timeout=self._timeout) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise _RefusedError(error.code, _detail(error)) from None
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP answer: {type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise ValueError(f"{path} did not answer with a JSON object")
        return answer


def _detail(error: urllib.error.HTTPError) -> str:
    """The server's reason for its refusal, on one line."""
    try:
        return " ".join(str(json.load(error)["detail"]).split())[:300]
    except (ValueError, KeyError, TypeError, OSError):
        return ""


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
