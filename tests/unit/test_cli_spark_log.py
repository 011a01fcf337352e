"""Spark's log of an epoch that the command line runs, where there is no stack to keep it."""

import stat
import tempfile
from pathlib import Path

import pytest

from epochline.cli import execution


@pytest.mark.usefixtures("no_stack")
def test_the_log_is_one_file_that_nobody_else_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-4: what a pipeline's own code says in a traceback stands in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    execution.spark_log.cache_clear()

    log = execution.spark_log()

    assert log.parent == tmp_path
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert execution.spark_log() == log
    execution.spark_log.cache_clear()
