"""Collations of a target's columns: tables that stand beside it must find the same values equal, and in one order."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.postgres.queries.composed import execute_sql


def collations_of(connection: Connection, table: str) -> Mapping[str, sql.Composable]:
    """By column, ``COLLATE …`` where a table declares another collation than the type's; nothing without a table."""
    schema, name = split_table(table)
    statement = sql.SQL(
        "SELECT a.attname, n.nspname, c.collname FROM pg_class t JOIN pg_namespace s ON s.oid = t.relnamespace"
        " JOIN pg_attribute a ON a.attrelid = t.oid JOIN pg_type k ON k.oid = a.atttypid"
        " JOIN pg_collation c ON c.oid = a.attcollation JOIN pg_namespace n ON n.oid = c.collnamespace"
        " WHERE s.nspname = {} AND t.relname = {} AND a.attnum > 0 AND a.attcollation <> k.typcollation"
    ).format(sql.Literal(schema), sql.Literal(name))
    return {
        column: sql.SQL(" COLLATE {}").format(sql.Identifier(*collation))
        for column, *collation in execute_sql(connection, statement)[1]
    }
