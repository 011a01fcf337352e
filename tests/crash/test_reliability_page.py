"""docs/reliability.md names an existing test for every row of the matrix."""

from __future__ import annotations

import re

import pytest

from tests.crash.matrix import FAULTS
from tests.crash.reliability import ROOT, Result, marked, parsed, rendered

PAGE = (ROOT / "docs" / "reliability.md").read_text()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_row_has_a_test(fault: str) -> None:
    tests = {test for named, test in marked() if named == fault}
    on_page = set(re.findall(rf"^\| {fault} \| `([^`]+)`", PAGE, re.MULTILINE))

    assert tests
    assert on_page == tests, "the page names a test that is gone, or leaves one out: run `make reliability`"


def test_every_result_on_the_page_is_a_success_with_date_and_commit_within_the_bar() -> None:
    """I7: 180 s from the last fault until everything is committed."""
    results = parsed(PAGE)

    assert "not run yet" not in PAGE
    assert {one.outcome for one in results} <= {"passed"}
    assert all(one.date and one.commit for one in results)
    timed = {one.fault: one.recovery for one in results if one.recovery is not None}
    assert timed.keys() >= set(FAULTS) - {"F26", "F33"}, "these two need a human"
    assert max(timed.values()) < 180


def test_the_page_is_what_the_suite_writes() -> None:
    """Read and written again it stays the same, so nobody has added a line of another form."""
    results = {(one.fault, one.test): one for one in parsed(PAGE)}
    waiting = re.findall(r"^\| (F\d+) \| `([^`]+)` \| not run yet ", PAGE, re.MULTILINE)

    assert rendered(results | {key: Result(*key) for key in waiting}) == PAGE
