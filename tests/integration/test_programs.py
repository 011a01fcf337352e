"""The stateful example programs, run as a user runs them: each must say that its result is theirs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from epochline.cli import app
from epochline.cli.program_run import ProgramRun
from epochline.config.discovery import find
from epochline.local.stack import Stack
from epochline_examples.programs import PROGRAMS
from pipelines.order_query import ORDER_TOTALS
from tests.databases import query

ROOT = Path(__file__).parents[2]
SHORTEST = "batch_sql"


@pytest.fixture
def home(stack: Stack, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the stack that the programs run on: the session's own."""
    stack.up(("postgres", "kafka"), report=lambda _: None)
    monkeypatch.setenv("EPOCHLINE_HOME", str(stack.home.root))
    return str(stack.home.root)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == SHORTEST else pytest.mark.slow) for name in PROGRAMS]
)
def test_a_program_gives_what_the_documents_say_although_it_is_killed_on_the_way(name: str, home: str) -> None:
    """E10: input, commands, the fault of its document, result and verdict; the slow cases show E1 to E12 and C11."""
    done = subprocess.run(
        [sys.executable, "-c", "from epochline.cli import main; main()", "examples", "run", name],
        env={**os.environ, "EPOCHLINE_HOME": home}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "RIGHT" in done.stdout
    assert "WRONG" not in done.stdout
    assert "# killed at" in done.stdout
    files = PROGRAMS[name].files
    described = [json.loads(ZipFile(Path(home, "examples", name, file)).read("savepoint.json")) for file in files]
    assert [one["epoch_id"] for one in described] == list(range(1, len(files) + 1)), "C11"
    ranges = [(read["start"], read["until"]) for one in described for read in one["ranges"]]
    assert all(before[1] == after[0] for before, after in pairwise(ranges)), "C11: each says how far it read"
    assert [read[1] for read in ranges] == [head["next_offset"] for one in described for head in one["heads"]]


@pytest.mark.parametrize("name", ["order_totals", "order_windows"])
def test_no_column_of_the_sql_examples_needs_quotes(name: str, postgres_dsn: str) -> None:
    """X30: PostgreSQL itself is asked; it would quote ``timestamp``, ``user`` and ``userName``."""
    declared = find(name, ROOT / "dags" / "examples")
    names = {*declared.parsed_columns, *(column for table in declared.tables for column in table.columns or {})}

    quoted = query(postgres_dsn, "SELECT n FROM unnest(%s) n WHERE quote_ident(n) <> n", [*names, "timestamp"])

    assert quoted == [("timestamp",)]
    assert "user_name" in names
    assert "`" not in ORDER_TOTALS


def test_a_program_whose_result_is_another_says_so(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    ProgramRun(PROGRAMS[SHORTEST])._prepare()

    assert not ProgramRun(PROGRAMS[SHORTEST].model_copy(update={"files": ("nowhere.zip",)}))._verdict()

    said = capsys.readouterr().out
    assert "WRONG" in said
    assert "nowhere.zip" in said


def test_a_program_that_does_not_exist_is_wrong_use_and_the_list_names_them_all() -> None:
    runner = CliRunner(env={"COLUMNS": "200"})

    answer = runner.invoke(app, ["examples", "run", "nothing"])
    listed = runner.invoke(app, ["examples", "list"]).output

    assert answer.exit_code == 2
    assert "word_count" in answer.output
    assert [name for name in PROGRAMS if name not in listed] == []


RESTARTS = 3


def sent_without_state() -> Iterator[int]:
    """The numbers that the restart demo sends until its restarts are used up, if a variable keeps its position."""
    for _ in range(1 + RESTARTS):
        offset = 0
        while True:
            offset += 1
            yield offset
            if offset % 5 == 0:
                break  # the exception


def test_a_position_that_is_kept_in_a_variable_is_lost_at_every_restart() -> None:
    """E8, X15: the same code without the ledger: one to five, four times."""
    assert list(sent_without_state()) == [1, 2, 3, 4, 5] * (1 + RESTARTS)
