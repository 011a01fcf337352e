"""A newcomer's first hour: a pipeline of their own, a wrong declaration, a poison record, a mended parse, a requeue."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from epochline.local.stack import Stack
from tests.databases import query

ROOT = Path(__file__).parents[2]
Terminal = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "dags").mkdir(parents=True)
    return folder


@pytest.fixture
def terminal(stack: Stack, kafka_bootstrap: str, project: Path) -> Terminal:
    path = os.pathsep.join([str(ROOT / "include"), str(project / "spark_jobs")])
    environment = {
        **os.environ, "EPOCHLINE_HOME": str(stack.home.root), "EPOCHLINE_PROJECT": str(project), "COLUMNS": "300",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": path, "PYTEST_ADDOPTS": "",
    }  # fmt: skip

    def run(command: str, code: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=project, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


def mend(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_first_hour_ends_with_each_record_once(terminal: Terminal, project: Path, stack: Stack) -> None:
    """U7, G3: each command prints what the next one needs."""
    said = terminal(
        'epochline init visits --parser function --columns "city text, visitors bigint" --table visits_of_newcomer'
    )
    wrote = re.findall(r"^wrote (\S+)$", said, re.MULTILINE)
    assert {Path(one).name for one in wrote} == {
        "visits.py", "test_visits.py", "visits_sample.txt",
    }  # fmt: skip
    declaration, function = project / "dags" / "visits.py", project / "spark_jobs" / "pipelines" / "visits.py"
    assert "2 passed" in terminal("pytest -q -p no:cacheprovider tests")

    # A wrong declaration: its place, what was meant, and where the reference is. The other commands go on.
    mend(declaration, "bigint", "bigit")
    said = terminal("epochline validate visits", code=1)
    assert re.search(r"dags/visits\.py:\d+: ", said)
    assert "bigit" in said
    assert "docs/reference.md#" in said
    mend(declaration, "bigit", "bigint")
    assert "valid: visits" in terminal("epochline validate visits")

    # A column that the parse does not give is found without a record.
    mend(function, '"visitors"', '"guests"')
    assert "visitors" in terminal("epochline validate visits", code=1)
    mend(function, '"guests"', '"visitors"')

    # A topic that is not there yet: refused by the plan at a terminal as by that of a run.
    terminal("epochline migrate")
    assert "Kafka has no topic visits" in terminal("epochline plan visits", code=1)
    assert "topic missing" in terminal("epochline lag visits --fail-above 1000", code=3)

    # A poison record: seen before anything is written, set aside by the epoch, and kept with its bytes.
    (project / "visits.txt").write_text("rome;3\nparis,4\n")
    terminal("epochline feed visits.txt --topic visits --partitions 1")
    said = terminal("epochline preview visits")
    assert "rome" in said
    assert "does not have 2 fields" in said
    assert query(stack.postgres.dsn(), "SELECT count(*) FROM epochline.epochs WHERE pipeline = 'visits'") == [(0,)]
    said = terminal("epochline run visits --master 'local[1]'")
    assert "2 records read, 1 passed, 0 skipped, 1 quarantined" in said
    assert "1 (50.0%)" in terminal("epochline list")
    said = terminal("epochline quarantine visits")
    assert "paris,4" in said
    assert "does not have 2 fields" in said
    requeue = said.strip().splitlines()[-1]
    assert requeue.startswith("epochline requeue visits ")
    assert "paris,4" in terminal("epochline quarantine visits --show visits/0/1")

    # The parse is mended, and the record is requeued by the command that was named.
    mend(function, 'split(";")', 'replace(",", ";").split(";")')
    assert "2 passed" in terminal("pytest -q -p no:cacheprovider tests")
    terminal(f"{requeue.replace('…', 'mended')} --yes")
    assert "was requeued" in terminal("epochline quarantine visits")

    rows = "SELECT city, visitors FROM visits_of_newcomer ORDER BY city"
    assert query(stack.postgres.dsn(), rows) == [("paris", 4), ("rome", 3)]
    assert "nothing to read" in terminal("epochline run visits --master 'local[1]'")
    assert re.search(r"visits +caught up", terminal("epochline list"))
    assert terminal("epochline lag visits --fail-above 0")
