"""A plugin of pytest: ``--strict-skips`` fails a run in which a test was skipped for a reason that is not listed here.

`make test-ci` gives the option, so that a program that CI lacks cannot take tests out unseen.
"""

from collections.abc import Iterator

import pytest

LISTED = (
    # A made-up log is read in any case.
    "EPOCHLINE_TEST_LOG names no access log",
    "as an ordinary user, all other tests show it",
    "the checkout has no history: the older wheel cannot be built",
)
"""Why a test may be skipped."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--strict-skips", action="store_true", help="Fail if a test is skipped for an unlisted reason.")


class StrictSkips:
    """Collects the reasons of the skipped tests, by test."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the reason of a test that was skipped."""
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.reasons[report.nodeid] = reason.removeprefix("Skipped: ")

    @property
    def unlisted(self) -> dict[str, str]:
        """The tests that no listed reason excuses."""
        return {test: reason for test, reason in self.reasons.items() if reason not in LISTED}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let the run fail."""
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Count the skipped tests, and name those that no listed reason excuses."""
        terminalreporter.section("skipped tests")
        terminalreporter.write_line(
            f"{len(self.reasons)} skipped, {len(self.unlisted)} for a reason not in tests/skips.py"
        )
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> Iterator[str]:
        for test, reason in sorted(self.unlisted.items()):
            yield f"{test}: {reason}"


def pytest_configure(config: pytest.Config) -> None:
    """Collect where it is asked for; in a parallel run the main process gets every report."""
    if config.getoption("strict_skips") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(StrictSkips())
