"""What is named is there: files that pages link, files that a contributor is told to change, ids that tests cite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.crash.matrix import FAULTS

PROJECT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(PROJECT).as_posix()
    for folder in ("", "docs", "docs/adr", "include/epochline_examples", "plugins", "tests")
    for page in (PROJECT / folder).glob("*.md")
)
CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
DEFINED = re.compile(r"^- \*\*([A-Z]+-?\d+[a-z]?)\*\*", re.MULTILINE)
CITED = re.compile(r'"""((?:[A-Z]{1,3}-?\d+[a-z]?(?:, |; | to ))*[A-Z]{1,3}-?\d+[a-z]?)[:.]')
NAMED = re.compile(r"`((?:docs|include|tests)/[\w./-]+)`(?! \(new\))")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_links_files_that_exist(page: str) -> None:
    text = CODE.sub("", (PROJECT / page).read_text())

    missing = [link for link in LINK.findall(text) if not (PROJECT / page).parent.joinpath(link).exists()]

    assert missing == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "tests/README.md"])
def test_a_contributor_is_told_of_files_that_exist(page: str) -> None:
    named = NAMED.findall((PROJECT / page).read_text())

    assert [file for file in named if not (PROJECT / file).exists()] == []


def test_the_requirements_that_tests_cite_are_defined() -> None:
    """A test's docstring begins with the ids of what it shows."""
    defined = {*DEFINED.findall((PROJECT / "docs" / "requirements.md").read_text()), *FAULTS}

    cited = {
        id_: file.name
        for file in (PROJECT / "tests").rglob("*.py")
        for ids in CITED.findall(file.read_text())
        for id_ in re.findall(r"[A-Z]+-?\d+[a-z]?", ids)
    }

    assert len(cited) > 100
    assert {id_: file for id_, file in cited.items() if id_ not in defined} == {}
