"""Other sessions change the target, and other pipelines run, while an epoch is in progress."""

import time

import pytest

from epochline.coordinator import abort
from epochline.errors import TargetError
from epochline.protocol.epoch import EpochState
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.integration.kafka_topics import group_offsets

DRIFT = {
    "renamed": ("ALTER TABLE {0} RENAME value TO text", "ALTER TABLE {0} RENAME text TO value"),
    "dropped": ("ALTER TABLE {0} DROP COLUMN value", "ALTER TABLE {0} ADD COLUMN value text"),
    "other type": ("ALTER TABLE {0} ALTER value TYPE varchar(9)", "ALTER TABLE {0} ALTER value TYPE text"),
    "table away": ("ALTER TABLE {0} RENAME TO away", "ALTER TABLE away RENAME TO {0}"),
}


@pytest.mark.fault("F34")
@pytest.mark.parametrize("drift", DRIFT)
def test_a_target_that_changed_since_the_plan_stops_the_commit_and_is_committed_once_put_back(
    sealed: Line, drift: str
) -> None:
    """INV-2, INV-6, I6: nothing was written, the sealed rows are kept."""
    change, back = (statement.format(f"{sealed.name}_again") for statement in DRIFT[drift])
    sealed.query(change)

    with pytest.raises(TargetError, match="Nothing was changed") as refused:
        sealed.commit(1)

    assert not refused.value.retryable
    assert sealed.query(f"SELECT count(*) FROM {sealed.name}") == [(0,)]
    assert sealed.state() is EpochState.PRE_COMMITTED
    since = time.monotonic()
    sealed.query(back)
    recover(sealed, since=since)


@pytest.mark.fault("F34")
def test_an_epoch_sealed_for_other_columns_can_be_aborted_and_read_again(sealed: Line) -> None:
    """INV-7, I6: abort and clear, as the message says."""
    sealed.query(f"ALTER TABLE {sealed.name} RENAME value TO text")
    with pytest.raises(TargetError, match="abort the epoch and clear its run"):
        sealed.commit(1)

    operator = sealed.run_of("operator")
    abort(sealed.ledger, sealed.name, 1, operator, reason="the target has other columns", by_operator=True)
    sealed.query(f"ALTER TABLE {sealed.name} RENAME text TO value")
    since = time.monotonic()

    assert sealed.run("run-1") == "success"
    recover(sealed, since=since)
    assert sealed.query("SELECT attempt FROM epochline.epochs WHERE epoch_id = 1") == [(2,)]


@pytest.mark.fault("F34")
def test_a_column_that_was_added_and_needs_no_value_changes_nothing(sealed: Line) -> None:
    sealed.query(f"ALTER TABLE {sealed.name} ADD COLUMN later integer")

    sealed.commit(1)

    assert sealed.query(f"SELECT count(*), count(later) FROM {sealed.name}") == [(40, 0)]
    recover(sealed)


@pytest.mark.fault("F36")
def test_pipelines_on_one_database_do_not_disturb_each_other(line: Line, new_line: NewLine) -> None:
    """INV-4, I1: names that begin alike; one fails and is aborted, fenced and swept while the other is at work."""
    other = new_line(dsn=line.dsn, name=f"{line.name}_again_2")
    other.some(5)
    planned, ticket = line.to_begun("run-1")
    other.to_staged("run-1")
    line.stage(planned, ticket)

    other.abort(1, "run-1")
    assert other.run("run-2") == "success"

    assert line.seal(ticket, "run-1").read == len(line.produced)
    line.commit(1)
    for one in (line, other):
        recover(one)
        assert group_offsets(one.bootstrap, one.pipeline.consumer_group) == one.heads()
