"""The last test of the folder (`tests.crash.fired`)."""

from pathlib import Path

from tests.crash.fired import failpoints_of_a_run


def test_every_failpoint_fired(fired: Path) -> None:
    """A failpoint that no test made act is a place between two I/O calls where nobody knows what a crash does (F1)."""
    assert sorted(set(failpoints_of_a_run()) - set(fired.read_text().split())) == []
