"""Databases with a migrated ledger, and their libpq URLs as SQLAlchemy and Airflow spell them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from typing import Literal

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import parse_dsn

from epochline.local.postgres import Postgres
from epochline.postgres.ledger.migrate import upgrade

QUICK: Mapping[str, str] = {"scram_iterations": "1"}
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
        upgrade(sqlalchemy_url(self._create(name, "template1")))
        return name

    def _create(self, name: str, template: str) -> str:
        statement = f"CREATE DATABASE {{}} OWNER epochline TEMPLATE {{}} STRATEGY {self._strategy}"
        with closing(psycopg2.connect(self._postgres.superuser_dsn)) as admin, admin.cursor() as cursor:
            admin.autocommit = True
            cursor.execute(sql.SQL(statement).format(sql.Identifier(name), sql.Identifier(template)))
        return self._postgres.dsn(name)


def sqlalchemy_url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg2://", 1)


def as_connection(dsn: str) -> str:
    parts = parse_dsn(dsn)
    return json.dumps(
        {
            "conn_type": "postgres", "host": parts["host"], "port": int(parts["port"]), "schema": parts["dbname"],
            "login": parts["user"], "password": parts["password"],
        }
    )  # fmt: skip
