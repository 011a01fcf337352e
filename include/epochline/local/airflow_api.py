"""Airflow's REST API, as far as the stack and the command line use it."""

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

# A proxy of the environment has no business with loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

FINISHED = frozenset({"success", "failed"})
"""States of a run that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """One task of a run as it is now."""

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
        url: where it is.
        timeout: seconds that an answer may take.
        token: of a user who may do what is asked; `token` gets one.
    """

    def __init__(self, url: str, timeout: float = 5.0, token: str | None = None) -> None:
        self._url = url
        self._timeout = timeout
        self._token = token

    def token(self, user: str, password: str) -> str:
        """Log in.

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
        """None when the database, and each part of `since` after that moment, are reported healthy.

        Airflow itself calls a killed scheduler healthy for half a minute, hence the moments.
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
        """Whether a DAG is paused; None where Airflow has no such DAG (yet)."""
        try:
            return bool(self._asked(f"/api/v2/dags/{quote(dag_id)}")["is_paused"])
        except _RefusedError as error:
            if error.code == 404:
                return None
            raise self._explained(error) from error

    def pause(self, dag_id: str, paused: bool) -> None:
        """Pause a DAG, or let it run."""
        self._tried(f"/api/v2/dags/{quote(dag_id)}?update_mask=is_paused", {"is_paused": paused}, "PATCH")

    def trigger(self, dag_id: str, conf: Mapping[str, Any], note: str | None = None) -> str:
        """Start a run by hand, without a logical date; its id."""
        body = {"logical_date": None, "conf": dict(conf), "note": note}
        return str(self._tried(f"/api/v2/dags/{quote(dag_id)}/dagRuns", body, "POST")["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """``queued``, ``running``, ``success`` or ``failed``."""
        return str(self._tried(f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}")["state"])

    def task_states(self, dag_id: str, run_id: str) -> list[TaskState]:
        """The tasks of a run, as they are now."""
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        return [
            TaskState(task_id=one["task_id"], state=one["state"], try_number=one["try_number"])
            for one in self._tried(path)["task_instances"]
        ]

    def _tried(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
        try:
            return self._asked(path, body, method)
        except _RefusedError as error:
            raise self._explained(error) from error

    def _asked(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
        try:
            return self._call(path, body, method)
        except _RefusedError:
            raise
        except (OSError, ValueError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> StackError:
        return StackError(f"Airflow at {self._url} did not do what was asked ({error}); see `epochline status`")

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
            raise ValueError(f"{path} answered no JSON object")
        return answer


def _detail(error: urllib.error.HTTPError) -> str:
    """What the server says about its refusal, on one line."""
    try:
        return " ".join(str(json.load(error)["detail"]).split())[:300]
    except (ValueError, KeyError, TypeError, OSError):
        return ""


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
