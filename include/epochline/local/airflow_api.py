"""The two calls that the stack makes to Airflow's REST API: is it healthy, and a token for others to use."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from epochline.errors import StackError

# A proxy of the environment has no business with loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class AirflowApi:
    """One API server."""

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self._url = url
        self._timeout = timeout

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

    def _call(self, path: str, body: Mapping[str, str] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the URL is built from loopback
            self._url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with _OPENER.open(request, timeout=self._timeout) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"HTTP {error.code}") from None
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP answer: {type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise ValueError(f"{path} answered no JSON object")
        return answer


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
