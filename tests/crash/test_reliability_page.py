"""docs/reliability.md names, for every row of the matrix, an existing test or the reason for its absence."""

from __future__ import annotations

import re

import pytest

from tests.crash.matrix import FAULTS, NOT_HERE
from tests.crash.reliability import ROOT, Result, marked, parsed, rendered

PAGE = (ROOT / "docs" / "reliability.md").read_text()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_row_has_a_test_or_the_reason_why_not(fault: str) -> None:
    tests = {test for named, test in marked() if named == fault}
    on_page = set(re.findall(rf"^\| {fault} \| `([^`]+)`", PAGE, re.MULTILINE))

    assert tests or fault in NOT_HERE
    assert on_page == tests, "the page names a test that is gone, or leaves one out: run `make reliability`"
    assert on_page or NOT_HERE.get(fault, "-") in PAGE


def test_every_result_on_the_page_is_a_success_with_date_and_commit_within_the_bar() -> None:
    """I7: 180 s from the last fault until everything is committed."""
    results = parsed(PAGE)

    assert "not run yet" not in PAGE
    assert {one.outcome for one in results} <= {"passed"}
    assert all(one.date and one.commit for one in results)
    timed = {one.fault: one.recovery for one in results if one.recovery is not None}
    assert timed.keys() >= set(FAULTS) - set(NOT_HERE) - {"F26", "F33"}, "these two need a human"
    assert max(timed.values()) < 180


def test_the_page_is_what_the_suite_writes() -> None:
    """Written, read and written again it stays the same: nobody can have added a line of another form."""
    results = {(one.fault, one.test): one for one in parsed(PAGE)}
    waiting = re.findall(r"^\| (F\d+) \| `([^`]+)` \| not run yet ", PAGE, re.MULTILINE)

    assert rendered(results | {key: Result(*key) for key in waiting}) == PAGE
