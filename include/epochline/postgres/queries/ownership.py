"""Who owns a table that a use case makes: the owners' role, so that every login that is a member can drop it."""

from __future__ import annotations

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import OWNER
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run


def give_to_owner(connection: Connection, schema: str, table: str) -> None:
    """Give a table to the role; nothing, where there is none or it may have no table in that schema."""
    if run(connection, "owner_may_own", schema=schema).scalar_one():
        statement = sql.SQL("ALTER TABLE {} OWNER TO {}")
        execute_sql(connection, statement.format(sql.Identifier(schema, table), sql.Identifier(OWNER)))
