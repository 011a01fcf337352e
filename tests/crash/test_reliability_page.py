"""docs/reliability.md names an existing test for every row of the matrix."""

from __future__ import annotations

import re

from tests.crash.matrix import FAULTS
from tests.crash.reliability import BAR_SECONDS, ROOT, marked, parsed, rendered

PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_every_row_has_a_test_and_the_page_names_all_of_them() -> None:
    on_page = set(re.findall(r"^\| (F\d+) \| `([^`]+)`", PAGE, re.MULTILINE))

    assert on_page == marked(), "the page names a test that is gone, or leaves one out: run `make reliability`"
    assert {fault for fault, _test in on_page} == set(FAULTS)


def test_every_result_on_the_page_is_a_success_with_date_and_commit_within_the_bar() -> None:
    """I7: 180 s from the last fault until everything is committed."""
    results = parsed(PAGE)

    assert "not run yet" not in PAGE
    assert {one.outcome for one in results} <= {"passed"}
    assert all(one.date and one.commit for one in results)
    timed = {one.fault: one.recovery for one in results if one.recovery is not None}
    assert timed.keys() >= set(FAULTS) - {"F26", "F33"}, "these two need a human"
    assert max(timed.values()) < BAR_SECONDS


def test_the_page_is_what_the_suite_writes() -> None:
    """Read and written again it stays the same, so nobody has added a line of another form."""
    assert rendered({(one.fault, one.test): one for one in parsed(PAGE)}) == PAGE
