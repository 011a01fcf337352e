"""A plugin of pytest: ``--turn`` runs one of three parts of the tests on servers that `make test` leaves out.

All of them take an hour on two cores, and what takes an hour is run less. Every part holds a third of each matrix, so a
mistake that breaks a file's tests shows in each. The commit chooses the part: a run of the same commit is the same run.
`make test-all` runs every part.
"""

import subprocess
import zlib
from pathlib import Path

import pytest

TURNS = 3
_COMMIT = "commit"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    choices = [_COMMIT, *(str(turn) for turn in range(1, TURNS + 1))]
    parser.addoption("--turn", choices=choices, help="Of the tests marked `ci`, run this third; the commit may choose.")


def turn_of(test: str) -> int:
    """The turn of a test, by its id: other tests that come and go do not change it."""
    return zlib.crc32(test.encode()) % TURNS + 1


def turn_of_commit(commit: str) -> int:
    """The turn of a commit, by its hash in hexadecimal digits; an empty one stands for a checkout without a history."""
    return int(commit or "0", 16) % TURNS + 1


def chosen_turn(config: pytest.Config) -> int | None:
    """The turn that the command line asks for; None if it asks for every test."""
    asked = config.getoption("turn")
    if asked != _COMMIT:
        return None if asked is None else int(asked)
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return turn_of_commit(subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip())


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say how to run the same tests again."""
    turn = chosen_turn(config)
    return None if turn is None else f"turn {turn} of {TURNS}: `make test-ci TURN={turn}` runs the same tests"


@pytest.hookimpl(trylast=True)  # tests/tiers.py marks them first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked ``ci`` whose turn it is not."""
    turn = chosen_turn(config)
    if turn is None:
        return
    waiting = [item for item in items if item.get_closest_marker("ci") and turn_of(item.nodeid) != turn]
    if waiting:
        config.hook.pytest_deselected(items=waiting)
        left = {*waiting}
        items[:] = [item for item in items if item not in left]
