"""Tables that a use case creates belong to the owner role, so that every member can drop them."""

from __future__ import annotations

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import OWNER
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run


def give_to_owner(connection: Connection, schema: str, table: str) -> None:
    """Give a table to the owner role, unless the role is missing or may not own tables in the schema."""
    if run(connection, "owner_may_own", schema=schema).scalar_one():
        statement = sql.SQL("ALTER TABLE {} OWNER TO {}")
        execute_sql(connection, statement.format(sql.Identifier(schema, table), sql.Identifier(OWNER)))
