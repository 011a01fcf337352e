"""Requests to the REST API of a stack's Airflow."""

import json
import urllib.error
import urllib.request
from typing import Any

from epochline.local.airflow import ADMIN, Airflow


def token(airflow: Airflow, user: str = ADMIN, password: str | None = None) -> str:
    """A token of a user; of the administrator if no other is given."""
    login = {"username": user, "password": password or airflow.admin_password()}
    return str(call(airflow, "", "POST", "/auth/token", login)["access_token"])


def call(airflow: Airflow, token: str, method: str, path: str, body: Any = None) -> Any:
    """Send a request, and return the JSON of the answer; a refusal is an AssertionError."""
    request = urllib.request.Request(
        airflow.url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return None if response.status == 204 else json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None
