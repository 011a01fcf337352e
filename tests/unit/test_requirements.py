"""Every requirement has a test that CI runs, and docs/data/requirements.tsv names it."""

import pytest

from tests.requirements import DATA, PAGE, CitingTest, all_tests, citing_tests, problems, written

MODULE = '''
"""Some tests (X1)."""

def test_one(): """A1, B2 to B4: what it shows (C5)."""

@pytest.mark.slow
def test_two(): """A2."""

@pytest.mark.fault("F9")
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_three(): """Of no requirement."""

class TestFour:
    """A1."""

    def test_four(self): """Nothing."""
'''
LINES = "- **A1** It works.\n- **A2** It works too.\n"
HEADER = written("", [])


def test_every_requirement_has_a_test_that_ci_runs_and_the_data_name_it() -> None:
    assert problems(PAGE.read_text(), DATA.read_text(), all_tests()) == []


def test_ids_are_found_in_docstrings_and_marks() -> None:
    one, two, three, four = citing_tests(MODULE, "tests/test_some.py")

    assert one.cites == {"X1": 2, "A1": 0, "B2": 0, "B3": 0, "B4": 0, "C5": 0}
    assert (two.cites, two.tier) == ({"X1": 2, "A2": 0}, "slow")
    assert (three.cites, three.tier) == ({"X1": 2, "F9": 0}, "default")
    assert four.cites == {"X1": 2, "A1": 1}


def test_of_several_tests_the_one_that_cites_the_id_itself_is_named_first() -> None:
    data = written(LINES, list(citing_tests(MODULE, "tests/test_some.py")))

    assert "A1\ttests/test_some.py::test_one tests/test_some.py::test_four\t0\tmake test\n" in data
    assert "A2\ttests/test_some.py::test_two\t0\tmake test-all\n" in data


@pytest.mark.parametrize(
    ("tests", "row", "said"),
    [
        ([], "", "A1: no test cites it"),
        ([CitingTest("t.py", "test_two", {"A1": 0, "A2": 0}, "slow")], "", "A2: CI runs none of its tests"),
        ([CitingTest("t.py", "test_one", {"A1": 0, "A2": 0}, "default")], "", "A1: the data name no test"),
        (
            [CitingTest("t.py", "test_one", {"A1": 0}, "default")],
            "A1\tt.py::test_gone\t0\tmake test\n",
            "A1: t.py::test_gone does not exist or does not cite it",
        ),
        ([], "A9\tt.py::test_one\t0\tmake test\n", "A9: the data name it"),
    ],
    ids=["no test", "slow alone", "not named", "gone", "not defined"],
)
def test_what_is_wrong_with_the_page_or_its_data_is_named(tests: list[CitingTest], row: str, said: str) -> None:
    assert any(one.startswith(said) for one in problems(LINES, HEADER + row, tests))


def test_what_ci_does_not_run_may_say_so() -> None:
    tests = [CitingTest("t.py", "test_one", {"A1": 0, "A2": 0}, "long")]
    page = LINES.replace("works", "works (long suite)")

    assert problems(page, written(page, tests), tests) == []
