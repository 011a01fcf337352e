"""Every file and command of the tutorial, in a project of its own, on real servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from epochline.local.stack import Stack
from tests.databases import query

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def tutorial(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project with the tutorial's files, and everything that its commands printed."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    project = tmp_path_factory.mktemp("tutorial")
    for name, content in FILE.findall(text):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    environment = {
        **os.environ,
        "EPOCHLINE_HOME": str(stack.home.root),
        "EPOCHLINE_PROJECT": str(project),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "include"),
        "COLUMNS": "200",
    }
    printed = ""
    for step in STEP.findall(text):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step],
            cwd=project, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{step}\n{done.stdout}\n{done.stderr}"
        printed += done.stdout + done.stderr
    return project, printed


def test_each_order_is_there_once_and_the_line_that_is_none_is_kept(tutorial: tuple[Path, str], stack: Stack) -> None:
    """U2, G3: after the tutorial's steps, the second run of which had nothing to read."""
    dsn = stack.postgres.dsn()
    orders = query(dsn, "SELECT id, customer, amount::text FROM orders ORDER BY id")
    money = query(dsn, "SELECT customer, amount::text FROM money_per_customer ORDER BY customer")
    kept = query(dsn, "SELECT value FROM epochline.quarantine WHERE pipeline = 'orders'")

    assert orders == [(1, "ada", "12.50"), (2, "grace", "30.00"), (3, "ada", "7.25")]
    assert money == [("ada", "19.75"), ("grace", "30.00")]
    assert [bytes(value) for (value,) in kept] == [b"this is no order"]
    assert query(dsn, "SELECT count(*) FROM epochline.epochs WHERE pipeline = 'orders'") == [(1,)]


def test_a_parse_of_ones_own_is_tested_without_servers(tutorial: tuple[Path, str]) -> None:
    project, _ = tutorial

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=project,
        # A reader's pytest is not told what this one is.
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'include'}:{project / 'spark_jobs'}", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
