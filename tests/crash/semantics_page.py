"""docs/semantics.md: written by tests/crash/test_semantics.py, one section for each semantics, and read back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from tests.crash.reliability import ROOT, commit_of_tree
from tests.crash.split_commit import SEMANTICS, Semantics

PAGE = ROOT / "docs" / "semantics.md"
SINKS = ("append", "upsert", "add", "topic", "files")

Outcomes = Mapping[str, str]
"""By sink: ``exact``, ``lost``, ``doubled``, or both."""

_HEAD = """\
# Four semantics, killed everywhere

Written by `make semantics`; do not edit. One epoch of 40 records goes into every kind of sink: a table of mode append, of
mode upsert and of mode add, a topic, and files. The process that commits and publishes it is killed with SIGKILL at each
place between two calls on a server, and started again. Then each sink is compared with what was produced. The places
begin where the commit writes its first row: before it, a rollback takes everything back under any of them.

Only *exactly once* is a mode of the product. The others are `tests/crash/split_commit.py`, a program that
splits the product's one transaction and uses the product's own sinks. A sink that recognises a repeat stays exact under at
least once: an upsert by its key, files by the name of their folder. [Reliability](reliability.md) has the kills of all
other tasks.
"""


def section(semantics: Semantics, killed: Sequence[tuple[str, Outcomes]]) -> str:
    """The section of one semantics: the places in order, those that follow each other with one outcome in one line."""
    lines = [f"## {title(semantics)}", ""]
    lines += [f"Run on {datetime.now(UTC):%Y-%m-%d}, commit `{commit_of_tree()}`.", ""]
    lines += [_row("killed at", *SINKS), _row(*["---"] * (len(SINKS) + 1)).replace(" ", "")]
    for outcomes, group in groupby(killed, key=lambda one: tuple(one[1][sink] for sink in SINKS)):
        places = [place for place, _ in group]
        span = f"{places[0]}" if len(places) == 1 else f"{places[0]} … {places[-1]} ({len(places)} places)"
        lines.append(_row(span, *outcomes))
    return "\n".join(lines) + "\n"


def written(page: str, semantics: Semantics, text: str) -> str:
    """The page with another section for one semantics."""
    sections = {one: text if one == semantics else section_of(page, one) for one in SEMANTICS}
    summary = [_row("", *SINKS), _row(*["---"] * (len(SINKS) + 1)).replace(" ", "")]
    summary += [
        _row(title(one), *(", ".join(sorted(found, key=("exact", "lost", "doubled").index)) for found in held.values()))
        for one, body in sections.items()
        if (held := outcomes_of(body))
    ]
    table = "\n".join(["## What can happen", "", *summary]) + "\n"
    return "\n".join([_HEAD, table, *filter(None, sections.values())])


def section_of(page: str, semantics: Semantics) -> str:
    """The section of one semantics; empty if the page has none."""
    found = re.search(rf"^## {title(semantics)}\n.*?(?=\n## |\Z)", page, re.MULTILINE | re.DOTALL)
    return "" if found is None else f"{found[0].rstrip()}\n"


def outcomes_of(section: str) -> dict[str, set[str]]:
    """By sink, every outcome that a section has; empty without a section."""
    rows = [line.strip("| ").split(" | ")[1:] for line in section.splitlines() if line.startswith("| ")][1:]
    columns = zip(SINKS, zip(*rows, strict=True), strict=True) if rows else ()
    return {sink: set(found) for sink, found in columns}


def title(semantics: Semantics) -> str:
    """The name of a semantics in a heading."""
    return semantics.replace("_", " ").capitalize()


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def read() -> str:
    """The page as it is in this checkout."""
    return PAGE.read_text() if PAGE.exists() else ""


def write(semantics: Semantics, killed: Sequence[tuple[str, Outcomes]]) -> Path:
    """Write the section of one semantics, and the summary."""
    PAGE.write_text(written(read(), semantics, section(semantics, killed)))
    return PAGE
