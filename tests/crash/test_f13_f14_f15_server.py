"""PostgreSQL stops at once, loses a backend or stands still, at the moments that matter."""

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from epochline.errors import LockTimeoutError
from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.checker import assert_exact, recover
from tests.crash.gate import backend_in_commit, open_gate, set_gate
from tests.crash.line import Line, in_background
from tests.crash.proxy import Proxy
from tests.crash.servers import Server


@pytest.mark.fault("F13")
def test_postgresql_crashes_during_copy(line: Line, server: Server) -> None:
    """I1, I4: rows of a writer whose transaction was open are gone, and the range is staged again."""
    planned, ticket = line.to_begun("run-1")
    since = 0.0

    def crashing() -> Iterator[pa.RecordBatch]:
        nonlocal since
        for number, batch in enumerate(line.read(planned.ranges[0])):
            yield batch
            if number == 1:
                since = server.crash_and_restart()

    with pytest.raises(Exception, match="server closed|terminating|cannot be reached|connection"):
        line.writer(ticket).write(crashing())

    assert since
    assert line.query(f'SELECT count(*) FROM epochline_staging."{ticket.tables[0].table}"') == [(0,)]
    assert line.run("run-1") == "success"
    recover(line, since=since)
    assert line.query("SELECT attempt FROM epochline.epochs WHERE epoch_id = 1") == [(2,)]


@pytest.mark.fault("F13")
def test_postgresql_crashes_between_seal_and_commit(sealed: Line, server: Server) -> None:
    """X7, INV-6: what is sealed survives, because staging is logged."""
    since = server.crash_and_restart()

    assert sealed.state() is EpochState.PRE_COMMITTED
    assert sealed.commit(1).outcome is CommitOutcome.COMMITTED
    recover(sealed, since=since)
    assert sealed.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F13")
def test_postgresql_crashes_inside_commit(sealed: Line, server: Server) -> None:
    """I1, I3, INV-5: target and ledger both without the epoch; the task's retry commits it."""
    set_gate(sealed)
    committing = in_background(lambda: sealed.commit(1))
    backend_in_commit(sealed)

    since = server.crash_and_restart()

    open_gate(sealed)
    committing.exception(90)
    # The call asked again by itself where it could: target and ledger say the same of what became of it.
    assert sealed.rows() == [(40, 40) if sealed.state() is EpochState.COMMITTED else (0, 0)]
    recover(sealed, since=since)
    assert sealed.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F13")
def test_postgresql_crashes_right_after_commit(sealed: Line, server: Server) -> None:
    """What was answered as committed is there after the crash (synchronous commit)."""
    assert sealed.commit(1).outcome is CommitOutcome.COMMITTED

    since = server.crash_and_restart()

    assert_exact(sealed)
    assert sealed.commit(1).outcome is CommitOutcome.ALREADY_COMMITTED
    recover(sealed, since=since)


@pytest.mark.fault("F14")
def test_a_backend_terminated_inside_commit_leaves_target_and_ledger_without_the_epoch(sealed: Line) -> None:
    """I3, INV-2, INV-5: and the same call commits it, once."""
    set_gate(sealed)
    committing = in_background(lambda: sealed.commit(1))
    backend = backend_in_commit(sealed)

    assert sealed.query("SELECT pg_terminate_backend(%s, 10000)", backend) == [(True,)]  # … and it is gone
    since = time.monotonic()
    second = backend_in_commit(sealed)  # the call asks the ledger, finds it sealed, and commits again

    assert second != backend
    assert sealed.rows() == [(0, 0)]
    assert sealed.heads() == {0: 0, 1: 0}
    assert sealed.state() is EpochState.PRE_COMMITTED
    assert sealed.query("SELECT pg_terminate_backend(%s, 10000)", second) == [(True,)]
    open_gate(sealed)
    assert getattr(committing.exception(90), "retryable", False)
    recover(sealed, since=since)


@pytest.mark.fault("F15")
def test_a_backend_frozen_inside_commit_holds_a_second_commit_off_and_then_commits_once(
    sealed: Line, server: Server
) -> None:
    """No second commit while the first one stands still: the error of the other one says that a retry helps."""
    set_gate(sealed, seconds=3.0)
    committing = in_background(lambda: sealed.commit(1))
    other = sealed.again(lock_timeout=1)
    with server.frozen(backend_in_commit(sealed)):
        with pytest.raises(LockTimeoutError, match="nothing was changed"):
            other.commit(1)
        assert not committing.done()
        since = time.monotonic()

    assert committing.result(90).outcome is CommitOutcome.COMMITTED
    assert other.commit(1).outcome is CommitOutcome.ALREADY_COMMITTED
    open_gate(sealed)
    recover(sealed, since=since)


@pytest.mark.fault("F15")
def test_a_whole_server_that_stands_still_goes_on_where_it_was(line: Line, server: Server) -> None:
    """The postmaster and all its children are stopped in the middle of a run."""
    running = in_background(lambda: line.run("run-1"))
    with server.frozen(server.postgres.pid):
        time.sleep(3)  # the fault itself: how long it stands still
        assert not running.done(), "the run was over before the server stood still"
        since = time.monotonic()

    assert running.result(90) in ("success", "failed")
    recover(line, since=since)


@pytest.mark.fault("F15", "F21")
def test_a_slow_network_to_postgresql_only_makes_a_run_slow(proxied: tuple[Line, Proxy]) -> None:
    line, proxy = proxied
    proxy.delay = 0.02

    assert line.run() == "success"

    recover(line)
