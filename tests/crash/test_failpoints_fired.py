"""The last test of the folder (`tests.crash.fired`)."""

from __future__ import annotations

from pathlib import Path

from tests.crash.fired import failpoints_of_a_run
from tests.representatives import chosen


def test_every_failpoint_fired(fired: Path) -> None:
    """A failpoint that no test made act is a place between two I/O calls where nobody knows what a crash does (F1)."""
    acted = set(fired.read_text().split())
    # `make test` made these act, and `make test-ci` runs only what it left out.
    acted |= {test.partition("[")[2].rstrip("]") for test in chosen() if "test_f1_every_failpoint" in test}

    assert sorted(set(failpoints_of_a_run()) - acted) == []
