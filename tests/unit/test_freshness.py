"""A measured result counts as long as the code that it speaks of is that of its run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import git
from tests.crash.freshness import TABLES, Measured, marked, of_a_fault, of_tables, stale, told
from tests.crash.matrix import FAULTS, SPEAKS_OF
from tests.crash.reliability import ROOT, Result, parsed, rendered, written

TEST = "tests/crash/test_some.py"
CODE = "include/epochline/coordinator/commit.py"
BEFORE = '"""What it does."""\n\n\ndef f():\n    return 1\n'
Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Commits a text to a repository with a product and a test; gives the commit."""

    def write(path: str, text: str) -> str:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "--allow-empty", "-qm", "a change")
        return git(tmp_path, "rev-parse", "--short=10", "HEAD").strip()

    git(tmp_path, "init", "-q")
    write(CODE, BEFORE)
    write(TEST, BEFORE)
    return write


def of(commit: str) -> Measured:
    return of_a_fault(Result("F11", f"{TEST}::test_one", 1, "passed", None, "2026-01-01", commit))


OTHER = "def f():\n    return 2\n"


@pytest.mark.parametrize(
    ("changes", "is_stale"),
    [
        pytest.param([(CODE, OTHER)], True, id="the code of its fault changes"),
        pytest.param([(TEST, OTHER)], True, id="its test changes"),
        pytest.param([("include/epochline/postgres/queries/new.sql", "SELECT 1")], True, id="a statement is added"),
        pytest.param([(CODE, BEFORE.replace("it does", "it did") + "    # always\n")], False, id="words alone change"),
        pytest.param([("include/epochline/cli/main.py", OTHER)], False, id="another folder changes"),
        pytest.param([("docs/page.md", "text")], False, id="a page changes"),
        pytest.param([(CODE, OTHER), (CODE, BEFORE)], False, id="a change is taken back"),
    ],
)
def test_a_line_is_stale_once_what_it_speaks_of_changes_and_stays_fresh_otherwise(
    write: Write, tmp_path: Path, changes: list[tuple[str, str]], is_stale: bool
) -> None:
    commit = write("README.md", "as it was")

    for path, text in changes:
        write(path, text)

    assert [why for _, why in stale([of(commit)], tmp_path)] == [f"changed since {commit}: {path}"] * is_stale


def test_a_stale_line_is_marked_in_the_data_and_on_the_page_until_it_is_measured_again(
    write: Write, tmp_path: Path
) -> None:
    commit = write("README.md", "as it was")
    lines = [Result(fault, f"{TEST}::test_one", 1, "passed", 1.0, "2026-01-01", commit) for fault in FAULTS]
    write("include/epochline/coordinator/commit.py", OTHER)

    older = marked(lines, stale(map(of_a_fault, lines), tmp_path))

    assert set(parsed(written(older))) == set(older)
    assert {line.older for line in older} == {True}
    assert rendered(older).count(f"`{commit}`†") == len(FAULTS)
    assert "`†" not in rendered(marked(older, ()))


def test_a_run_of_no_known_commit_does_not_count(write: Write, tmp_path: Path) -> None:
    commit = write("README.md", "as it was")

    found = stale([of("0123456789"), of(f"{commit}+")], tmp_path)

    assert ["does not have" in why for _, why in found] == [True, False]
    assert "working tree" in found[1][1]
    said = told(2, found)
    assert "2 of 2 results are older than the code" in said
    assert said.endswith(f"--write-reliability docs/reliability.md {TEST}")


def test_every_measured_table_has_the_commit_of_its_run_and_names_code_that_exists() -> None:
    """Each table of performance, memory and times, and the pages of the model, the soak and the semantics."""
    measured = list(of_tables(ROOT))

    assert len({result.name for result in measured}) == len(TABLES)
    for result in measured:
        assert [path for path in result.speaks_of if not (ROOT / path).exists()] == []
    assert {table.section for table in TABLES if table.section} >= {
        f"bench.{name}" for name in ("state", "footprint", "times", "records", "cold")
    }


def test_a_table_that_is_stale_names_what_measures_it_again(write: Write, tmp_path: Path) -> None:
    commit = write("README.md", "as it was")
    table = Measured("docs/performance.md bench.state", commit, ("bench/state.py",), "python -m bench.state")
    write("bench/state.py", "ROUNDS = 7\n")

    said = told(1, stale([table], tmp_path))

    assert said.startswith(f"docs/performance.md bench.state: changed since {commit}: bench/state.py")
    assert said.endswith("python -m bench.state")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("bench.new", "TABLES does not say which code bench.new speaks of"),
        ("bench.state", "has no date and commit of its run"),
    ],
)
def test_a_table_that_nobody_could_find_stale_is_an_error(tmp_path: Path, section: str, message: str) -> None:
    for table in TABLES:
        page = tmp_path / table.page
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text((ROOT / table.page).read_text())
    page = tmp_path / "docs" / "performance.md"
    page.write_text(f"<!-- {section} begins -->\n| a |\n<!-- {section} ends -->\n")

    with pytest.raises(ValueError, match=message):
        list(of_tables(tmp_path))


def test_every_fault_names_folders_that_exist() -> None:
    assert SPEAKS_OF.keys() == FAULTS.keys()
    folders = {folder for some in SPEAKS_OF.values() for folder in some}
    assert [one for one in folders if not (ROOT / "include" / "epochline" / one).is_dir()] == []
