"""docs/reliability.md and its data name an existing test for every row of the matrix."""

from tests.crash.matrix import FAULTS
from tests.crash.reliability import BAR_SECONDS, ROOT, data_of, marked, parsed, rendered, written

PAGE = ROOT / "docs" / "reliability.md"
DATA = data_of(PAGE).read_text()


def test_every_row_has_a_test_and_the_data_name_all_of_them() -> None:
    named = {(result.fault, result.test) for result in parsed(DATA)}

    assert named == marked(), "the data name a test that is gone, or leave one out: run `make reliability`"
    assert {fault for fault, _test in named} == set(FAULTS)


def test_every_result_is_a_success_with_date_and_commit_within_the_bar() -> None:
    """I7: 180 s from the last fault until everything is committed."""
    results = parsed(DATA)

    assert {result.outcome for result in results} == {"passed"}
    assert all(result.date and result.commit for result in results)
    timed = {result.fault: result.recovery for result in results if result.recovery is not None}
    assert timed.keys() >= set(FAULTS) - {"F26", "F33"}, "these two need a human"
    assert max(timed.values()) < BAR_SECONDS


def test_the_page_and_its_data_are_what_the_suite_writes() -> None:
    """Read and written again they stay the same, so nobody has added a line of another form."""
    assert written(parsed(DATA)) == DATA
    assert rendered(parsed(DATA)) == PAGE.read_text()
