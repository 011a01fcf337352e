"""Every link, path and module that a page names exists, and every requirement that a test cites is defined."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.crash.matrix import FAULTS
from tests.requirements import all_tests, defined

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in ("", "docs", "docs/adr", "include/epochline_examples", "plugins", "tests")
    for path in (ROOT / folder).glob("*.md")
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:bench|dags|docs|include|plugins|spark_jobs|tests)/[\w./-]*)`(?! \(new\))")
MADE = re.compile(r"^`([\w./-]+)`:$", re.MULTILINE)
"""A file that the reader of a page writes."""

MODULE = re.compile(r"\b(epochline(?:_examples)?(?:\.[a-z_]+){2,}(?:\.[A-Z]\w+)?)\b")


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name in one."""
    parent, _, name = dotted.rpartition(".")
    try:
        return hasattr(import_module(parent), name) or import_module(dotted) is not None
    except ImportError:
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    broken = []
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in slugs(target))):
            broken.append(link)
    broken += [path for path in set(NAMED.findall(text)) - set(MADE.findall(text)) if not (ROOT / path).exists()]
    broken += [name for name in set(MODULE.findall(text)) if not exists(name)]

    assert broken == []


def test_the_requirements_that_tests_cite_are_defined() -> None:
    """A test's docstring begins with the ids of what it shows."""
    known = {*defined((ROOT / "docs" / "requirements.md").read_text()), *FAULTS, "UTF-8"}

    cited = {id_: test.path for test in all_tests() for id_ in test.cites}

    assert len(cited) > 100
    assert {id_: path for id_, path in cited.items() if id_ not in known} == {}
