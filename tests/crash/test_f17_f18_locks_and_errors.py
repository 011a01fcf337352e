"""Locks that others hold, and errors that PostgreSQL gives in passing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from epochline.errors import EpochlineError, LedgerError, LedgerUnavailableError, LockTimeoutError
from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.crash.checker import recover
from tests.crash.conftest import InBackground, NewLine
from tests.crash.line import Line
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.databases import as_admin, holding
from tests.waiting import wait_for


def waits_for_a_lock(line: Line) -> Any:
    return wait_for(
        "somebody waits for a lock",
        lambda: line.query(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ),
    )


@pytest.mark.fault("F17")
@pytest.mark.parametrize(
    "statement",
    [
        "LOCK TABLE {0} IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE {0}_again IN SHARE MODE",
        "ALTER TABLE {0} ADD COLUMN later integer",
        "CREATE INDEX ON {0} (value)",
        "LOCK TABLE epochline.committed_range IN SHARE MODE",
        "SELECT 1 FROM epochline.epoch WHERE pipeline = '{0}' FOR UPDATE",
    ],
    ids=["exclusive", "second target", "DDL", "index build", "ledger", "epoch row"],
)
def test_a_lock_that_is_held_too_long_ends_the_commit_and_the_retry_succeeds(
    new_line: NewLine, statement: str, recovery: Recovery
) -> None:
    """I6, INV-2: lock_timeout, nothing half done, and a retry helps."""
    line = new_line(lock_timeout=1)
    line.some(5)
    line.to_sealed("run-1")
    with holding(line.dsn, statement.format(line.name)):
        with pytest.raises(
            LockTimeoutError, match="Another transaction holds what this one needs; nothing was changed"
        ) as refused:
            line.commit(1)
        assert refused.value.retryable
        assert line.state_unlocked() == "PRE_COMMITTED"
    since = recovery.last_fault()

    recovery.took(recover(line, since=since))


@pytest.mark.fault("F17")
def test_readers_and_vacuum_do_not_hold_a_commit_up(line: Line, recovery: Recovery) -> None:
    """C7: a long report over the targets, and a VACUUM that was just made."""
    line.to_sealed("run-1")
    with holding(line.dsn, f"SELECT count(*) FROM {line.name}, {line.name}_again"):
        as_admin(line.dsn, f"VACUUM ANALYZE {line.name}")

        assert line.commit(1).outcome is CommitOutcome.COMMITTED

    recovery.took(recover(line, since=recovery.last_fault()))


@pytest.mark.fault("F17", "F18")
def test_a_deadlock_with_another_session_ends_with_one_commit(
    line: Line, background: InBackground, recovery: Recovery
) -> None:
    """40P01: PostgreSQL chooses a victim; with either victim the epoch is committed once."""
    line.to_sealed("run-1")
    with holding(line.dsn, f"LOCK TABLE {line.name}_again IN SHARE MODE") as other:
        committing = background(lambda: line.commit(1))
        waits_for_a_lock(line)
        try:
            # The commit has rows in the first target and waits for the second.
            other.execute(f"LOCK TABLE {line.name} IN SHARE MODE")
        except psycopg2.errors.DeadlockDetected:
            other.connection.rollback()
        committing.join()
        ours_lost = committing.error is not None
        other.connection.rollback()
    since = recovery.last_fault()

    if ours_lost:
        assert isinstance(committing.error, LockTimeoutError)
        assert line.state() is EpochState.PRE_COMMITTED
    recovery.took(recover(line, since=since))


def raising(line: Line, code: str, times: int) -> None:
    """The target's trigger raises an error ``times`` times. A sequence counts, because no rollback takes it back."""
    line.query("CREATE SEQUENCE public.raised")
    line.query(
        "CREATE FUNCTION public.raise_it() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        f" IF nextval('public.raised') <= {times} THEN RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'; END IF;"
        " RETURN NULL; END$$"
    )
    line.query(
        f"CREATE TRIGGER raise_it AFTER INSERT ON {line.name} FOR EACH STATEMENT EXECUTE FUNCTION public.raise_it()"
    )


PASSING = {
    "40001": "serialization failure", "40P01": "deadlock", "53300": "too many connections", "53200": "out of memory",
    "53100": "disk full", "58030": "input or output failed",
    "57P01": "shutdown", "57P03": "starting up", "57014": "cancelled",
}  # fmt: skip


@pytest.mark.fault("F18")
@pytest.mark.parametrize("code", PASSING, ids=PASSING.get)
def test_an_error_that_passes_by_itself_is_tried_again(line: Line, code: str, recovery: Recovery) -> None:
    line.to_sealed("run-1")
    raising(line, code, 1)
    since = recovery.last_fault()

    assert line.run("run-1") == "success"

    recovery.took(recover(line, since=since))


@pytest.mark.fault("F18")
def test_an_error_that_does_not_pass_is_not_tried_again(line: Line, recovery: Recovery) -> None:
    """A rule of the target: trying again would only make noise. The sealed epoch is kept."""
    line.to_sealed("run-1")
    raising(line, "23514", 1)

    with pytest.raises(LedgerError) as refused:
        line.commit(1)

    assert not refused.value.retryable
    assert line.query("SELECT last_value, is_called FROM public.raised") == [(1, True)]
    assert line.state() is EpochState.PRE_COMMITTED
    recovery.took(recover(line, since=recovery.last_fault()))


@pytest.mark.fault("F18")
def test_tries_are_bounded(line: Line, recovery: Recovery) -> None:
    """An error that would pass, but does not, ends the run; a later one commits."""
    line.to_sealed("run-1")
    raising(line, "40001", 1000)

    assert line.run("run-1", tries=2) == "failed"

    ((tries, _called),) = line.query("SELECT last_value, is_called FROM public.raised")
    assert tries == 2
    assert line.state() is EpochState.PRE_COMMITTED
    line.query("DROP FUNCTION public.raise_it() CASCADE")
    recovery.took(recover(line, since=recovery.last_fault()))


@pytest.mark.fault("F18")
def test_a_statement_that_takes_too_long_ends_the_commit_and_a_retry_helps(
    new_line: NewLine, recovery: Recovery
) -> None:
    line = new_line(commit_statement_timeout=timedelta(seconds=1))
    line.some(5)
    line.to_sealed("run-1")
    line.query(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(20); RETURN NULL; END$$"
    )
    line.query(f"CREATE TRIGGER slow AFTER INSERT ON {line.name} FOR EACH STATEMENT EXECUTE FUNCTION public.slow()")

    with pytest.raises(EpochlineError, match="statement timeout") as refused:
        line.commit(1)

    assert refused.value.retryable
    assert line.state() is EpochState.PRE_COMMITTED
    line.query(f"DROP TRIGGER slow ON {line.name}")
    recovery.took(recover(line, since=recovery.last_fault()))


@pytest.mark.fault("F18")
def test_too_many_connections_fail_a_task_until_some_are_free(line: Line, server: Server, recovery: Recovery) -> None:
    """53300, at any step."""
    database = line.query("SELECT current_database()")[0][0]
    server.admin("ALTER DATABASE {} CONNECTION LIMIT 0", database)
    for step in (lambda: line.plan("run-1"), lambda: line.begin(1, "run-1"), lambda: line.commit(1)):
        with pytest.raises(LedgerUnavailableError, match="too many connections") as refused:
            step()
        assert refused.value.retryable
    since = recovery.last_fault()
    server.admin("ALTER DATABASE {} CONNECTION LIMIT -1", database)

    recovery.took(recover(line, since=since))
