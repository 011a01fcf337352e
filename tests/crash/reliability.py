"""A plugin of pytest: collects what tests of faults gave, and writes docs/reliability.md. No result is written by hand.

`pytest --write-reliability docs/reliability.md …` writes the page, and one line per test into docs/data/reliability.tsv.
A test that did not run this time keeps the line of the run that it was in, with that run's date and commit, as long as
the test exists. `make stale` marks the lines that are older than the code that they speak of, here and on the page.
"""

from __future__ import annotations

import ast
import subprocess
import time
from collections.abc import Callable, Iterable
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
_PROPERTY, _FAULT = "recovery_seconds", "fault"
_WRITTEN = tuple(
    f"docs/{of}" for name in ("reliability", "semantics", "versions") for of in (f"{name}.md", f"data/{name}.tsv")
)
"""Files that a run of tests writes: they do not make its working tree another one."""
_COLUMNS = ("fault", "test", "cases", "outcome", "recovery_seconds", "date", "commit", "older_than_its_code")


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
    older: bool = False
    """Whether the code that it speaks of changed since."""

    def line(self) -> str:
        recovery = "" if self.recovery is None else f"{self.recovery:.1f}"
        older = "yes" if self.older else ""
        return "\t".join(
            (self.fault, self.test, str(self.cases), self.outcome, recovery, self.date, self.commit, older)
        )

    def and_case(self, outcome: str, recovery: float | None) -> Result:
        longest = max((seconds for seconds in (self.recovery, recovery) if seconds is not None), default=None)
        outcome = self.outcome if outcome == "passed" else outcome
        return replace(self, cases=self.cases + 1, outcome=outcome, recovery=longest)


def data_of(page: Path) -> Path:
    return page.parent / "data" / "reliability.tsv"


def parsed(data: str) -> list[Result]:
    rows = (line.split("\t") for line in data.splitlines()[1:])
    return [
        Result(fault, test, int(cases), outcome, float(recovery) if recovery else None, date, commit, bool(older))
        for fault, test, cases, outcome, recovery, date, commit, older in rows
    ]


@cache
def marked() -> frozenset[tuple[str, str]]:
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

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            named = {fault for mark in item.iter_markers("fault") for fault in mark.args}
            unknown = named - set(FAULTS)
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: no such fault: {', '.join(sorted(unknown))}")
            # They travel with the report: of items that others run, this process may know nothing.
            item.user_properties += [(_FAULT, fault) for fault in sorted(named)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not report.failed:
            return
        test = report.nodeid.partition("[")[0]
        times = [float(str(value)) for name, value in report.user_properties if name == _PROPERTY]
        seconds = max(times, default=None)
        for fault in (str(value) for name, value in report.user_properties if name == _FAULT):
            known = self.results.get((fault, test), Result(fault, test))
            self.results[fault, test] = known.and_case(report.outcome, seconds)

    def pytest_sessionfinish(self) -> None:
        if self.page is None:
            return
        date, commit = datetime.now(UTC).strftime("%Y-%m-%d"), commit_of_tree()
        data = data_of(self.page)
        kept = parsed(data.read_text()) if data.exists() else []
        here = marked()
        merged = {(fault, test): Result(fault, test, outcome="not run yet") for fault, test in here}
        merged |= {(one.fault, one.test): one for one in kept if (one.fault, one.test) in here}
        merged |= {key: replace(one, date=date, commit=commit) for key, one in self.results.items()}
        data.parent.mkdir(exist_ok=True)
        write(self.page, merged.values())


def write(page: Path, results: Iterable[Result]) -> None:
    """Write the page and its data."""
    every = list(results)
    data_of(page).write_text(written(every))
    page.write_text(rendered(every))


def written(results: Iterable[Result]) -> str:
    ordered = sorted(results, key=lambda result: (int(result.fault[1:]), result.test))
    return "\n".join(["\t".join(_COLUMNS), *(result.line() for result in ordered)]) + "\n"


def rendered(results: Iterable[Result]) -> str:
    by_fault: dict[str, list[Result]] = {fault: [] for fault in FAULTS}
    for result in results:
        by_fault[result.fault].append(result)
    dates = sorted(result.date for some in by_fault.values() for result in some)
    lines = [_HEAD, f"Oldest run: {dates[0]}. Newest run: {dates[-1]}.", ""]
    lines += ["| | Fault | Longest recovery, seconds | Oldest run |", "|---|---|---:|---|"]
    for fault, what in FAULTS.items():
        some = by_fault[fault]
        longest = max((result.recovery for result in some if result.recovery is not None), default=None)
        recovery = "" if longest is None else f"{longest:.1f}"
        oldest = min(some, key=lambda result: (result.date, result.test))
        mark = _OLDER if any(result.older for result in some) else ""
        lines.append(f"| {fault} | {what} | {recovery} | {oldest.date} `{oldest.commit}`{mark} |")
    lines += ["", "## What is not made here", ""]
    lines += [f"- **{fault}** {what}" for fault, what in PARTLY.items()]
    return "\n".join(lines) + "\n"


_OLDER = "†"
_HEAD = """\
# Reliability

This page lists every fault that a test makes, and the longest time until the pipeline was whole again.
`make reliability` writes it.
[The data](data/reliability.tsv) have each test with its outcome, recovery, date and commit.
† marks a row whose code changed since a run; `make stale` sets the marks.

Real processes and servers fail, and nobody repairs anything.
Afterwards each produced record is in the target once, the ranges of offsets follow one another without a gap,
target, manifest and parts have the same counts per epoch, and no staging table, open transaction or unfinished epoch is
left.

*Recovery* is the time from the last fault until all of that was checked, retries included, and is empty where nothing
has to recover. It must be below 180 seconds.
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
    page = None if hasattr(config, "workerinput") else config.getoption("--write-reliability")
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
        """Everything is committed and was checked; write down how long that took. The page is held to the bar (I7)."""
        seconds = time.monotonic() - self._since if seconds is None else seconds
        self._record(_PROPERTY, round(seconds, 1))


@pytest.fixture
def recovery(record_property: Callable[[str, Any], None]) -> Recovery:
    return Recovery(record_property)
