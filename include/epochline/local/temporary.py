"""A PostgreSQL for the time of a test run."""

import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochline.local.home import FALLBACK
from epochline.local.stack import Stack

_OF_TESTS = {"epochline.failpoints": "allowed"}


@contextmanager
def temporary_postgres() -> Iterator[str]:
    """Start a PostgreSQL in a temporary folder. Gives the superuser's libpq URL; server and folder end with the block.

    Raises `StackError` if the server does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="epochline-pytest-"))
    try:
        # The rows outlive no power cut, so nothing waits for the disk.
        stack = Stack(folder, postgres_settings={"fsync": "off", "full_page_writes": "off", **_OF_TESTS})
        stack.home.create()
        # Not the usual port, which all workers of a parallel run would find free at the same moment.
        stack.home.ports.write_text(json.dumps({"postgres": random.choice(FALLBACK)}))  # noqa: S311 - no secret
        try:
            stack.up(parts=("postgres",), report=lambda _: None)
            yield stack.postgres.superuser_dsn
        finally:
            stack.postgres.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
