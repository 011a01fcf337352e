"""Locks that others hold, and errors that PostgreSQL gives in passing."""

import time
from datetime import timedelta

import psycopg2
import pytest

from epochline.errors import EpochlineError, LedgerError, LedgerUnavailableError, LockTimeoutError
from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line, in_background
from tests.crash.servers import Server
from tests.databases import as_admin, holding

LOCKS = {
    "exclusive": "LOCK TABLE {0} IN ACCESS EXCLUSIVE MODE",
    "second target": "LOCK TABLE {0}_again IN SHARE MODE",
    "DDL": "ALTER TABLE {0} ADD COLUMN later integer",
    "index build": "CREATE INDEX ON {0} (value)",
    "ledger": "LOCK TABLE epochline.committed_range IN SHARE MODE",
    "epoch row": "SELECT 1 FROM epochline.epoch WHERE pipeline = '{0}' FOR UPDATE",
}


@pytest.mark.fault("F17")
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_that_is_held_too_long_ends_the_commit_and_the_retry_succeeds(new_line: NewLine, lock: str) -> None:
    """C3, I6, INV-2, P6, Q2, X6, X7: lock_timeout, nothing half done, and the staged rows wait for the retry."""
    line = new_line(lock_timeout=1)
    line.some(5)
    line.to_sealed("run-1")
    with holding(line.dsn, LOCKS[lock].format(line.name)):
        with pytest.raises(LockTimeoutError, match="holds what this one needs; nothing was changed") as refused:
            line.commit(1)
        assert refused.value.retryable
        assert line.state() is EpochState.PRE_COMMITTED
    assert line.query(f"SELECT count(*) FROM {line.name}") == [(0,)]

    recover(line)


@pytest.mark.fault("F17")
def test_readers_and_vacuum_do_not_hold_a_commit_up(sealed: Line) -> None:
    """C7: a long report over the targets, and a VACUUM that was just made."""
    with holding(sealed.dsn, f"SELECT count(*) FROM {sealed.name}, {sealed.name}_again"):
        as_admin(sealed.dsn, f"VACUUM ANALYZE {sealed.name}")

        assert sealed.commit(1).outcome is CommitOutcome.COMMITTED

    recover(sealed)


@pytest.mark.fault("F17", "F18")
def test_a_deadlock_with_another_session_ends_with_one_commit(sealed: Line) -> None:
    """40P01: PostgreSQL chooses a victim; with either victim the epoch is committed once."""
    with holding(sealed.dsn, f"LOCK TABLE {sealed.name}_again IN SHARE MODE") as other:
        committing = in_background(lambda: sealed.commit(1))
        sealed.until_a_session_waits_for_a_lock()
        try:
            # The commit has rows in the first target and waits for the second.
            other.execute(f"LOCK TABLE {sealed.name} IN SHARE MODE")
        except psycopg2.errors.DeadlockDetected:
            other.connection.rollback()
        error = committing.exception(90)
        other.connection.rollback()
    since = time.monotonic()

    if error is not None:
        assert isinstance(error, LockTimeoutError)
        assert sealed.state() is EpochState.PRE_COMMITTED
    recover(sealed, since=since)


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
def test_an_error_that_passes_by_itself_is_tried_again(sealed: Line, code: str) -> None:
    raising(sealed, code, 1)
    since = time.monotonic()

    assert sealed.run("run-1") == "success"

    recover(sealed, since=since)


@pytest.mark.fault("F18")
def test_an_error_that_does_not_pass_is_not_tried_again(sealed: Line) -> None:
    """A rule of the target: trying again would only make noise. The sealed epoch is kept."""
    raising(sealed, "23514", 1)

    with pytest.raises(LedgerError) as refused:
        sealed.commit(1)

    assert not refused.value.retryable
    assert sealed.query("SELECT last_value, is_called FROM public.raised") == [(1, True)]
    assert sealed.state() is EpochState.PRE_COMMITTED
    recover(sealed)


@pytest.mark.fault("F18")
def test_tries_are_bounded(sealed: Line) -> None:
    """An error that would pass, but does not, ends the run; a later one commits."""
    raising(sealed, "40001", 1000)

    assert sealed.run("run-1", tries=2) == "failed"

    assert sealed.query("SELECT last_value FROM public.raised") == [(2,)]
    assert sealed.state() is EpochState.PRE_COMMITTED
    sealed.query("DROP FUNCTION public.raise_it() CASCADE")
    recover(sealed)


@pytest.mark.fault("F18")
def test_a_statement_that_takes_too_long_ends_the_commit_and_a_retry_helps(new_line: NewLine) -> None:
    line = new_line(commit_statement_timeout=timedelta(seconds=1))
    line.some(5)
    line.to_sealed("run-1")
    body = "BEGIN PERFORM pg_sleep(20); RETURN NULL; END"
    line.query(f"CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    line.query(f"CREATE TRIGGER slow AFTER INSERT ON {line.name} FOR EACH STATEMENT EXECUTE FUNCTION public.slow()")

    with pytest.raises(EpochlineError, match="statement timeout") as refused:
        line.commit(1)

    assert refused.value.retryable
    assert line.state() is EpochState.PRE_COMMITTED
    line.query(f"DROP TRIGGER slow ON {line.name}")
    recover(line)


@pytest.mark.fault("F18")
def test_too_many_connections_fail_a_task_until_some_are_free(line: Line, server: Server) -> None:
    """53300, at any step."""
    database = line.query("SELECT current_database()")[0][0]
    server.admin("ALTER DATABASE {} CONNECTION LIMIT 0", database)
    for step in (lambda: line.plan("run-1"), lambda: line.begin(1, "run-1"), lambda: line.commit(1)):
        with pytest.raises(LedgerUnavailableError, match="too many connections") as refused:
            step()
        assert refused.value.retryable
    since = time.monotonic()
    server.admin("ALTER DATABASE {} CONNECTION LIMIT -1", database)

    recover(line, since=since)
