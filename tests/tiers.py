"""A plugin of pytest: how long each test may take, which need a server, and which run in one process.

The tiers themselves are `make test-fast`, `test`, `test-ci`, `test-all` and `test-long`; they choose by the marks
``server``, ``ci``, ``slow`` and ``long`` (pyproject.toml says what each means).
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from epochline.local.class_archive import class_options
from tests.representatives import ON_SERVERS, chosen

TESTS = Path(__file__).parent

# Asserts are compiled by pytest itself; without its cache, which the variable that forbids bytecode turns off, each
# process compiles every test module again.
sys.dont_write_bytecode = False

_TIMEOUTS = {
    "unit": 300,
    "contract": 300,
    "model": 900,
    "integration": 1200,
    "crash": 1200,
    "airflow": 1800,
    "soak": 1800,
    "nemesis": 1800,
    "e2e": 1800,
    "long": 3 * 3600,
}
"""Seconds for a test of each folder, with the servers that it is the first to need. Every figure leaves room for a
machine that is ten times slower: a time-out names a test that hangs, and judges no speed. A test that waits for
something ends earlier, when nothing moves any more (tests/waiting.py)."""

_OF_A_PIPELINE = 300
"""Seconds for a test that a pipeline's author puts next to the folders, as `epochline init` does."""

_SLOW = 4
"""How many times longer a test may take that is marked as slow."""

_SERVERS = frozenset(
    {
        "bare_server",
        "stack",
        "server",
        "new_server",
        "secure_kafka",
        "token_kafka",
        "spark",
        "spark_server",
        "spark_cluster",
        "hdfs",
        "s3",
        "yarn",
    }
)
"""Fixtures behind which a server or a JVM stands."""

_BY_COMMANDS = frozenset({"e2e", "soak", "nemesis", "long"})
"""Folders whose tests start servers by commands, without those fixtures."""

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for minutes: a broker is there after 2.7 s of processor time instead of 4.7, the tests of state in
Spark need 86 s of it instead of 108 (two cores)."""

_LONG = ("integration/test_sink_contract.py", "integration/test_kafka_sink.py", "integration/test_poison.py")
"""Files of a minute or more: none of them may be what all the other processes wait for at the end."""

_ONE_PROCESS = {
    "crash": ("crash",),
    "airflow": ("airflow",),
    # The file of what fired is this process's own, and tests.crash.fired asks at the end whether everything did.
    "failpoints": ("crash/test_f1_", "crash/test_f02_", "crash/test_f46_", "crash/test_failpoints_fired"),
    # A server of their own, so that one process need not do all of the folder.
    "crash of brokers": ("crash/test_f19_", "crash/test_f21_", "crash/test_promises_"),
    "spark": ("integration/spark",),
    # Each of these makes stacks, whose ports are chosen before they are taken: one such test at a time.
    "stacks": ("e2e", "soak", "nemesis", "long", "integration/test_stack.py", "integration/test_drill.py"),
}
"""Tests that share servers which take long to start, or that may not run at the same time; the others share a process
with their file only. The process that is free first takes the next group, so the long ones stand first."""


def pytest_configure(config: pytest.Config) -> None:
    """Give each process of a parallel run a folder for temporary files: some tests look at all that lies there."""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", _JAVA)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", class_options())
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    folder = tempfile.mkdtemp(prefix=f"epochline-{worker}-")
    os.chmod(folder, 0o1777)  # noqa: S103 - as the usual one: servers that root starts run as another account
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)  # pytest chooses by the marks in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its time-out, ``server`` where it needs one, ``ci`` where another stands for its promises.

    Put the long groups first. `tests.representatives` says whether its file names a test that is not there.
    """
    representatives = chosen()
    for item in items:
        path = item.path.relative_to(TESTS)
        slow = item.get_closest_marker("slow") is not None
        long = item.get_closest_marker("long") is not None
        seconds = _TIMEOUTS["long"] if long else seconds_for(path) * (_SLOW if slow else 1)
        item.add_marker(pytest.mark.timeout(seconds))
        if path.parts[0] in _BY_COMMANDS or _SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)
        if item.nodeid not in representatives and (path.parts[0] in ON_SERVERS or item.get_closest_marker("server")):
            item.add_marker(pytest.mark.ci)
    items.sort(key=lambda item: _rank(item.path.relative_to(TESTS).as_posix()))


def seconds_for(path: Path) -> int:
    """The time-out of the tests of a file below ``tests/``, unless they are slow."""
    return _TIMEOUTS.get(path.parts[0], _OF_A_PIPELINE)


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process whole groups of tests, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0].removeprefix("tests/"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServers:
    """Share the tests out by groups; xdist's own ``loadgroup`` finds no group in the names that pytest 9.2 gives."""
    return ByServers(config, log)


def group(path: str) -> str:
    """The group of a file below ``tests/``: one of `_ONE_PROCESS`, or the file alone."""
    named = (
        (len(prefix), name) for name, prefixes in _ONE_PROCESS.items() for prefix in prefixes if path.startswith(prefix)
    )
    return max(named, default=(0, path))[1]


def _rank(path: str) -> int:
    """Without a server first, since a mistake shows there in seconds; then the long groups."""
    if path.startswith(("unit", "contract", "model")):
        return -1
    order = [*_ONE_PROCESS, *_LONG]
    return order.index(group(path)) if group(path) in order else len(order)
