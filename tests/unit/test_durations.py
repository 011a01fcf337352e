"""The file of durations: every test and every fixture, whichever process they were in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

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
def test_every_test_and_every_fixture_is_in_the_file_and_ci_prints_it(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_some.py").write_text(OF_EACH_KIND)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.durations", "-n", processes, "--durations-file", "out/durations"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "CI": "true"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    lines = (tmp_path / "out" / "durations").read_text().splitlines()
    fields = [line.split("\t") for line in lines]
    seconds = {(kind, name.rpartition("::")[2]): float(took) for took, kind, _, name in fields}
    assert {("test", "test_one"), ("test", "test_two"), ("fixture", "server"), ("fixture", "client")} <= seconds.keys()
    assert seconds["fixture", "server"] >= 0.3 > seconds["fixture", "client"]
    assert seconds["test", "test_one"] >= 0.5
    assert set(lines) <= set(done.stdout.splitlines())
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1]
