"""The table of times that a script writes into CONTRIBUTING.md."""

import re
from pathlib import Path

from bench.times import CALLS, MAKE, table

ROOT = Path(__file__).parents[2]
ROW = r"^\| `([^`]+)` \| .* \| (?:\d+\.\d\d s|\d+ min \d+ s) \| \d{4}-\d\d-\d\d, `[0-9a-f]{7,}` \|$"


def test_every_target_whose_time_is_taken_is_one_of_make() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert set(MAKE) <= set(targets)


def test_the_page_has_the_time_of_every_command_whose_time_is_taken() -> None:
    rows = re.findall(ROW, (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)

    assert rows == [*(f"make {target}" for target in MAKE), *(f"epochline {call}" for call in CALLS)]


def test_a_command_that_was_not_run_keeps_its_row() -> None:
    former = (
        "| `make demo` | x | 1 min 5 s | 2026-01-01, `abcdef0` |\n| `make test` | y | 9.00 s | 2026-01-01, `abcdef0` |"
    )

    written = table({"make test": (83.0, "z")}, former)

    assert former.splitlines()[0] in written.splitlines()
    assert re.findall(ROW, written, re.MULTILINE) == ["make demo", "make test"]
    assert "| `make test` | z | 1 min 23 s |" in written
