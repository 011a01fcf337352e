"""Other sessions change the target, and other pipelines run, while an epoch is in progress."""

from __future__ import annotations

import pytest

from epochline.coordinator import abort
from epochline.errors import TargetError
from epochline.protocol.epoch import EpochState
from tests.crash.checker import assert_exact, recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.reliability import Recovery

DRIFT = {
    "renamed": ("ALTER TABLE {0} RENAME value TO text", "ALTER TABLE {0} RENAME text TO value"),
    "dropped": ("ALTER TABLE {0} DROP COLUMN value", "ALTER TABLE {0} ADD COLUMN value text"),
    "other type": ("ALTER TABLE {0} ALTER value TYPE varchar(9)", "ALTER TABLE {0} ALTER value TYPE text"),
    "table away": ("ALTER TABLE {0} RENAME TO away", "ALTER TABLE away RENAME TO {0}"),
}


@pytest.mark.fault("F34")
@pytest.mark.parametrize("drift", DRIFT)
def test_a_target_that_changed_since_the_plan_stops_the_commit_and_is_committed_once_put_back(
    line: Line, drift: str, recovery: Recovery
) -> None:
    """INV-2, INV-6, I6: nothing was written, the sealed rows are kept."""
    line.to_sealed("run-1")
    change, back = (statement.format(f"{line.name}_again") for statement in DRIFT[drift])
    line.query(change)

    with pytest.raises(TargetError, match="Nothing was changed") as refused:
        line.commit(1)

    assert not refused.value.retryable
    assert line.query(f"SELECT count(*) FROM {line.name}") == [(0,)]
    assert line.state() is EpochState.PRE_COMMITTED
    since = recovery.last_fault()
    line.query(back)
    recovery.took(recover(line, since=since))


@pytest.mark.fault("F34")
def test_an_epoch_sealed_for_other_columns_can_be_aborted_and_read_again(line: Line, recovery: Recovery) -> None:
    """INV-7, I6: abort and clear, as the message says."""
    line.to_sealed("run-1")
    line.query(f"ALTER TABLE {line.name} RENAME value TO text")
    with pytest.raises(TargetError, match="abort the epoch and clear its run"):
        line.commit(1)

    abort(line.ledger, line.name, 1, line.run_of("operator"), reason="the target has other columns", by_operator=True)
    line.query(f"ALTER TABLE {line.name} RENAME text TO value")
    since = recovery.last_fault()

    assert line.run("run-1") == "success"
    recovery.took(recover(line, since=since))
    assert line.query("SELECT attempt FROM epochline.epochs WHERE epoch_id = 1") == [(2,)]


@pytest.mark.fault("F34")
def test_a_column_that_was_added_and_needs_no_value_changes_nothing(line: Line, recovery: Recovery) -> None:
    line.to_sealed("run-1")
    line.query(f"ALTER TABLE {line.name} ADD COLUMN later integer")

    line.commit(1)

    assert line.query(f"SELECT count(*), count(later) FROM {line.name}") == [(40, 0)]
    recovery.took(recover(line, since=recovery.last_fault()))


@pytest.mark.fault("F36")
def test_a_second_pipeline_may_not_write_a_table_that_has_a_writer(line: Line, new_line: NewLine) -> None:
    assert line.run() == "success"
    other = new_line(dsn=line.dsn, sinks=line.pipeline.sinks)
    other.some(3)

    with pytest.raises(TargetError, match=f"belongs to pipeline {line.name}"):
        other.plan("run-1")

    assert_exact(line)


@pytest.mark.fault("F36")
def test_pipelines_on_one_database_do_not_disturb_each_other(line: Line, new_line: NewLine, recovery: Recovery) -> None:
    """INV-4, I1: names that begin alike; one fails and is aborted, fenced and swept while the other is at work."""
    other = new_line(dsn=line.dsn, name=f"{line.name}_again_2")
    other.some(5)
    mine, theirs = line.to_planned("run-1"), other.to_planned("run-1")
    ticket = line.begin(1, "run-1")
    abandoned = other.begin(1, "run-1")
    assert ticket is not None
    assert abandoned is not None
    other.stage(theirs.ranges, abandoned)
    line.stage(mine.ranges, ticket)

    other.abort(1, "run-1")
    assert other.run("run-2") == "success"

    assert line.seal(ticket, "run-1").read == len(line.produced)
    line.commit(1)
    since = recovery.last_fault()
    recovery.took(max(recover(line, since=since), recover(other, since=since)))
    for one in (line, other):
        groups = one.source.mirrored(one.pipeline.consumer_group)
        assert {partition: held.offset for (_topic, partition), held in groups.items()} == one.heads()
