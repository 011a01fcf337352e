"""Which tests on servers `make test` runs: ``python -m tests.representatives``, or ``make representatives``.

Each id of docs/requirements.md and each row of the fault matrix that has tests on servers is shown in `make test` by
the cheapest of those that cite it most closely. `make test-ci` runs the other tests on servers. The choice is written
to representatives.txt beside this file: a test on each line, and the ids that it stands for. What a test costs is read
from build/durations.tsv and durations-ci.tsv, which `make test` and `make test-ci` leave.
"""

import contextlib
import io
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.crash.matrix import FAULTS
from tests.requirements import PAGE, all_tests, defined

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("representatives.txt")

ALWAYS = (
    # A shipped DAG under a scheduler, whose Spark driver is killed, and the verdict over every record.
    "tests/e2e/test_demo.py::test_the_demo_kills_a_driver_and_each_line_takes_effect_once",
)
OF_A_CLASS = 1
"""How closely a test cites what its class cites: as good as its own docstring. A module may cite what few tests show."""
ON_SERVERS = frozenset({"integration", "crash", "airflow", "soak", "nemesis", "e2e", "long"})
"""Folders whose tests `make test` leaves out if they represent nothing, also the few that need no server."""
IN_CI = {
    "F37": "a mix of all faults at random: a minute, and each fault has a representative",
    "F40": "an Airflow whose triggerer is killed: three minutes until it is noticed",
    "F61": "an Airflow whose XCom is lost: half a minute, in which Spark runs five times",
    "F58": "a Kafka of three nodes: 20 seconds until it runs, and as long until a killed leader has a successor",
    "F55": "a cluster of YARN: four minutes, most of them for its start and the environment that it ships",
}
"""Promises that `make test-ci` shows alone, and why."""
START_SECONDS = {
    "tests/airflow/": 90.0,
    "tests/airflow/test_shipped.py": 200.0,
    "tests/crash/test_f39_": 20.0,
    "tests/e2e/": 90.0,
    "tests/integration/spark/": 30.0,
}
"""What the first test of these files costs beside itself: servers that it starts, or what a fixture does for them all."""


def chosen() -> dict[str, frozenset[str]]:
    """The tests of representatives.txt, and the ids that each stands for."""
    lines = (line.partition("\t") for line in FILE.read_text().splitlines())
    return {test: frozenset(ids.split()) for test, _, ids in lines}


class _Collected:
    """The tests of the default tier on servers, with the ids that each cites and how closely."""

    def __init__(self) -> None:
        self.cites: dict[str, dict[str, int]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        cited = {(test.path, test.name): test.cites for test in all_tests()}
        for item in session.items:
            path, _, name = item.nodeid.partition("::")
            if item.get_closest_marker("server") is None and Path(path).parts[1] not in ON_SERVERS:
                continue
            function = name.partition("[")[0].rpartition("::")[2]
            faults = {fault: 0 for mark in item.iter_markers("fault") for fault in mark.args}
            self.cites[item.nodeid] = {**cited.get((path, function), {}), **faults}


def cover(
    cites: Mapping[str, Mapping[str, int]], seconds: Mapping[str, float], ids: Iterable[str]
) -> dict[str, set[str]]:
    """A cheap set of tests that shows every id: again and again the test with the fewest seconds per id not shown yet.

    Args:
        cites: the ids of each test, and how closely the test cites each; 0 is closest.
        seconds: what each test takes; a test that is not among them is never chosen, unless it is the only one.
        ids: what must be shown; an id that no test cites is left out.
    """
    candidates: dict[str, set[str]] = {}
    for id_ in ids:
        citing = {test: closeness[id_] for test, closeness in cites.items() if id_ in closeness}
        if citing:
            closest = max(min(citing.values()), OF_A_CLASS)
            candidates[id_] = {test for test, distance in citing.items() if distance <= closest}
    shows: dict[str, set[str]] = defaultdict(set)
    for id_, tests in candidates.items():
        for test in tests:
            shows[test].add(id_)
    picked: dict[str, set[str]] = {}
    started: set[str] = set()

    def pick(test: str, left: set[str]) -> None:
        picked[test] = shows[test] & left
        left -= shows[test]
        started.update(folder for folder in START_SECONDS if test.startswith(folder))

    def price(test: str, left: set[str]) -> float:
        start = sum(cost for folder, cost in START_SECONDS.items() if test.startswith(folder) and folder not in started)
        return (seconds.get(test, 1_000.0) + start) / len(shows[test] & left)

    left = set(candidates)
    for test in ALWAYS:
        pick(test, left)
    while left:
        pick(min((test for test in shows if shows[test] & left), key=lambda test: (price(test, left), test)), left)
    return picked


def collected() -> dict[str, dict[str, int]]:
    """The tests on servers of the default tier, with the ids that each cites and how closely."""
    found, output = _Collected(), io.StringIO()
    with contextlib.redirect_stdout(output):
        ended = pytest.main(["--collect-only", "-q", "-n0", "-m", "not slow and not long", "tests"], plugins=[found])
    if ended != pytest.ExitCode.OK:
        sys.exit(f"the tests cannot be collected, so nothing was chosen:\n{output.getvalue()}")
    return found.cites


def promises() -> list[str]:
    """The ids that tests stand for."""
    return [id_ for id_ in (*defined(PAGE.read_text()), *FAULTS) if id_ not in IN_CI]


def main() -> None:
    """Choose, write the file, and say what the choice takes; with ``--check``, name the ids without a test."""
    cites = collected()
    if sys.argv[1:] == ["--check"]:
        shown = {id_ for ids in chosen().values() for id_ in ids}
        cited = {id_ for ids in cites.values() for id_ in ids}
        missing = [id_ for id_ in promises() if id_ in cited - shown]
        gone = sorted(chosen().keys() - cites.keys())
        sys.exit(f"not there: {gone}; without a test: {missing}. Run `make representatives`." if missing or gone else 0)
    files = sorted((ROOT / "build").glob("durations*.tsv"))
    if not files:
        sys.exit("build/durations.tsv is missing: `make test` and `make test-ci` leave how long each test took.")
    rows = (line.split("\t", 3) for file in files for line in file.read_text().splitlines())
    seconds = {name: float(took) for took, kind, _, name in rows if kind == "test"}
    picked = cover(cites, seconds, promises())
    FILE.write_text("".join(f"{test}\t{' '.join(sorted(picked[test]))}\n" for test in sorted(picked)))
    print(f"{len(picked)} of {len(cites)} tests on servers, {sum(seconds.get(test, 0) for test in picked):.0f} s")


if __name__ == "__main__":
    main()
