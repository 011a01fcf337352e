"""Tables that a use case creates: their replica identity, and the role that owns them."""

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import OWNER
from epochline.postgres.queries.composed import change
from epochline.postgres.queries.statements import run


def settle_table(connection: Connection, schema: str, table: str) -> None:
    """Finish a new table without a key: its rows can be replicated, and every member of the owner role can drop it.

    It stays with its maker if the role is missing or may not own tables in the schema.
    """
    identify_rows(connection, sql.Identifier(schema, table))
    if run(connection, "owner_may_own", schema=schema).scalar_one():
        change(connection, "ALTER TABLE {schema}.{table} OWNER TO {owner}", schema=schema, table=table, owner=OWNER)


def identify_rows(connection: Connection, table: sql.Identifier) -> None:
    """Give a table without a key a replica identity: a publication of all tables refuses UPDATE and DELETE without."""
    change(connection, "ALTER TABLE {table} REPLICA IDENTITY FULL", table=table)
