"""Which versions of epochline may work on a ledger: the ledger says it, each transaction asks with its first message.

A ledger that a newer version migrated names the oldest version whose tasks may go on. A ledger that lacks a migration
of this version allows none of its tasks. The trigger ``says_its_version`` refuses 0.1.0, which does not ask.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochline.declare.version import VERSION
from epochline.errors import VersionError
from epochline.failpoints import ALLOWING, refuse_here
from epochline.postgres.queries.session_settings import refuse_replica, set_local
from epochline.postgres.queries.statements import Connection

MIGRATIONS = Path(__file__).parents[1] / "ledger" / "migrations"
REVISIONS = {script.name[:4]: script for script in sorted(MIGRATIONS.glob("versions/*.sql"))}
"""The script of each revision, in order."""

_ROLE = f"SELECT current_setting('session_replication_role'), current_setting('{ALLOWING}', true)"
_VERSIONS = ", revision, oldest_version FROM (SELECT) AS one LEFT JOIN epochline.versions ON true"


def head_revision() -> str:
    """The revision of the ledger that this code needs."""
    return max(REVISIONS)


def opening(settings: Mapping[str, str | int], *, any_version: bool = False) -> str:
    """The first message of a transaction: settings, as `set_local` makes them, and a row for `refuse_unfit`.

    With ``any_version`` it asks no ledger, which may be missing.
    """
    return f"{set_local(settings)}; {_ROLE}{'' if any_version else _VERSIONS}"


def refuse_unfit(session: Connection, opened: tuple[Any, ...]) -> None:
    """Refuse a transaction that writes; ``opened`` is the row that `opening` gave.

    Raises:
        ConfigurationError: the login's sessions fire no triggers, or a failpoint is set and not allowed here.
        VersionError: the ledger does not allow this version.
    """
    refuse_replica(session, opened[0])
    refuse_here(opened[1])
    if len(opened) > 2:
        refuse_version(opened)


def refuse_version(opened: tuple[Any, ...]) -> None:
    """Raise `VersionError` unless the ledger that gave this row of `opening` allows this version."""
    *_, revision, oldest = opened
    if revision is None or revision < head_revision():
        raise VersionError(
            f"The ledger is at revision {revision}, and epochline {VERSION} needs {head_revision()}. Nothing was"
            " changed. Run `epochline migrate`."
        )
    if _numbers(oldest) > _numbers(VERSION):
        raise VersionError(
            f"The ledger is at revision {revision} and allows epochline {oldest} and newer; this is {VERSION}."
            f" Nothing was changed. Install epochline {oldest} or newer for this process, and restart it."
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
