"""Requests to the pages as a browser or a program sends them: a user's token, forms, and no redirect followed."""

import json
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import urlencode

from epochline.airflow.pages.plugin import PREFIX
from tests.airflow import rest
from tests.airflow.conftest import Scheduler


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def token(self) -> str:
        """The signed preview in the form that acts; empty if there is no form."""
        found = re.search(r'name="token" value="([^"]*)"', self.text)
        return "" if found is None else unescape(found[1])


class _StayHere(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_StayHere)


def ask(
    shown: Scheduler, path: str, token: str | None = None, method: str = "GET", form: Any = None, **headers: str
) -> Answer:
    """Send a request. A form is sent as a browser does, from the pages' own origin unless the headers say otherwise."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None
    if form is not None:
        method, data = "POST", urlencode(form).encode()
        headers = {"Origin": shown.stack.airflow.url, **headers}
    request = urllib.request.Request(
        f"{shown.stack.airflow.url}/{PREFIX}{path}", headers=headers, method=method, data=data
    )
    try:
        with _OPENER.open(request, timeout=30) as response:
            return Answer(response.status, _lower(response.headers), response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _lower(error.headers), error.read().decode())


def token_of(shown: Scheduler, user: str) -> str:
    file = shown.stack.home.path("airflow", "passwords.json")
    passwords = json.loads(file.read_text())
    if user not in passwords:
        # Each `up` writes the file again, with the stack's own user alone. Airflow reads the file at each login.
        passwords[user] = secrets.token_hex(8)
        file.write_text(json.dumps(passwords))
    return rest.token(shown.stack.airflow, user, passwords[user])


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
