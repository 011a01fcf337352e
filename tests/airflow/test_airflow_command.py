"""`epochline airflow`: Airflow's own program on the stack's Airflow, as the runbook shows it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from epochline.local import credentials
from tests.airflow.conftest import Scheduler

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SECTION = re.search(r"^## Airflow's own commands$.*?^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = SECTION[1].splitlines() if SECTION else []
SHOWN = {
    "dags list": "access_log",
    "connections get epochline_kafka -o json": '"conn_type": "kafka"',
    "-- --help": "Usage: airflow",
}


def run(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the page in a shell that knows another Airflow."""
    program, *arguments = shlex.split(command)
    assert program == "epochline"
    environment = {**os.environ, "EPOCHLINE_HOME": str(home), "AIRFLOW_HOME": "/nowhere", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", "from epochline.cli import main; main()", *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_page_shows_the_commands_that_are_tested() -> None:
    assert [command.removeprefix("epochline airflow ") for command in COMMANDS] == list(SHOWN)


@pytest.mark.parametrize("command", COMMANDS)
def test_airflows_own_program_talks_to_the_stacks_airflow(scheduler: Scheduler, command: str) -> None:
    done = run(command, scheduler.stack.home.root)

    assert done.returncode == 0, done.stderr
    assert SHOWN[command.removeprefix("epochline airflow ")] in done.stdout
    assert credentials.require(scheduler.stack.home).epochline not in done.stdout + done.stderr


def test_airflows_exit_code_is_passed_on(scheduler: Scheduler) -> None:
    assert run("epochline airflow dags no-such-command", scheduler.stack.home.root).returncode == 2


def test_without_a_stack_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    done = run("epochline airflow dags list", tmp_path / "nothing")

    assert (done.returncode, done.stdout) == (1, "")
    assert "run `epochline up`" in done.stderr
    assert not (tmp_path / "nothing").exists()
