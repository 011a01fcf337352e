"""A standby of PostgreSQL takes the place of the primary, with every commit or without the last ones."""

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from epochline import KafkaSource
from epochline.errors import LedgerBehindError, PipelinePausedError
from epochline.operations import Request
from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.checker import assert_exact, recover
from tests.crash.conftest import NewLine
from tests.crash.gate import backend_in_commit, open_gate, set_gate
from tests.crash.line import Line, in_background
from tests.crash.pair import Pair
from tests.databases import query
from tests.waiting import wait_for

ACCEPTED = Request(actor="ada@here", reason="the standby lacked the last commits")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair.running() as one:
        yield one


@pytest.fixture
def doubled(pair: Pair, new_line: NewLine) -> Line:
    """A pipeline whose commits wait for the standby."""
    line = new_line(dsn=pair.new_database())
    line.some()
    return line


@pytest.fixture
def behind(pair: Pair, new_line: NewLine) -> Callable[..., Line]:
    """Makes a pipeline with an epoch on both servers, and one that the standby, which has taken over, never received."""

    def make(**options: object) -> Line:
        line = new_line(dsn=pair.new_database(synchronous=False), **options)
        line.some()
        assert line.run() == "success"
        pair.until_replayed()
        pair.cut_standby_off()
        line.some(2, "lost")
        assert line.run() == "success"
        pair.fail_over()
        return line

    return make


@pytest.mark.fault("F57")
@pytest.mark.slow
def test_a_standby_that_takes_over_during_copy_has_none_of_its_rows_and_the_range_is_staged_again(
    doubled: Line, pair: Pair
) -> None:
    """I1, I4."""
    planned, ticket = doubled.to_begun("run-1")
    since = 0.0

    def failing() -> Iterator[pa.RecordBatch]:
        nonlocal since
        for number, batch in enumerate(doubled.read(planned.ranges[0])):
            yield batch
            if number == 1:
                pair.fail_over()
                since = time.monotonic()

    with pytest.raises(Exception, match="server closed|terminating|cannot be reached|connection"):
        doubled.writer(ticket).write(failing())

    assert since
    assert doubled.run("run-1") == "success"
    recover(doubled, since=since)
    assert doubled.query("SELECT attempt FROM epochline.epochs WHERE epoch_id = 1") == [(2,)]


@pytest.mark.fault("F57")
@pytest.mark.slow
def test_what_was_sealed_is_sealed_on_the_standby_that_takes_over(doubled: Line, pair: Pair) -> None:
    """INV-6: staging is logged, so a standby has it."""
    doubled.to_sealed("run-1")
    since = time.monotonic()

    pair.fail_over()

    assert doubled.state() is EpochState.PRE_COMMITTED
    assert doubled.commit(1).outcome is CommitOutcome.COMMITTED
    recover(doubled, since=since)
    assert doubled.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F57")
@pytest.mark.parametrize("task", [pytest.param("seal", marks=pytest.mark.slow), "commit"])
def test_a_standby_that_takes_over_inside_a_transaction_has_all_of_it_or_nothing(
    doubled: Line, pair: Pair, task: str
) -> None:
    """I1, I3, INV-5: the same call does it on the other server, once."""
    _, ticket = doubled.to_staged("run-1")
    calls: dict[str, Callable[[], object]] = {
        "seal": lambda: doubled.seal(ticket, "run-1"), "commit": lambda: doubled.commit(1),
    }  # fmt: skip
    if task == "commit":
        calls["seal"]()
        set_gate(doubled)
    else:
        set_gate(doubled, event="UPDATE", table="epochline.epoch")
    going = in_background(calls[task])
    backend_in_commit(doubled)
    since = time.monotonic()

    pair.fail_over()

    open_gate(doubled)
    going.exception(90)
    assert doubled.rows() == [(40, 40) if doubled.state() is EpochState.COMMITTED else (0, 0)]
    recover(doubled, since=since)


@pytest.mark.fault("F57")
@pytest.mark.slow
def test_a_commit_that_was_answered_is_on_the_synchronous_standby(doubled: Line, pair: Pair) -> None:
    """I1: nothing is lost and nothing doubled."""
    doubled.to_committed("run-1")
    since = time.monotonic()

    pair.fail_over()

    assert_exact(doubled)
    assert doubled.commit(1).outcome is CommitOutcome.ALREADY_COMMITTED
    doubled.some(2, "later")
    recover(doubled, since=since)


@pytest.mark.fault("F57")
@pytest.mark.slow
def test_a_commit_whose_standby_is_gone_is_not_answered_and_its_retry_finds_what_the_other_server_has(
    doubled: Line, pair: Pair
) -> None:
    """INV-5: the primary has committed, and nobody was told so."""
    doubled.to_sealed("run-1")
    pair.cut_standby_off()
    committing = in_background(lambda: doubled.commit(1))
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_for("the commit waits for the standby", lambda: query(pair.primary.superuser_dsn, waits))
    since = time.monotonic()

    pair.fail_over()

    committing.exception(90)
    recover(doubled, since=since)
    assert doubled.query("SELECT attempt, state FROM epochline.epochs") == [(1, "COMMITTED")]


@pytest.mark.fault("F57")
@pytest.mark.slow
def test_a_standby_that_lacks_the_last_commits_stops_the_pipeline_until_an_operator_accepts_its_ledger(
    behind: Callable[..., Line],
) -> None:
    """INV-8, P11: the mirror in Kafka shows the lost epoch."""
    line = behind()

    with pytest.raises(LedgerBehindError):
        line.plan("run-after")

    assert line.run() == "failed"
    line.act("accept-ledger", ACCEPTED)
    recover(line)


@pytest.mark.fault("F57")
@pytest.mark.slow
def test_without_a_mirror_the_lost_commits_of_tables_alone_are_read_again(behind: Callable[..., Line]) -> None:
    """I1: tables and ledger lost the same. Nothing outside of the database shows that they did."""
    line = behind(name="unmirrored", source=KafkaSource(topics="unmirrored", mirror=False))
    assert line.query("SELECT max(epoch_id) FROM epochline.epochs") == [(1,)]

    recover(line)

    assert line.query("SELECT count(*) FROM epochline.epochs WHERE state = 'COMMITTED'") == [(2,)]


@pytest.mark.fault("F57")
@pytest.mark.slow
@pytest.mark.parametrize("first", ["zombie", "promoted"])
def test_what_a_zombie_commits_on_the_old_primary_counts_for_nothing(pair: Pair, new_line: NewLine, first: str) -> None:
    """INV-4, INV-8: both servers have an epoch 1 of their own. Whoever commits second is stopped by what Kafka shows."""
    made = new_line(dsn=pair.new_database(synchronous=False))
    made.some()
    old, new = (made.again(server.dsn(pair.name_of(made.dsn))) for server in (pair.primary, pair.standby))
    new.recovery = made.recovery
    pair.until_replayed()
    pair.cut_standby_off()
    old.to_sealed("run-zombie")
    pair.fail_over(kill_primary=False)
    since = time.monotonic()

    if first == "zombie":
        old.commit(1)
        assert new.run() == "failed"
        new.act("accept-ledger", ACCEPTED)
    else:
        assert new.run() == "success"
        with pytest.raises(LedgerBehindError):
            old.commit(1)

    new.some(2, "later")
    recover(new, since=since)
    with pytest.raises(PipelinePausedError if first == "promoted" else LedgerBehindError):
        old.plan("run-zombie-2")


@pytest.mark.fault("F57")
@pytest.mark.slow
def test_a_reader_of_a_replica_sees_whole_epochs_in_the_order_of_their_commits(pair: Pair, new_line: NewLine) -> None:
    """I3: one snapshot of a replica has an epoch in all its tables, or in none, and no later epoch without it."""
    dsn = pair.new_database(synchronous=False)
    first, second = new_line(dsn=dsn), new_line(dsn=dsn)
    replica = pair.standby.dsn(pair.name_of(dsn))
    seen: list[tuple[int, int, int]] = []
    asked = (
        f"SELECT (SELECT count(*) FROM {first.name}), (SELECT count(*) FROM {first.name}_again),"
        f" (SELECT count(*) FROM {second.name})"
    )

    def epochs() -> None:
        for line in [first, second] * 5:
            line.produce({0: [f"{number}" for number in range(40)]})
            assert line.run() == "success"

    going = in_background(epochs)

    while not going.done():
        seen += query(replica, asked)

    going.result()
    pair.until_replayed()
    assert query(replica, asked) == [(200, 200, 200)]
    for table, same, other in seen:
        assert table == same
        assert other <= table <= other + 40
    assert len(set(seen)) > 2
