"""Bring the ledger to this version of the code. Forward only; safe to run at any time and from several places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from epochline.errors import LedgerError
from epochline.postgres.queries.statements import run as execute

_MIGRATIONS = Path(__file__).with_name("migrations")

OLDEST_SERVER = 16
"""The oldest PostgreSQL, by major version, that every statement works on; tests run on it and on the newest."""

# Any fixed number does: it only has to be the same in every process that migrates one database.
_MIGRATION_LOCK = 0x6570_6F63_68


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def head_revision() -> str:
    """The revision that this code was written for."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise LedgerError("this installation of epochline holds no migrations")
    return head


def upgrade(url: str) -> str:
    """Run the missing migrations, grant to the roles, and return the revision reached.

    Roles that this login may not make are left to a DBA (`arrange_roles`); the ledger works without them.

    Two processes that migrate at once take turns (a transaction-scoped advisory lock, which also holds behind a
    transaction pooler). A ledger that is newer than this code is refused.

    Args:
        url: SQLAlchemy URL of the target database, ``postgresql+psycopg2://…``.

    Raises:
        LedgerError: the ledger was migrated by a newer version of epochline, or the server is too old.
    """
    with _migrating(url) as connection:
        if connection.scalar(text("SELECT to_regnamespace('epochline')")) is None:
            # Asked first: IF NOT EXISTS wants the right to make schemas also where there is nothing to make.
            connection.execute(text("CREATE SCHEMA epochline"))
        _refuse_a_newer_ledger(connection)
        command.upgrade(_config(connection), "head")
        _arrange_roles(connection)
    return head_revision()


def arrange_roles(url: str) -> list[str]:
    """Make the roles of least privilege and grant to them, as far as this login may; a repeat changes nothing.

    Args:
        url: SQLAlchemy URL of a migrated database.

    Returns:
        SQL statements that a DBA has to run, in this order, before this is called again; usually none.
    """
    with _migrating(url) as connection:
        return _arrange_roles(connection)


def _arrange_roles(connection: Connection) -> list[str]:
    return [statement for (statement,) in execute(connection, "arrange_roles")]


@contextmanager
def _migrating(url: str) -> Iterator[Connection]:
    """A transaction that no other migration of the same database runs beside.

    Raises:
        LedgerError: the server is older than `OLDEST_SERVER`.
    """
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.begin() as connection:
            refuse_an_older_server(int(connection.scalar(text("SHOW server_version_num")) or 0))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            yield connection
    finally:
        engine.dispose()


def current_revision(connection: Connection) -> str | None:
    """The revision of the ledger in this database, None where there is no ledger."""
    if connection.scalar(text("SELECT to_regclass('epochline.alembic_version')")) is None:
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM epochline.alembic_version"))
    return revision


def refuse_an_older_server(version: int) -> None:
    """Refuse a PostgreSQL on which some statement of a later epoch would fail.

    Args:
        version: the server's ``server_version_num``, such as 150004.

    Raises:
        LedgerError: it is older than `OLDEST_SERVER`.
    """
    if version < OLDEST_SERVER * 10_000:
        raise LedgerError(
            f"This server is PostgreSQL {version // 10_000}.{version % 100}, and epochline needs {OLDEST_SERVER} or"
            " newer. Nothing was changed. Upgrade the server, or use another one."
        )


def _refuse_a_newer_ledger(connection: Connection) -> None:
    current = current_revision(connection)
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if current is not None and current not in known:
        raise LedgerError(
            f"The ledger is at revision {current}, which this version of epochline does not know (its newest is"
            f" {head_revision()}). Nothing was changed. Install the version of epochline that migrated it, or a newer"
            " one."
        )
