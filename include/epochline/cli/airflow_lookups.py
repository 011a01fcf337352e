"""Connections that Airflow keeps, in a secrets back end or in its metadata database, looked up by a process beside."""

import atexit
import json
import os
import select
import shlex
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from epochline.errors import ConfigurationError

_MODULE = "epochline.airflow.lookups"
_PATIENCE_SECONDS = 60
"""Importing Airflow takes two seconds; a secrets back end may wait for its server."""
_DECIDING = ("DATABASE__SQL_ALCHEMY_CONN", "SECRETS__BACKEND", "WORKERS__SECRETS_BACKEND")


def no_airflow() -> str | None:
    """Why no Airflow is asked; None if one is installed and configured here.

    Airflow without a configuration would make an empty database, so it is not imported.
    """
    if find_spec("airflow") is None:
        return "Airflow is not installed here"
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    file = Path(os.environ.get("AIRFLOW_CONFIG") or home / "airflow.cfg").expanduser()
    named = any(name.startswith(f"AIRFLOW__{key}") for key in _DECIDING for name in os.environ)
    if named or file.is_file():
        return None
    return f"no Airflow is configured here: there is no {file}, and no AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"


def in_airflow(connection_id: str) -> dict[str, Any]:
    """What the Airflow of this environment answers: fields with ``where``, or the places ``asked`` in vain.

    Raises:
        ConfigurationError: the process that imports Airflow ended, or gave no answer within a minute.
    """
    process = _process()
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    try:
        print(connection_id, file=process.stdin, flush=True)
        if select.select([process.stdout], [], [], _PATIENCE_SECONDS)[0]:
            return dict(json.loads(process.stdout.readline()))
    except (OSError, ValueError):
        pass
    process.kill()
    _process.cache_clear()
    raise ConfigurationError(
        f"Airflow could not be asked for connection {connection_id!r}: its process ended, or gave no answer within"
        f" {_PATIENCE_SECONDS} seconds. `{shlex.join([sys.executable, '-m', _MODULE])}` reads an id and shows why."
    )


@cache
def _process() -> subprocess.Popen[str]:
    # -P: no module of the current folder is imported.
    command = [sys.executable, "-P", "-m", _MODULE]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    atexit.register(process.communicate)
    return process
