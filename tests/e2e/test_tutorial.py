"""Every file and command of the tutorial, in a project of its own, on real servers."""

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


def run(*command: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def project(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    project = tmp_path_factory.mktemp("tutorial")
    for name, content in FILE.findall(text):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for step in STEP.findall(text):
        run(
            "bash", "-euo", "pipefail", "-c", step, folder=project,
            EPOCHLINE_HOME=str(stack.home.root), EPOCHLINE_PROJECT=str(project), COLUMNS="200",
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", PYTHONPATH=str(ROOT / "include"),
        )  # fmt: skip
    return project


@pytest.mark.usefixtures("project")
def test_each_order_is_there_once_and_the_line_that_is_no_order_is_kept(stack: Stack) -> None:
    """U2, G3: after the tutorial's steps, the second run of which had nothing to read."""
    dsn = stack.postgres.dsn()
    orders = query(dsn, "SELECT id, customer, amount::text FROM orders ORDER BY id")
    money = query(dsn, "SELECT customer, amount::text FROM money_per_customer ORDER BY customer")
    kept = query(dsn, "SELECT value FROM epochline.quarantine WHERE pipeline = 'orders'")

    assert orders == [(1, "ada", "12.50"), (2, "grace", "30.00"), (3, "ada", "7.25")]
    assert money == [("ada", "19.75"), ("grace", "30.00")]
    assert [bytes(value) for (value,) in kept] == [b"this is no order"]
    assert query(dsn, "SELECT count(*) FROM epochline.epochs WHERE pipeline = 'orders'") == [(1,)]


@pytest.mark.usefixtures("project")
def test_an_upsert_keeps_the_newest_row_of_a_key_and_a_tombstone_deletes_its_row(stack: Stack) -> None:
    """U2: the newest city comes from a nested object, and the tombstone's id from its key."""
    dsn = stack.postgres.dsn()

    assert query(dsn, "SELECT id, name, city FROM customers") == [(1, "Ada", "Paris")]
    counts = "SELECT records_read, records_passed FROM epochline.epochs WHERE pipeline = 'customers'"
    assert query(dsn, counts) == [(4, 4)]


@pytest.mark.usefixtures("project")
def test_a_pipeline_in_a_dag_of_ones_own_is_one_of_the_command_line_too(stack: Stack) -> None:
    assert query(stack.postgres.dsn(), "SELECT id, amount::text FROM payments ORDER BY id") == [
        (1, "12.50"),
        (2, "30.00"),
    ]


def test_a_parse_is_tested_without_servers_and_whole_epochs_on_postgres(stack: Stack, project: Path) -> None:
    """A reader's pytest knows nothing of the options of this one."""
    path = f"{ROOT / 'include'}:{project / 'spark_jobs'}"
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")

    said = run(
        *command, folder=project, PYTHONPATH=path, PYTEST_ADDOPTS="", EPOCHLINE_PROJECT=str(project),
        EPOCHLINE_TEST_POSTGRES=stack.postgres.superuser_dsn,
    )  # fmt: skip

    assert "2 passed" in said
