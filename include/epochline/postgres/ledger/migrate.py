"""Bring the ledger to this version of the code. Forward only; safe to run at any time and from several places.

Tables change by versioned migrations (``migrations/versions``). Views, functions and roles are defined once, in
``migrations/definitions``: whenever such a file changes, the whole file is applied again.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import psycopg2
from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege

from epochline.config.logins import log_in
from epochline.config.versions import RANGES
from epochline.declare.text_settings import UTF8
from epochline.declare.version import VERSION
from epochline.errors import ConfigurationError, LedgerError, LockTimeoutError, VersionError
from epochline.postgres.ledger import roles
from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.session_settings import one_transaction, set_local
from epochline.postgres.queries.statements import Connection, as_text, change, compose, query
from epochline.postgres.queries.statements import run as execute
from epochline.postgres.queries.versions import MIGRATIONS, REVISIONS, head_revision

_DEFINITIONS = ("functions", "views", "roles")
"""Files of ``migrations/definitions``, in the order in which they are applied."""

OLDEST_SERVER = int(RANGES["PostgreSQL"].oldest)
"""The oldest major version of PostgreSQL on which every statement works."""

# An arbitrary number, the same in every process that migrates.
_MIGRATION_LOCK = 0x6570_6F63_68

_LOCK_TIMEOUT_MS, _PAUSE_SECONDS, _TRIES = 2_000, 3.0, 120
"""A try waits two seconds for its lock, because other transactions wait behind it. All tries take ten minutes."""


def upgrade(dsn: str, tables: Iterable[str] = (), *, viewer: str | None = None) -> str:
    """Run the missing migrations, apply changed definitions, grant to the roles, and return the revision reached.

    A repeat changes nothing. A DBA creates the roles that this login may not create (`arrange_roles`); the ledger works
    without them. Two processes that migrate at the same time take turns: the advisory lock is transaction-scoped, so it
    also works behind a transaction pooler. A migration waits for a moment without a transaction of the ledger.

    Args:
        dsn: libpq URL of the target database.
        tables: tables that this login is to make afterwards, so that a DBA learns everything at once.
        viewer: as for `arrange_roles`.

    Raises:
        RightsMissingError: this login may not make the schemas or the tables; nothing was changed.
        VersionError: the ledger was migrated by a newer version of epochline.
        LockTimeoutError: there was no such moment; nothing was changed.
        LedgerError: the server is too old, or the database has another encoding than UTF8.
    """
    for _ in range(_TRIES):
        try:
            return _upgrade(dsn, tables, viewer)
        except LockTimeoutError:
            time.sleep(_PAUSE_SECONDS)
    raise LockTimeoutError(
        "For ten minutes there was no moment without a transaction of the ledger, and a migration needs one. Nothing"
        " was changed. Pause the pipelines, wait until their runs and audits have ended, and run `epochline migrate`"
        " again."
    )


def _upgrade(dsn: str, tables: Iterable[str], viewer: str | None) -> str:
    with _migrating(dsn) as connection:
        current = current_revision(connection)
        if current is not None and current not in REVISIONS:
            raise VersionError(
                f"The ledger is at revision {current}, which epochline {VERSION} does not know (its newest is"
                f" {head_revision()}). Nothing was changed. Install the version of epochline that migrated it, or a"
                " newer one."
            )
        left = roles.arrange(connection, viewer)
        roles.refuse_without_schemas(connection, tables, left, ledger=current is not None)
        _apply_definitions(connection, every=run_migrations(connection, head_revision()))
        execute(connection, "grant_to_roles")
    return head_revision()


def run_migrations(connection: Connection, until: str) -> bool:
    """Run the migrations up to a revision that the ledger lacks; returns whether there were any."""
    before = current_revision(connection)
    missing = [revision for revision in REVISIONS if (before or "") < revision <= until]
    if missing and before is None:
        for schema in roles.LEDGER_SCHEMAS:
            # CREATE SCHEMA IF NOT EXISTS needs the right to create schemas even if the schema exists.
            if not execute(connection, "schema_exists", schema=schema).scalar_one():
                change(connection, "CREATE SCHEMA {schema}", schema=schema)
        execute(connection, "make_revision_table")
    elif missing:
        # Each transaction holds the table from its question for the version to its end. So all that the former revision
        # allowed has ended, and all that follows asks the new one.
        change(connection, "LOCK TABLE epochline.alembic_version IN ACCESS EXCLUSIVE MODE")
    for revision in missing:
        change(connection, sql.SQL(REVISIONS[revision].read_text()))
        execute(connection, "keep_revision", revision=revision)
    return bool(missing)


def arrange_roles(dsn: str, *, viewer: str | None = None) -> list[str]:
    """Create the roles of least privilege and grant to them, as far as this login may. A repeat changes nothing.

    ``viewer`` is the login of the pages in Airflow. It may then read the views, and take the role that sees quarantined
    bytes; no other reader may.

    Returns:
        SQL statements for a DBA to run in this order before the next call; usually none.
    """
    with _migrating(dsn) as connection:
        left = roles.arrange(connection, viewer)
        execute(connection, "grant_to_roles")
        return left


def _apply_definitions(connection: Connection, *, every: bool) -> None:
    """Apply the files of views, functions and roles that changed; every one after a migration, which may drop views."""
    for name in _DEFINITIONS if every else changed_definitions(connection):
        script = _definition(name)
        change(connection, sql.SQL(script))
        execute(connection, "keep_definition", file=name, sha256=_sha256(script))


def changed_definitions(connection: Connection) -> list[str]:
    """Those of views, functions and roles that this database has in another version, in the order to apply them."""
    kept = {name: execute(connection, "definition_sha256", file=name).scalar_one_or_none() for name in _DEFINITIONS}
    return [name for name, sha256 in kept.items() if sha256 != _sha256(_definition(name))]


def _definition(name: str) -> str:
    return MIGRATIONS.joinpath("definitions", f"{name}.sql").read_text()


def _sha256(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()


@contextmanager
def _migrating(dsn: str) -> Iterator[Connection]:
    """Open a transaction that excludes every other migration of the same database."""
    try:
        with closing(log_in(dsn, **UTF8)) as session, one_transaction(session) as connection:
            change(connection, set_local({"lock_timeout": _LOCK_TIMEOUT_MS}))
            refuse_an_older_server(connection.info.server_version)
            refuse_other_encoding(connection)
            execute(connection, "lock_migrations", key=_MIGRATION_LOCK)
            yield connection
    except InsufficientPrivilege as error:
        raise ConfigurationError(
            f"PostgreSQL: {error.diag.message_primary}. Nothing was changed. The ledger belongs to another login, which"
            " the view pg_tables shows as tableowner of epochline.alembic_version. Run `epochline migrate` with a"
            " connection of that login."
        ) from error
    except psycopg2.Error as error:
        raise explained(error) from error


def current_revision(connection: Connection) -> str | None:
    """The revision of the ledger in this database; None without a ledger."""
    if not execute(connection, "has_ledger").scalar_one():
        return None
    revision: str | None = execute(connection, "ledger_revision").scalar_one_or_none()
    return revision


def refuse_an_older_server(version: int) -> None:
    """Raise `LedgerError` for a ``server_version_num``, such as 150004, that is older than `OLDEST_SERVER`."""
    if version < OLDEST_SERVER * 10_000:
        raise LedgerError(
            f"This server is PostgreSQL {version // 10_000}.{version % 100}, and epochline needs {OLDEST_SERVER} or"
            " newer. Nothing was changed. Upgrade the server, or use another one."
        )


def refuse_other_encoding(session: Connection) -> None:
    """Raise `LedgerError` for a database whose encoding is not UTF8, unless an older version made a ledger there."""
    # A login without rights in the schema may ask this too.
    asked = (
        "SELECT current_setting('server_encoding'), EXISTS (SELECT FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (n.nspname, c.relname) = ('epochline', 'epoch'))"
    )
    ((encoding, has_ledger),) = query(session, asked)
    if encoding != "UTF8" and not has_ledger:
        raise LedgerError(
            f"Database {session.info.dbname} has the encoding {encoding}, and epochline needs UTF8: records hold any"
            " character. Nothing was changed. Name another database in the connection; a DBA makes one by"
            f" {database_with_utf8(session)}"
        )


def database_with_utf8(session: Connection) -> str:
    """The statement that makes a database beside this one. With locale C it works whatever the server's locale is."""
    made = "CREATE DATABASE {name} OWNER {owner} ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0;"
    return as_text(session, compose(made, name=f"{session.info.dbname[:50]}_utf8", owner=session.info.user))
