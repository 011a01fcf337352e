"""What the README tells a newcomer to run, in a home of its own: the demo, and then the first ten minutes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochline.local.stack import Stack
from epochline_examples.access_log.maker import lines
from tests.airflow import rest
from tests.browser import Visit, needs_browser, visit
from tests.conftest import throw_away
from tests.ports import choose_ports

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
LINES = 4_000


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    # Open to the account that runs PostgreSQL for root; pytest's own folders are not.
    home = Path(tempfile.mkdtemp(prefix="epochline-tests-", dir="/tmp"))
    stack = Stack(home)
    choose_ports(stack.home)
    try:
        yield home
    finally:
        throw_away(stack)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def terminal(home: Path) -> Callable[[str], str]:
    environment = {
        **os.environ, "EPOCHLINE_HOME": str(home), "COLUMNS": "300", "PYTHONPATH": str(ROOT / "include"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def demo(terminal: Callable[[str], str]) -> str:
    return terminal(f"epochline demo --lines {LINES}")


@pytest.fixture(scope="module")
def killed(demo: str) -> int:
    """The epoch whose driver the demo killed: the first one in which it found a moment for it."""
    found = re.search(r"killed: the Spark driver of epoch (\d+), attempt 1 \(process \d+, SIGKILL\)", demo)
    assert found is not None, demo
    return int(found[1])


def test_the_demo_kills_a_driver_and_each_line_takes_effect_once(demo: str, killed: int) -> None:
    """C14: Airflow, Spark and Kafka as a user starts them; SIGKILL hits a driver whose parts are in staging."""
    assert f"epoch {killed}: COMMITTED, attempt 2" in demo
    # More than it was asked for where no driver could be killed between two parts of those.
    assert re.search(r"EXACT: each of \d+ lines took effect exactly once", demo) is not None, demo


@needs_browser
def test_the_pages_show_the_epoch_whose_driver_was_killed(
    chromium: Browser, home: Path, killed: int, picture: Callable[[Visit, str], None]
) -> None:
    """The documents' pictures (`--write-pictures docs/pictures`): within Airflow, after the demo's kill and recovery."""
    airflow = Stack(home).airflow
    with visit(chromium, airflow.url, rest.token(airflow)) as seen:
        seen.open("plugin/epochline")
        row = seen.frame.get_by_role("row", name="access_log")
        row.get_by_text("caught up").wait_for()
        assert not seen.overflows()
        picture(seen, "pipelines")

        seen.open("dags/access_log/plugin/epochline_pipeline")
        seen.frame.get_by_role("heading", name="Overview").wait_for()
        seen.page.locator("a[href*='/runs/'][href*='/tasks/plan_epoch']").first.wait_for()
        picture(seen, "pipeline")

        seen.frame.get_by_role("link", name=f"epoch {killed}", exact=True).first.click()
        seen.frame.get_by_text("committed after 2 tries").first.wait_for()
        attempts = seen.frame.get_by_role("group", name="Attempts")
        assert "signal 9" in attempts.inner_text()
        picture(seen, "epoch")


@pytest.mark.usefixtures("demo")
def test_the_first_ten_minutes_are_as_the_readme_says(terminal: Callable[[str], str], tmp_path: Path) -> None:
    """U1: each command of the README's block, on the stack that the demo left."""
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(line + b"\n" for line in lines(1_000, 3)))
    block = re.search(r"## The first ten minutes\n\n```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    commands = [line.split("  # ")[0].strip() for line in block[1].splitlines()]
    assert (commands[0], commands[-1]) == ("make up", "make down")
    asked = [command for command in commands if command.startswith("epochline ")]

    said = {command.split()[1]: terminal(command.replace("/path/to/access.log", str(log))) for command in asked}

    assert list(said) == ["status", "feed", "plan", "trigger", "ledger", "sql"]
    assert "running" in said["status"]
    assert "connection spark_default: the embedded stack in " in said["status"]
    assert "is committed: " in said["trigger"] or "nothing to read" in said["trigger"]
    assert "COMMITTED" in said["ledger"]
    assert "requests" in said["sql"]
