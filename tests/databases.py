"""Databases with a migrated ledger, and their libpq URLs as SQLAlchemy and Airflow spell them."""

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any, Literal

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import parse_dsn

from epochline.local.postgres import Postgres
from epochline.postgres.ledger.migrate import upgrade

BY_HAND = "SET epochline.version TO 'by hand'"
"""Lets a session change the ledger's epochs, as a person may who knows what they do."""

QUICK: Mapping[str, str] = {"scram_iterations": "1", "epochline.failpoints": "allowed"}
"""Settings for servers that many short sessions log in to: the passwords of a stack are random, so that the 4,096 rounds
of the default guard nothing, and they are half of the 6.3 ms that a session takes to open."""


class Databases:
    """Makes databases of one server by copying a migrated one, which is faster than migrating each.

    `FILE_COPY` is the faster strategy where fsync is off; where fsync is on, its checkpoints take longer than a migration.
    """

    def __init__(self, postgres: Postgres, strategy: Literal["FILE_COPY", "WAL_LOG"]) -> None:
        self._postgres = postgres
        self._strategy = strategy
        self._numbers = itertools.count(1)

    def new(self) -> str:
        """Makes a database; gives its libpq URL, password included."""
        return self._create(f"test_{next(self._numbers)}", self._template)

    @cached_property
    def _template(self) -> str:
        name = "template_epochline"
        upgrade(self._create(name, "template1"))
        return name

    def _create(self, name: str, template: str) -> str:
        statement = f"CREATE DATABASE {{}} OWNER epochline TEMPLATE {{}} STRATEGY {self._strategy}"
        made = sql.SQL(statement).format(sql.Identifier(name), sql.Identifier(template))
        as_admin(self._postgres.superuser_dsn, made)
        return self._postgres.dsn(name)


def query(dsn: str, statement: str | sql.Composable, *values: object, **options: Any) -> list[tuple[Any, ...]]:
    """The rows of one statement, which is committed in a session of its own.

    Args:
        dsn: of the database.
        statement: may be several statements, with ``;`` between them; the rows are those of the last.
        values: for the placeholders.
        options: of the session.
    """
    with closing(psycopg2.connect(dsn, **options)) as session, session, session.cursor() as cursor:
        cursor.execute(BY_HAND)
        cursor.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def set_aside(dsn: str, offset: int, partition: int = 0, **columns: object) -> None:
    """Put a record into the quarantine: of epoch 1 of the pipeline `orders`, unless the columns say otherwise."""
    row = {
        "pipeline": "orders", "generation": 1, "epoch_id": 1, "topic": "orders", "topic_id": "id-of-orders",
        "partition": partition, "offset": offset, "value": "x", "reason": "no JSON", **columns,
    }  # fmt: skip
    names, values = sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(map(sql.Literal, row.values()))
    query(dsn, sql.SQL("INSERT INTO epochline.quarantined_record ({}) VALUES ({})").format(names, values))


@contextmanager
def holding(dsn: str, statement: str | sql.Composable) -> Iterator[Any]:
    """Hold what a statement locks until the block ends; gives the cursor, whose transaction is rolled back."""
    with closing(psycopg2.connect(dsn)) as session, session.cursor() as cursor:
        cursor.execute(statement)
        yield cursor


def as_admin(dsn: str, *statements: str | sql.Composable) -> None:
    """Run statements that PostgreSQL takes outside of a transaction alone, such as ``CREATE DATABASE``."""
    with closing(psycopg2.connect(dsn)) as session, session.cursor() as cursor:
        session.autocommit = True
        for statement in statements:
            cursor.execute(statement)


def copy_database(admin: str, source: str, target: str) -> None:
    """Put a copy of one database in the place of another, which may not exist yet."""
    names = sql.Identifier(target), sql.Identifier(source)
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(names[0])
    create = sql.SQL("CREATE DATABASE {} OWNER epochline TEMPLATE {} STRATEGY FILE_COPY").format(*names)
    as_admin(admin, drop, create)


def as_connection(dsn: str) -> str:
    """A connection to PostgreSQL, as Airflow reads it from the environment. The URL may name several hosts."""
    parts = parse_dsn(dsn)
    hosts, ports = parts["host"].split(","), parts["port"].split(",")
    host = ",".join(map(":".join, zip(hosts, ports, strict=True))) if len(hosts) > 1 else parts["host"]
    return json.dumps(
        {
            "conn_type": "postgres", "host": host, "port": int(ports[0]), "schema": parts["dbname"],
            "login": parts["user"], "password": parts["password"],
        }
    )  # fmt: skip
