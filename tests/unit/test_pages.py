"""What the Markdown pages name is there: the files that they link, and the files that a contributor is told to change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(PROJECT).as_posix()
    for folder in ("", "docs", "docs/adr", "include/epochline_examples", "plugins", "tests")
    for page in (PROJECT / folder).glob("*.md")
)
CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
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
