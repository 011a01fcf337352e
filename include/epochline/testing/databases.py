"""Databases of tests: each with a ledger, made and dropped on a server that the user names."""

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg2
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from epochline.errors import ConfigurationError
from epochline.postgres.ledger.migrate import upgrade
from epochline.postgres.queries.statements import change

PREFIX = "epochline_test_"
"""Every database of tests has a name that begins so."""


@contextmanager
def migrated_database(server: str) -> Iterator[str]:
    """A database with an empty ledger; gives its name. It is dropped at the end of the block.

    Raises:
        ConfigurationError: the server cannot be reached, or its login may not create databases.
        LedgerError: the server is too old.
    """
    with database(server, "template1") as url:
        upgrade(url)
        yield str(make_url(url).database)


@contextmanager
def database(server: str, template: str) -> Iterator[str]:
    """A copy of a database; gives its URL. It is dropped at the end of the block, whatever is still connected to it.

    Raises `ConfigurationError` as `migrated_database` does.
    """
    name = PREFIX + uuid.uuid4().hex
    _at_server(server, "CREATE DATABASE {name} TEMPLATE {template}", name=name, template=template)
    try:
        url = make_url(server).set(drivername="postgresql", database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        _at_server(server, "DROP DATABASE {name} WITH (FORCE)", name=name)


def _at_server(server: str, statement: str, **names: str) -> None:
    """Run a statement that PostgreSQL takes outside of transactions alone."""
    try:
        url = make_url(server).set(drivername="postgresql").render_as_string(hide_password=False)
        with closing(psycopg2.connect(url, connect_timeout=10)) as session:
            session.autocommit = True
            change(session, statement, **names)
    except ArgumentError:
        raise ConfigurationError("the server of tests is no URL such as postgresql://login@host/postgres.") from None
    except psycopg2.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"PostgreSQL: {error.diag.message_primary}. Tests make databases of their own; run ALTER ROLE … CREATEDB,"
            " or name another login."
        ) from None
    except psycopg2.OperationalError as error:
        raise ConfigurationError(f"the server of tests cannot be reached: {' '.join(str(error).split())}") from None
