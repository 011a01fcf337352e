"""The times of `epochline run --from --to`, before any server is asked."""

import stat
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epochline.cli import app, execution


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "2026-03-01"], "give both"),
        (["--to", "2026-03-01"], "give both"),
        (["--from", "yesterday", "--to", "2026-03-01"], "yesterday"),
        (["--from", "2026-03-02", "--to", "2026-03-01"], "start < until"),
        (["--from", "2026-03-01", "--to", "2026-03-02", "--until-caught-up"], "a backfill is one epoch"),
    ],
    ids=["no end", "no begin", "no time", "backward", "until caught up"],
)
def test_an_interval_that_cannot_be_meant_is_wrong_use(arguments: list[str], said: str) -> None:
    answer = CliRunner().invoke(app, ["run", "orders", *arguments], env={"COLUMNS": "200"})

    assert answer.exit_code == 2
    assert said in answer.output


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
