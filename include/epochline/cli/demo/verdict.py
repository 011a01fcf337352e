"""The verdict: a program that imports nothing of epochline compares the logs with the target."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from epochline.local.home import project_root


def verdict(logs: Sequence[Path], service: str, environment: Mapping[str, str]) -> int:
    """Run ``access_log_check`` on every log that was fed. Its output goes to this process's output.

    Args:
        logs: files of the produced lines.
        service: name of the target database in ``PGSERVICEFILE``.
        environment: ``PGSERVICEFILE`` and ``PGPASSFILE``.

    Returns:
        0: the target holds exactly what was produced. 1: it does not. 2: the comparison failed.
    """
    named = [argument for log in logs for argument in ("--log", str(log))]
    command = [sys.executable, "-m", "epochline_examples.access_log.check", *named, "--service", service]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    sys.stdout.flush()
    return subprocess.run(
        command, env={**kept, **environment, "PYTHONPATH": str(project_root() / "include")}, check=False
    ).returncode
