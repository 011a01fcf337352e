"""Settings for one transaction, made in the transaction itself.

Some servers refuse start-up parameters (``options``), and some poolers drop them. A pooler in transaction mode gives
each transaction another session, so that a setting of the session may be lost or may leak to another client. ``SET
LOCAL`` avoids both. It takes no snapshot, so an isolation level can still be chosen after it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import psycopg2
from psycopg2.extensions import connection

from epochline.declare.text_settings import TEXT_SETTINGS
from epochline.declare.version import VERSION
from epochline.errors import ConfigurationError


def set_local(settings: Mapping[str, str | int]) -> str:
    """One message that makes settings, which no user gives, and `TEXT_SETTINGS`. Times are in milliseconds.

    It says the version of this package, which the ledger's triggers ask for.
    """
    made = {**TEXT_SETTINGS, **settings, "epochline.version": VERSION}
    return "; ".join(f"SET LOCAL {name} TO '{value}'" for name, value in made.items())


def refuse_replica(session: connection, shown: str) -> None:
    """Refuse a login for which PostgreSQL enforces no foreign key and fires no ordinary trigger.

    Raises:
        ConfigurationError: ``shown``, the session's setting, says so: a superuser has set it.
    """
    if shown == "replica":
        user = session.info.user
        raise ConfigurationError(
            f"Sessions of the login {user} begin with session_replication_role = replica: PostgreSQL enforces no"
            " foreign key and fires no trigger of targets and ledger. Nothing was changed. As a superuser, run"
            f' ALTER ROLE "{user}" RESET session_replication_role; or reset it where it was set, for the database or'
            " the server."
        )


@contextmanager
def one_transaction(session: connection) -> Iterator[connection]:
    """Commit a session's transaction at the end of the block, or roll it back if the block raises."""
    try:
        yield session
    except BaseException:
        # A lost session would say so again, and less well.
        with suppress(psycopg2.Error):
            session.rollback()
        raise
    session.commit()
