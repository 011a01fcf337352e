"""The times of `epochline run --from --to`, before any server is asked."""

import pytest
from typer.testing import CliRunner

from epochline.cli import app


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
