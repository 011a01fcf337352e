"""How a Spark driver on this machine learns how to connect: by a file that only its owner reads (trap 17).

The file is deleted by the driver as soon as it is read. What a killed task left of one that no driver read is deleted
by the next task that hands one over: a folder is locked by the task that made it, and the kernel frees a lock however
its holder dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PREFIX = "epochline-job-"
_SECRETS = re.compile(
    r"^AIRFLOW_(CONN|VAR)_|^_?AIRFLOW__.*(SECRET|PASSWORD|TOKEN|FERNET_KEY|SQL_ALCHEMY_CONN|RESULT_BACKEND|BROKER_URL)"
)
"""Variables by which Airflow's own processes learn passwords; a pipeline's code has no use for them."""


@contextmanager
def credentials_file(connections: Mapping[str, Any]) -> Iterator[Path]:
    """Write a credentials file that is gone after the block, whoever dies on the way.

    Args:
        connections: what `epochline.spark.credentials.read_credentials` reads.
    """
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / "credentials.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({**connections, "delete_after_reading": True}))
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def environment_of_job(**variables: str) -> Iterator[None]:
    """For what is started in the block: these variables, and none by which Airflow's processes learn passwords."""
    before = dict(os.environ)
    for name in before:
        if _SECRETS.match(name):
            del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _sweep() -> None:
    """Delete the folders of tasks that are gone; another account's cannot be opened and are left to it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
