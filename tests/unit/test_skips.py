"""Runs of the tests: a skip that nobody listed fails them, and a file has every test's and fixture's duration."""

import subprocess
from pathlib import Path

import pytest

from tests.commands import python
from tests.skips import LISTED


def ran(folder: Path, plugin: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A run in CI of the tests in a folder, with a plugin of these tests."""
    variables = {"PYTHONPATH": str(Path(__file__).parents[2]), "CI": "true"}
    return python("-m", "pytest", "-p", plugin, *options, cwd=folder, check=False, variables=variables)


@pytest.mark.parametrize(("reason", "code"), [(LISTED[0], 0), ("no PgBouncer on this machine", 1)])
@pytest.mark.parametrize("processes", ["0", "2"])
def test_an_unlisted_skip_fails_the_run_and_is_named(tmp_path: Path, processes: str, reason: str, code: int) -> None:
    (tmp_path / "test_some.py").write_text(
        f"import pytest\n\ndef test_one():\n    pytest.skip({reason!r})\n\ndef test_two():\n    pass\n"
    )

    done = ran(tmp_path, "tests.skips", "-n", processes, "--strict-skips")

    assert done.returncode == code, done.stdout
    assert f"1 skipped, {code} for a reason not in tests/skips.py" in done.stdout
    assert ("test_some.py::test_one: no PgBouncer" in done.stdout) is bool(code)


OF_EACH_KIND = """
import time
import pytest

@pytest.fixture(scope="session")
def server():
    time.sleep(0.3)

@pytest.fixture
def client(server):
    pass

def test_one(client):
    time.sleep(0.2)

def test_two():
    raise AssertionError
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_every_test_and_every_fixture_is_in_the_file_and_ci_prints_the_sums(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_some.py").write_text(OF_EACH_KIND)

    done = ran(tmp_path, "tests.durations", "-n", processes, "--durations-file", "out/durations")

    lines = (tmp_path / "out" / "durations").read_text().splitlines()
    fields = [line.split("\t") for line in lines]
    seconds = {(kind, name.rpartition("::")[2]): float(took) for took, kind, _, name in fields}
    assert {("test", "test_one"), ("test", "test_two"), ("fixture", "server"), ("fixture", "client")} <= seconds.keys()
    assert seconds["fixture", "server"] >= 0.3 > seconds["fixture", "client"]
    assert seconds["test", "test_one"] >= 0.5
    assert [line.split("\t")[1:] for line in done.stdout.splitlines() if "\t" in line] == [["2", "test_some.py"]]
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1]
