"""Logins for one test, and statements that a login or the superuser runs."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn
from sqlalchemy.engine import make_url

from epochline.local.stack import Stack
from tests.databases import BY_HAND

Login = Callable[..., str]
"""Makes a login with these roles and attributes, for this test; gives its libpq URL."""
AsSuperuser = Callable[..., list[Any]]
"""Runs statements in the test's database as a superuser; gives the rows of the last."""


@pytest.fixture
def as_superuser(stack: Stack, postgres_dsn: str) -> AsSuperuser:
    return lambda *statements: execute(superuser(stack, postgres_dsn), *statements)


@pytest.fixture
def login(stack: Stack, postgres_dsn: str) -> Iterator[Login]:
    made: list[str] = []
    admin = superuser(stack, postgres_dsn)

    def make(*roles: str, attributes: str = "") -> str:
        name, password = f"login_{secrets.token_hex(4)}", secrets.token_hex(8)
        execute(admin, f"CREATE ROLE {name} LOGIN PASSWORD '{password}' {attributes}")
        made.append(name)
        execute(admin, *(f"GRANT {role} TO {name}" for role in roles))
        return make_url(postgres_dsn).set(username=name, password=password).render_as_string(hide_password=False)

    yield make
    for name in made:
        execute(admin, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


@pytest.fixture
def reader(login: Login) -> str:
    """The libpq URL of a login that is a member of epochline_reader and of nothing else."""
    return login("epochline_reader")


def superuser(stack: Stack, dsn: str) -> str:
    return superuser_of(stack.postgres.superuser_dsn, dsn)


def superuser_of(admin: str, dsn: str) -> str:
    """The superuser's URL, at the database of another URL."""
    return make_url(admin).set(database=parse_dsn(dsn)["dbname"]).render_as_string(False)


def user(dsn: str) -> str:
    return str(parse_dsn(dsn)["user"])


def execute(dsn: str, *statements: Any, values: Sequence[Any] | None = None) -> list[Any]:
    """Run statements one by one, each its own transaction; the rows of the last."""
    with closing(psycopg2.connect(dsn)) as session, session.cursor() as cursor:
        session.autocommit = True
        cursor.execute(BY_HAND)
        for statement in statements:
            cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []
