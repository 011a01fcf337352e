"""A plugin of pytest: how long every test and every fixture took, written to a file; CI prints the sums of the files.

``pytest --durations-file build/durations.tsv …`` writes a line per test and fixture, the longest first. Columns:
seconds; ``test`` (set-up, call and tear-down together) or ``fixture`` (its own set-up); the process; the name.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_FIXTURE = "seconds of the fixture "


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the file."""
    parser.addoption("--durations-file", type=Path, help="Write how long every test and fixture took to this file.")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, object, object]:
    """Take the time of a fixture, without those that it is made of, and let it travel with its test's report."""
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        took = (_FIXTURE + fixturedef.argname, time.perf_counter() - began)
        request._pyfuncitem.user_properties.append(took)


class Durations:
    """What the reports of a run say."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._took: dict[tuple[str, str, str], float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test."""
        process = getattr(report, "worker_id", "main")
        self._took["test", process, report.nodeid] += report.duration
        if report.when == "setup":
            for name, value in report.user_properties:
                if name.startswith(_FIXTURE) and isinstance(value, float):
                    self._took["fixture", process, name.removeprefix(_FIXTURE)] += value

    def lines(self) -> list[str]:
        """The file's lines, the longest first."""
        took = sorted(self._took.items(), key=lambda one: -one[1])
        return [f"{seconds:.2f}\t{kind}\t{process}\t{name}" for (kind, process, name), seconds in took]

    def sums(self) -> list[str]:
        """Seconds, tests and name of each file of tests, the longest last: a log is read from its end."""
        files: dict[str, list[float]] = defaultdict(list)
        for (kind, _, name), seconds in self._took.items():
            if kind == "test":
                files[name.partition("::")[0]].append(seconds)
        took = sorted(files.items(), key=lambda one: sum(one[1]))
        return [f"{sum(each):.0f}\t{len(each)}\t{name}" for name, each in took]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the file, and print the sums where nobody could look at it afterwards."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(f"{line}\n" for line in self.lines()))
        if os.environ.get("CI"):
            terminalreporter.section("seconds, tests, file")
            for line in self.sums():
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Collect where a file is named; in a parallel run the main process gets every report."""
    file = config.getoption("durations_file")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(file))
