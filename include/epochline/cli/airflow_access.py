"""Which Airflow the commands ask, and as whom: the one that EPOCHLINE_AIRFLOW_URL names, else the embedded stack's."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from epochline.errors import ConfigurationError, StackError

if TYPE_CHECKING:
    from epochline.cli.airflow_api import AirflowApi
    from epochline.local.stack import Stack

URL = "EPOCHLINE_AIRFLOW_URL"
_TOKEN, _USER, _PASSWORD = "EPOCHLINE_AIRFLOW_TOKEN", "EPOCHLINE_AIRFLOW_USER", "EPOCHLINE_AIRFLOW_PASSWORD"
TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowAccess:
    """The address of an Airflow, and a token or a login. ``repr`` hides the secrets."""

    url: str
    where: str
    """What names it: a variable, or the embedded stack with its home."""
    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    embedded: bool = False

    @property
    def credential(self) -> str:
        """The token or the login, as messages name it."""
        if self.embedded:
            return f"login {self.user}"
        return f"token of {_TOKEN}" if self.token else f"login {self.user} of {_USER} and {_PASSWORD}"


def airflow_access() -> AirflowAccess:
    """The Airflow that ``EPOCHLINE_AIRFLOW_URL`` names, else that of the embedded stack.

    Raises:
        ConfigurationError: the variable is no address of an Airflow, or there is no token and no login for it.
        StackError: no variable is set, and the stack's Airflow does not run.
    """
    url = os.environ.get(URL, "").strip()
    if url:
        return _named(url.rstrip("/"))
    from epochline.local.stack import Stack

    stack = Stack()
    if stack.airflow.pids["api-server"] is None:
        raise StackError(
            f"no Airflow runs in {stack.home}; start it with `epochline up`. To ask an Airflow of your own, set {URL}."
        )
    return access_to(stack)


def access_to(stack: "Stack") -> AirflowAccess:
    """The Airflow of an embedded stack, as its user `admin`."""
    from epochline.local.airflow import ADMIN

    password, where = stack.airflow.admin_password(), f"the embedded stack in {stack.home}"
    return AirflowAccess(url=stack.airflow.url, where=where, user=ADMIN, password=password, embedded=True)


def airflow_api() -> "AirflowApi":
    """The API of that Airflow. Raises as `airflow_access`; nothing is asked before its first use."""
    from epochline.cli.airflow_api import AirflowApi

    return AirflowApi(airflow_access(), TIMEOUT_SECONDS)


def _named(url: str) -> AirflowAccess:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ConfigurationError(
            f"{URL} has to be the address of Airflow's pages, such as https://HOST/airflow, without a login in it."
        )
    token, user, password = _secret(_TOKEN), os.environ.get(_USER, ""), _secret(_PASSWORD)
    if not token and not (user and password):
        raise ConfigurationError(
            f"{URL} names {url}, and there is neither a token nor a login for it. Set {_TOKEN}, or {_USER} and"
            f" {_PASSWORD}; {_TOKEN}_FILE and {_PASSWORD}_FILE name a file instead."
        )
    return AirflowAccess(url=url, where=URL, token=token, user=user, password=password)


def _secret(name: str) -> str:
    """The value of a variable, or of the file that the variable with ``_FILE`` behind its name names."""
    file = os.environ.get(f"{name}_FILE")
    if not file:
        return os.environ.get(name, "").strip()
    try:
        return Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}_FILE names {file}, which cannot be read: {type(error).__name__}.") from None
