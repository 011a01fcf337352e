"""PostgreSQL stops at once, loses a backend or stands still, at the moments that matter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from epochline.errors import LockTimeoutError
from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.crash.checker import assert_exact, recover
from tests.crash.conftest import InBackground
from tests.crash.gate import backend_in_commit, open_gate, set_gate
from tests.crash.line import Line
from tests.crash.proxy import Proxy
from tests.crash.reliability import Recovery
from tests.crash.servers import Server


def crash_and_restart(server: Server, recovery: Recovery) -> float:
    server.crash()
    since = recovery.last_fault()
    server.start()
    return since


@pytest.mark.fault("F13")
def test_postgresql_crashes_during_copy(line: Line, server: Server, recovery: Recovery) -> None:
    """I1, I4: rows of a writer whose transaction was open are gone, and the range is staged again."""
    planned, ticket = line.to_begun("run-1")
    since = 0.0

    def crashing() -> Iterator[Any]:
        nonlocal since
        for number, batch in enumerate(line.read(planned.ranges[0])):
            yield batch
            if number == 1:
                since = crash_and_restart(server, recovery)

    with pytest.raises(Exception, match="server closed|terminating|cannot be reached|connection"):
        line.writer(ticket).write(crashing())

    assert since
    assert line.query(f'SELECT count(*) FROM epochline_staging."{ticket.tables[0].table}"') == [(0,)]
    assert line.run("run-1") == "success"
    recovery.took(recover(line, since=since))
    assert line.query("SELECT attempt FROM epochline.epochs WHERE epoch_id = 1") == [(2,)]


@pytest.mark.fault("F13")
def test_postgresql_crashes_between_seal_and_commit(line: Line, server: Server, recovery: Recovery) -> None:
    """X7, INV-6: what is sealed survives, because staging is logged."""
    line.to_sealed("run-1")

    since = crash_and_restart(server, recovery)

    assert line.state() is EpochState.PRE_COMMITTED
    assert line.commit(1).outcome is CommitOutcome.COMMITTED
    recovery.took(recover(line, since=since))
    assert line.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F13")
def test_postgresql_crashes_inside_commit(
    line: Line, server: Server, background: InBackground, recovery: Recovery
) -> None:
    """I1, I3, INV-5: target and ledger both without the epoch; the task's retry commits it."""
    line.to_sealed("run-1")
    set_gate(line)
    committing = background(lambda: line.commit(1))
    backend_in_commit(line)

    since = crash_and_restart(server, recovery)

    open_gate(line)
    committing.join()
    both = f"SELECT (SELECT count(*) FROM {line.name}), (SELECT count(*) FROM {line.name}_again)"
    # The call asked again by itself where it could: target and ledger say the same of what became of it.
    assert line.query(both) == [(40, 40) if line.state() is EpochState.COMMITTED else (0, 0)]
    recovery.took(recover(line, since=since))
    assert line.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.fault("F13")
def test_postgresql_crashes_right_after_commit(line: Line, server: Server, recovery: Recovery) -> None:
    """What was answered as committed is there after the crash (synchronous commit)."""
    line.to_sealed("run-1")
    assert line.commit(1).outcome is CommitOutcome.COMMITTED

    since = crash_and_restart(server, recovery)

    assert_exact(line)
    assert line.commit(1).outcome is CommitOutcome.ALREADY_COMMITTED
    recovery.took(recover(line, since=since))


@pytest.mark.fault("F14")
def test_a_backend_terminated_inside_commit_leaves_target_and_ledger_without_the_epoch(
    line: Line, background: InBackground, recovery: Recovery
) -> None:
    """I3, INV-2, INV-5: and the same call commits it, once."""
    line.to_sealed("run-1")
    set_gate(line)
    committing = background(lambda: line.commit(1))
    backend = backend_in_commit(line)
    both = f"SELECT (SELECT count(*) FROM {line.name}), (SELECT count(*) FROM {line.name}_again)"

    assert line.query("SELECT pg_terminate_backend(%s, 10000)", backend) == [(True,)]  # it is gone, not only told
    since = recovery.last_fault()
    second = backend_in_commit(line)  # the call asks the ledger, finds it sealed, and commits again

    assert second != backend
    assert line.query(both) == [(0, 0)]
    assert line.heads() == {0: 0, 1: 0}
    assert line.state_unlocked() == "PRE_COMMITTED"
    assert line.query("SELECT pg_terminate_backend(%s, 10000)", second) == [(True,)]
    open_gate(line)
    committing.join()
    assert committing.error is not None
    assert getattr(committing.error, "retryable", False)
    recovery.took(recover(line, since=since))


@pytest.mark.fault("F15")
def test_a_backend_frozen_inside_commit_holds_a_second_commit_off_and_then_commits_once(
    line: Line, server: Server, background: InBackground, recovery: Recovery
) -> None:
    """No second commit while the first one stands still: the other one ends with a word that a retry helps."""
    line.to_sealed("run-1")
    set_gate(line, seconds=1.0)
    committing = background(lambda: line.commit(1))
    other = line.again(lock_timeout=1)
    with server.frozen(backend_in_commit(line)):
        with pytest.raises(LockTimeoutError, match="nothing was changed"):
            other.commit(1)
        assert committing.running
        since = recovery.last_fault()

    assert committing.result().outcome is CommitOutcome.COMMITTED
    assert other.commit(1).outcome is CommitOutcome.ALREADY_COMMITTED
    open_gate(line)
    recovery.took(recover(line, since=since))


@pytest.mark.fault("F15")
def test_a_whole_server_that_stands_still_goes_on_where_it_was(
    line: Line, server: Server, background: InBackground, recovery: Recovery
) -> None:
    """The postmaster and all its children are stopped in the middle of a run."""
    postmaster = psutil.Process(server.postgres.pid)
    running = background(lambda: line.run("run-1"))
    stopped = [postmaster, *postmaster.children(recursive=True)]
    for process in stopped:
        process.suspend()
    time.sleep(3)  # the fault itself: how long it stands still
    assert running.running, "the run was over before the server stood still"
    since = recovery.last_fault()
    for process in stopped:
        process.resume()

    assert running.result() in ("success", "failed")
    recovery.took(recover(line, since=since))


@pytest.mark.fault("F15", "F21")
def test_a_slow_network_to_postgresql_only_makes_a_run_slow(proxied: tuple[Line, Proxy], recovery: Recovery) -> None:
    line, proxy = proxied
    proxy.delay = 0.02

    assert line.run() == "success"

    recovery.took(recover(line, since=recovery.last_fault()))
