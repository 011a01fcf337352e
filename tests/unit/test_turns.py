"""`make test-ci` runs a third of its tests, and three turns are all of them."""

import re
from pathlib import Path

from tests.commands import python
from tests.turns import TURNS, turn_of, turn_of_commit

TESTS = """
import pytest

@pytest.mark.ci
@pytest.mark.parametrize("number", range(30))
def test_on_a_server(number): pass

def test_of_make_test(): pass
"""


def ran(folder: Path, *options: str) -> set[str]:
    plugins = ("-p", "tests.turns", "-p", "no:cacheprovider")
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = python("-m", "pytest", *plugins, "-v", *options, cwd=folder, variables=root)
    assert ("turn " in done.stdout) is bool(options)
    return set(re.findall(r"::(\S+) PASSED", done.stdout))


def test_three_turns_run_every_test_once_and_no_turn_runs_them_all(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = ci: on servers\n")

    by_turn = [ran(tmp_path, "--turn", str(turn + 1)) for turn in range(TURNS)]

    everything = ran(tmp_path)
    assert set().union(*by_turn) == everything
    assert set.intersection(*by_turn) == {"test_of_make_test"}
    assert sum(len(tests) - 1 for tests in by_turn) == len(everything) - 1 == 30
    assert all(len(tests) > 5 for tests in by_turn)
    assert ran(tmp_path, "--turn", "commit") in by_turn


def test_a_test_keeps_its_turn_and_a_commit_has_one() -> None:
    assert turn_of("tests/crash/test_f1_every_failpoint.py::test_any") == 3
    assert [turn_of_commit(commit) for commit in ("", "0", "78838d42", "ff")] == [1, 1, 3, 1]
