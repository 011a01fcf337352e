"""A gate inside COMMIT: a deferred constraint trigger that waits, so that a session can be met while it commits."""

from __future__ import annotations

from tests.crash.line import Line
from tests.waiting import wait_for


def set_gate(line: Line, table: str = "epochline.committed_range", seconds: float = 60.0) -> None:
    """From now on a transaction that inserted into ``table`` waits inside its COMMIT.

    Where the wait is long, the test ends it by what it does to the session or the server.
    """
    line.query(
        "CREATE OR REPLACE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END$$"
    )
    line.query(
        f"CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.gate()"
    )


def open_gate(line: Line, table: str = "epochline.committed_range") -> None:
    """Let later commits pass."""
    line.query(f"DROP TRIGGER IF EXISTS gate ON {table}")


def backend_in_commit(line: Line) -> int:
    """The backend that waits in the gate."""
    found = wait_for(
        "a session waits inside its COMMIT",
        lambda: line.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = 'COMMIT'"
            " AND state = 'active' AND wait_event = 'PgSleep'"
        ),
    )
    return int(found[0][0])  # type: ignore[index]
