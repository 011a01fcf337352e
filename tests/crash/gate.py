"""A gate inside COMMIT: a deferred constraint trigger that waits, so that a session can be met while it commits."""

from tests.crash.line import Line
from tests.waiting import wait_for


def set_gate(
    line: Line, seconds: float = 60.0, *, event: str = "INSERT", table: str = "epochline.committed_range"
) -> None:
    """From now on a commit of an epoch waits inside its COMMIT, or a task that changes another table of the ledger.

    Where the wait is long, the test ends it by what it does to the session or the server.
    """
    line.query(
        "CREATE OR REPLACE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END$$"
    )
    line.query(
        f"CREATE CONSTRAINT TRIGGER gate AFTER {event} ON {table} DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.gate()"
    )


def open_gate(line: Line) -> None:
    line.query("DROP FUNCTION IF EXISTS public.gate CASCADE")


def backend_in_commit(line: Line) -> int:
    asked = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = 'COMMIT'"
        " AND state = 'active' AND wait_event = 'PgSleep'"
    )
    return int(wait_for("a session waits inside its COMMIT", lambda: line.query(asked))[0][0])
