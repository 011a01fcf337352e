"""Tasks of a DAG file of the tests that fail, die or stand still where a file in the stack's home says."""

import os
from pathlib import Path

from epochline.failpoints import NAMED, RECORD, arm


def failing(name: str) -> None:
    """Arm what the file NAME-fails says, in the process of a task; other processes pass no failpoint."""
    home = Path(os.environ.get("EPOCHLINE_HOME", os.devnull))
    if (home / f"{name}-fails").exists():
        arm({NAMED: (home / f"{name}-fails").read_text(), RECORD: str(home / f"{name}-failed")})
