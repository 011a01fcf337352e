"""The mirror of a commit is lost: the commit is not."""

from __future__ import annotations

from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.crash.checker import assert_exact
from tests.crash.line import Line
from tests.databases import holding


def test_a_commit_whose_mirror_finds_the_pipeline_locked_still_says_that_it_committed(line: Line) -> None:
    """S15, INV-5: somebody plans for longer than the lock time-out; the group is set right by the next commit."""
    line = line_that_waits_briefly(line)
    line.to_sealed("run")

    with holding(line.dsn, "SELECT 1 FROM epochline.pipeline FOR NO KEY UPDATE"):
        receipt = line.commit(1)

    assert receipt.outcome is CommitOutcome.COMMITTED
    assert line.state() is EpochState.COMMITTED
    assert_exact(line)


def line_that_waits_briefly(line: Line) -> Line:
    other = line.again(lock_timeout=0.5)
    other.produced = line.produced
    return other
