"""A plugin of pytest: collects what tests of faults gave, and writes docs/reliability.md. No result is written by hand.

`pytest --write-reliability docs/reliability.md …` writes the page. A test that did not run this time keeps the line of
the run that it was in, with that run's date and commit, as long as the test exists.
"""

from __future__ import annotations

import ast
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.crash.matrix import FAULTS, PARTLY

ROOT = Path(__file__).parents[2]
BAR_SECONDS = 180.0
"""Recovery without a human within this time (I7)."""
_PROPERTY = "recovery_seconds"
_WRITTEN = ("docs/reliability.md", "docs/semantics.md")
"""Pages that a run of tests writes: they do not make its working tree another one."""
_LINE = re.compile(
    r"^\| (?P<fault>F\d+) \| `(?P<test>[^`]+)`(?: \((?P<cases>\d+) cases\))? \| (?P<outcome>\w+) \|"
    r" (?:(?P<recovery>[\d.]+) s|-) \| (?P<date>[\d-]+) \| `(?P<commit>[0-9a-f]+\+?)` \|$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Result:
    """One test function of one fault; its cases taken together."""

    fault: str
    test: str
    cases: int = 0
    outcome: str = "passed"
    recovery: float | None = None
    date: str = ""
    commit: str = ""

    def line(self) -> str:
        if not self.date:
            return f"| {self.fault} | `{self.test}` | not run yet | - | - | - |"
        cases = f" ({self.cases} cases)" if self.cases > 1 else ""
        recovery = "-" if self.recovery is None else f"{self.recovery:.1f} s"
        return f"| {self.fault} | `{self.test}`{cases} | {self.outcome} | {recovery} | {self.date} | `{self.commit}` |"

    def and_case(self, outcome: str, recovery: float | None) -> Result:
        longest = max((seconds for seconds in (self.recovery, recovery) if seconds is not None), default=None)
        outcome = self.outcome if outcome == "passed" else outcome
        return replace(self, cases=self.cases + 1, outcome=outcome, recovery=longest)


def parsed(page: str) -> list[Result]:
    """The results that a page shows."""
    results = []
    for found in _LINE.finditer(page):
        recovery = float(found["recovery"]) if found["recovery"] else None
        same = {name: found[name] for name in ("fault", "test", "outcome", "date", "commit")}
        results.append(Result(**same, cases=int(found["cases"] or 1), recovery=recovery))
    return results


@cache
def marked() -> frozenset[tuple[str, str]]:
    """Fault and ``path::name`` of every test function of this checkout that names a row."""
    return frozenset(
        (str(argument.value), f"{file.relative_to(ROOT)}::{node.name}")
        for file in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault"
        for argument in decorator.args
        if isinstance(argument, ast.Constant)
    )


@dataclass(eq=False)  # pytest puts plugins into sets
class Reliability:
    """Gathers results while tests run, and writes the page at the end."""

    page: Path | None
    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    faults: dict[str, set[str]] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            named = {fault for mark in item.iter_markers("fault") for fault in mark.args}
            unknown = named - set(FAULTS)
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: no such fault: {', '.join(sorted(unknown))}")
            self.faults[item.nodeid] = named

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not report.failed:
            return
        test = report.nodeid.partition("[")[0]
        times = [float(str(value)) for name, value in report.user_properties if name == _PROPERTY]
        seconds = max(times, default=None)
        for fault in self.faults.get(report.nodeid, ()):
            known = self.results.get((fault, test), Result(fault, test))
            self.results[fault, test] = known.and_case(report.outcome, seconds)

    def pytest_sessionfinish(self) -> None:
        if self.page is None:
            return
        date, commit = datetime.now(UTC).strftime("%Y-%m-%d"), commit_of_tree()
        kept = parsed(self.page.read_text()) if self.page.exists() else []
        here = marked()
        merged = {(fault, test): Result(fault, test) for fault, test in here}
        merged |= {(one.fault, one.test): one for one in kept if (one.fault, one.test) in here}
        merged |= {key: replace(one, date=date, commit=commit) for key, one in self.results.items()}
        self.page.write_text(rendered(merged))


def rendered(results: Mapping[tuple[str, str], Result]) -> str:
    """The page."""
    lines = [_HEAD, "| | Test | Outcome | Recovery | Run on | Commit |", "|---|---|---|---|---|---|"]
    lines += [results[key].line() for key in sorted(results, key=lambda key: (int(key[0][1:]), key[1]))]
    lines += ["", "## The faults", "", "| | Fault | What is not made here |", "|---|---|---|"]
    lines += [f"| {fault} | {what} | {PARTLY.get(fault, '')} |" for fault, what in FAULTS.items()]
    return "\n".join(lines) + "\n"


_HEAD = """\
# Reliability

Written by `make reliability`; do not edit. Under `tests/crash` and `tests/airflow` every fault is made with real processes
and real servers. After it, without a human, the tests compare the target with what was produced (each record once), the
chain of offsets, the counts per epoch in target, manifest and parts, and look for anything left over: staging tables,
open transactions, unfinished epochs. Tests under other folders show one rule each, with real PostgreSQL; those of
`tests/contract` also with the fakes that they check against it. *Recovery* is the longest time of a test's cases from the
last fault until everything produced was committed and all of this held, retries included; the bar is 180 s. It is empty
where nothing has to recover. Times are of the machine that ran it. A `+` behind a commit: the working tree differed from it.
"""


def commit_of_tree() -> str:
    """The commit that is checked out; a ``+`` behind it where the working tree differs."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = [line for line in git("status", "--porcelain").splitlines() if not line.endswith(_WRITTEN)]
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-reliability", metavar="PAGE", help="write what the tests of faults gave into this page")


def pytest_configure(config: pytest.Config) -> None:
    page = config.getoption("--write-reliability")
    config.pluginmanager.register(Reliability(Path(page) if page else None), "epochline-reliability")


class Recovery:
    """The clock of a test: from its last fault until all is well again."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record
        self._since = time.monotonic()

    def last_fault(self) -> float:
        """Start the clock, again at each fault."""
        self._since = time.monotonic()
        return self._since

    def took(self, seconds: float | None = None) -> None:
        """Everything is committed and was checked; write down how long that took.

        Raises:
            AssertionError: longer than the bar (I7).
        """
        seconds = time.monotonic() - self._since if seconds is None else seconds
        assert seconds < BAR_SECONDS
        self._record(_PROPERTY, round(seconds, 1))


@pytest.fixture
def recovery(record_property: Callable[[str, Any], None]) -> Recovery:
    """Measures a recovery for docs/reliability.md."""
    return Recovery(record_property)
