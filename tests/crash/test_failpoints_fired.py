"""The last test of the folder (`tests.crash.fired`)."""

from pathlib import Path

from tests.crash.fired import IN_SPARK, WITH_GAPS, failpoints_of_a_run
from tests.representatives import chosen

ACT_IN = {"test_f02_spark_failpoints": IN_SPARK, "test_f46_f47_logs": WITH_GAPS}
"""Failpoints that one file makes act."""


def test_every_failpoint_fired(fired: Path) -> None:
    """A failpoint that no test made act is a place between two I/O calls where nobody knows what a crash does (F1)."""
    acted = set(fired.read_text().split())
    # `make test` made these act, and `make test-ci` runs only what it left out.
    for test in chosen():
        acted |= {test.partition("[")[2].rstrip("]")} if "test_f1_every_failpoint" in test else set()
        acted |= next((points for file, points in ACT_IN.items() if file in test), frozenset())

    assert sorted(set(failpoints_of_a_run()) - acted) == []
