"""Hand connection details to a Spark driver on this machine, in a file that only its owner can read.

The driver deletes the file as soon as it has read it. A killed task may leave a file that no driver read; the next task
that hands one over deletes it. Each task locks its folder, and the kernel frees the lock however the task dies.
"""

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
    r"|^AIRFLOW__OPENLINEAGE__TRANSPORT$"
)
"""Variables that give passwords to Airflow's own processes. A pipeline's code does not need them."""


@contextmanager
def credentials_file(connections: Mapping[str, Any]) -> Iterator[Path]:
    """Write what `epochline.spark.credentials.read_credentials` reads, and delete it at the end of the block."""
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
    """Give processes started in the block these variables, and none of Airflow's that hold passwords."""
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
    """Delete the folders of tasks that have ended. Folders of another account cannot be opened and stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
