"""The last test of the folder (`tests.crash.fired`)."""

from __future__ import annotations

from pathlib import Path

from tests.crash.fired import failpoints_of_a_run


def test_every_failpoint_fired(fired: Path) -> None:
    """A failpoint that no test made act is a place between two I/O calls where nobody knows what a crash does (F1)."""
    acted = set(fired.read_text().split())

    assert sorted(set(failpoints_of_a_run()) - acted) == []
